package fake

import (
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// user resolves spec: "USER" or "USER:GROUP", names or numbers; "" is 0:0. Names are looked up in the sandbox's /etc/passwd
// and /etc/group. Without a group in spec, the group is that of the user in passwd, or 0. Returns Invalid for unknown names.
func (t *tree) user(spec string) (owner, error) {
	if spec == "" {
		return owner{}, nil
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	if name == "" {
		return owner{}, caisson.Invalidf("user", "%.100q is not of the form USER or USER:GROUP", spec)
	}
	var o owner
	entry := t.passwdFields("/etc/passwd", name)
	switch uid, err := parseID(name); {
	case err == nil:
		o.uid = uid
		if len(entry) > 3 {
			o.gid, _ = parseID(entry[3])
		}
	case len(entry) > 3:
		if o.uid, err = parseID(entry[2]); err != nil {
			return o, caisson.Invalidf("user", "%.100q has no number in the sandbox's /etc/passwd", name)
		}
		o.gid, _ = parseID(entry[3])
	default:
		return o, caisson.Invalidf("user", "%.100q is not in the sandbox's /etc/passwd", name)
	}
	if !hasGroup {
		return o, nil
	}
	gid, err := parseID(group)
	if entry := t.passwdFields("/etc/group", group); err != nil && len(entry) > 2 {
		gid, err = parseID(entry[2])
	}
	if err != nil {
		return o, caisson.Invalidf("user", "group %.100q is not in the sandbox's /etc/group", group)
	}
	o.gid = gid
	return o, nil
}

// parseID parses a user or group id. Only ids from 0 to 65535 are mapped in a sandbox.
func parseID(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err
}

// passwdFields returns the fields of the line for name, a name or a number, in a file in the format of passwd, or nil.
func (t *tree) passwdFields(file, name string) []string {
	b, err := t.readFile(file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if fields[0] == name || len(fields) > 2 && fields[2] == name {
			return fields
		}
	}
	return nil
}
