package httpapi

import (
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// RefParam is the reference of a sandbox or snapshot in a path.
type RefParam struct {
	Ref string `path:"ref" maxLength:"128" doc:"ID or name"`
}

// ref returns the id or name in the path; see [refParam].
func (p RefParam) ref() string { return p.Ref }

// A pageParams selects a page of a list: FilterParams or PageParams.
type pageParams interface {
	filter(prefix string) (caisson.Filter, error) // returns the page as a filter; prefix is the prefix of the ids of the objects
}

// FilterParams select a page of a list of sandboxes, or of other objects with states.
type FilterParams struct {
	State []caisson.State `query:"state,explode" doc:"Only those in one of these states"`
	PageParams
}

// filter returns p as a filter. prefix is the prefix of the ids of the listed objects.
func (p FilterParams) filter(prefix string) (caisson.Filter, error) {
	f, err := p.PageParams.filter(prefix)
	f.States = p.State
	return f, err
}

// PageParams select a page of a list of objects that have no states.
type PageParams struct {
	Label []string `query:"label,explode" doc:"Only those with this label, as key=value; all of them if repeated"`
	Name  string   `query:"name" doc:"Only the one with this name"`
	After string   `query:"after" doc:"Value of next in the previous page"`
	Limit int      `query:"limit" minimum:"0" maximum:"1000" doc:"Size of the page; 0 means 100"`
}

// filter returns p as a filter. prefix is the prefix of the ids of the listed objects.
func (p PageParams) filter(prefix string) (caisson.Filter, error) {
	f := caisson.Filter{Name: p.Name, Limit: p.Limit}
	for _, l := range p.Label {
		k, v, err := parseLabel(l)
		if err != nil {
			return caisson.Filter{}, err
		}
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		f.Labels[k] = v
	}
	if p.After != "" {
		id, err := caisson.ParseID(prefix, p.After)
		if err != nil {
			return caisson.Filter{}, caisson.Invalidf("after", "%.40q is not the end of a page", p.After)
		}
		f.After = id
	}
	return f, nil
}

// An idQuery is a query parameter that contains an id.
type idQuery struct {
	name, prefix, value string      // name of the parameter, prefix of the ids, and value
	to                  *caisson.ID // parseIDs stores the id here
}

// parseIDs parses the parameters whose value is not "", and stores the ids.
func parseIDs(params ...idQuery) error {
	for _, p := range params {
		if p.value == "" {
			continue
		}
		id, err := caisson.ParseID(p.prefix, p.value)
		if err != nil {
			return caisson.Invalidf(p.name, "%.40q is not an id of the form %s-xxxxxxxxxxxxxxxx", p.value, p.prefix)
		}
		*p.to = id
	}
	return nil
}

// parseLabel splits a label of the form key=value.
func parseLabel(s string) (key, value string, err error) {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return "", "", caisson.Invalidf("label", "%.40q is not of the form key=value", s)
	}
	return key, value, nil
}

// parseMode reads permission bits in octal; "" is 0.
func parseMode(s string) (uint32, error) {
	if s == "" {
		return 0, nil
	}
	m, err := strconv.ParseUint(s, 8, 32)
	if err != nil || m > 0o7777 {
		return 0, caisson.Invalidf("mode", "%.40q is not a file mode; write for example 0644", s)
	}
	return uint32(m), nil
}

// checkPath returns Invalid if p cannot be a path in a sandbox. All other checks are made in the sandbox.
func checkPath(field, p string) error {
	switch {
	case !strings.HasPrefix(p, "/"):
		return caisson.Invalidf(field, "%.40q is not an absolute path", p)
	case strings.ContainsRune(p, 0):
		return caisson.Invalidf(field, "a path cannot contain a zero byte")
	case len(p) > 4096:
		return caisson.Invalidf(field, "a path has at most 4096 bytes")
	}
	return nil
}
