package routes

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

var (
	namePattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)             // format of the name of a route
	labelPattern  = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`) // format of a label of a host name
	portPattern   = regexp.MustCompile(`^[0-9]+-` + caisson.SandboxPrefix + `-`)  // beginning of the host label PORT-SANDBOX
	methodPattern = regexp.MustCompile(`^[A-Z]{1,16}$`)                           // format of an HTTP method
	// fieldPattern is the format of the name of a header field.
	fieldPattern = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^`|~-]{1,64}$")
	hashPattern  = regexp.MustCompile(`^[0-9a-f]{64}$`)                       // SHA-256 hash in hexadecimal
	pathPattern  = regexp.MustCompile(`^(/[A-Za-z0-9._~!$&'()*+,=:@-]+)*/?$`) // format of the path of a route
)

// maxSpec is the maximum size of a route's spec in bytes, as JSON. It is small, because the wire process receives the specs of
// all routes at once.
const maxSpec = 4 << 10

// Bounds of the time limits of a route.
const (
	maxTimeout     = time.Hour      // maximum of RouteSpec.Timeout
	maxIdleTimeout = 24 * time.Hour // maximum of RouteSpec.IdleTimeout
)

// checkName returns an Invalid error if name is not a valid name of a route.
func checkName(name string) error {
	if _, err := caisson.ParseID(caisson.RoutePrefix, name); err == nil || !namePattern.MatchString(name) {
		return caisson.Invalidf("name", "%.70q is not the name of a route: use up to 64 lower-case letters, digits, dots, dashes and underscores", name)
	}
	return nil
}

// checkHostName returns an error unless host is a host name in lower case.
func checkHostName(host string) error {
	if len(host) > 253 {
		return errors.New("too long")
	}
	for label := range strings.SplitSeq(host, ".") {
		if !labelPattern.MatchString(label) {
			return errors.New("malformed")
		}
	}
	return nil
}

// checkSpec returns an Invalid error for every invalid field of a spec, joined, and brings the spec into its normal form.
func checkSpec(s *caisson.RouteSpec) error {
	var errs []error
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, caisson.Invalidf(field, format, args...))
		}
	}
	s.Host = strings.TrimSuffix(strings.ToLower(s.Host), ".")
	check(s.Host == "" || checkHostName(s.Host) == nil, "host", "%.100q is not a host name; write names in other scripts as punycode (xn--…)", s.Host)
	check(s.Host != "" || strings.Trim(s.Path, "/") != "", "host", "a route needs a host or a path")
	check(pathPattern.MatchString(s.Path) && !strings.Contains(s.Path+"/", "/./") && !strings.Contains(s.Path+"/", "/../"), "path",
		"%.100q is not a path of plain segments, such as /api", s.Path)
	s.Path = strings.TrimSuffix(s.Path, "/")
	check(s.Sandbox != "", "sandbox", "is required")
	check(s.Port >= 1 && s.Port <= 65535, "port", "must be between 1 and 65535")
	for i, m := range s.Methods {
		check(methodPattern.MatchString(m) && m != "CONNECT", "methods["+strconv.Itoa(i)+"]", "%.20q is not a method", m)
	}
	check(len(s.Methods) <= 16, "methods", "there are more than 16")
	errs = append(errs, checkAuth(&s.Auth))
	check(s.Timeout >= 0 && time.Duration(s.Timeout) <= maxTimeout, "timeout", "must be at most an hour")
	check(s.IdleTimeout >= 0 && time.Duration(s.IdleTimeout) <= maxIdleTimeout, "idleTimeout", "must be at most a day")
	check(s.MaxBody >= 0, "maxBody", "is negative")
	for _, r := range []caisson.RouteRate{s.Limits.Client, s.Limits.Total} {
		check(r.PerSecond >= 0 && r.PerSecond <= 1e6 && r.Burst >= 0 && r.Burst <= 1e6 && (r.PerSecond > 0) == (r.Burst > 0), "limits",
			"a rate needs perSecond and burst, at most 1000000")
	}
	check(min(s.Limits.MaxRequests, s.Limits.MaxClient) >= 0 && max(s.Limits.MaxRequests, s.Limits.MaxClient) <= 4096, "limits", "at most 4096 requests can be under way")
	errs = append(errs, checkCORS(s.CORS), checkHeaders("headers", s.Headers), checkHeaders("responseHeaders", s.ResponseHeaders))
	b, err := json.Marshal(s)
	check(err == nil && len(b) <= maxSpec, "spec", "is larger than %s", caisson.Size(maxSpec))
	return errors.Join(errs...)
}

// checkAuth returns an error if the authentication that a route requires is invalid.
func checkAuth(a *caisson.RouteAuth) error {
	switch a.Kind {
	case caisson.RouteAuthNone, caisson.RouteAuthSigned:
		if len(a.Hashes) > 0 {
			return caisson.Invalidf("auth.hashes", "are for bearer and basic only")
		}
	case caisson.RouteAuthBearer, caisson.RouteAuthBasic:
		if len(a.Hashes) == 0 || len(a.Hashes) > 16 {
			return caisson.Invalidf("auth.hashes", "there must be 1 to 16 of them")
		}
		for i, h := range a.Hashes {
			if !hashPattern.MatchString(h) {
				return caisson.Invalidf("auth.hashes["+strconv.Itoa(i)+"]", "is not a SHA-256 hash of 64 hexadecimal digits in lower case; make one with sha256sum")
			}
		}
	default:
		return caisson.Invalidf("auth.kind", "%.20q is not one of none, bearer, basic, signed; none lets everybody in and must be written", a.Kind)
	}
	return nil
}

// checkCORS returns an error if the CORS settings of a route are invalid.
func checkCORS(c *caisson.RouteCORS) error {
	if c == nil {
		return nil
	}
	if len(c.Origins) == 0 || len(c.Origins) > 32 {
		return caisson.Invalidf("cors.origins", "there must be 1 to 32 of them")
	}
	for i, o := range c.Origins {
		u, err := url.Parse(o)
		if o != "*" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Scheme+"://"+u.Host != o || o != strings.ToLower(o)) {
			return caisson.Invalidf("cors.origins["+strconv.Itoa(i)+"]", "%.100q is neither * nor an origin like https://app.example.com", o)
		}
	}
	if c.Credentials && slices.Contains(c.Origins, "*") {
		return caisson.Invalidf("cors.credentials", "cannot be combined with the origin *; list the origins")
	}
	for _, m := range c.Methods {
		if !methodPattern.MatchString(m) {
			return caisson.Invalidf("cors.methods", "%.20q is not a method", m)
		}
	}
	for _, h := range c.Headers {
		if !fieldPattern.MatchString(h) {
			return caisson.Invalidf("cors.headers", "%.70q is not the name of a header field", h)
		}
	}
	if c.MaxAge < 0 || len(c.Methods) > 16 || len(c.Headers) > 32 {
		return caisson.Invalidf("cors", "has too many entries, or a negative maxAge")
	}
	return nil
}

// isFixedField reports whether a route must not change a header field, because the field delimits messages or identifies the
// client.
func isFixedField(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	switch name {
	case "host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "keep-alive", "proxy-connection", "forwarded":
		return true
	}
	return strings.HasPrefix(name, "caisson-") || strings.HasPrefix(name, "x-forwarded-") || strings.HasPrefix(name, "sec-websocket-")
}

// checkHeaders returns an error if the changes of header fields that a route makes are invalid.
func checkHeaders(field string, h *caisson.RouteHeaders) error {
	if h == nil {
		return nil
	}
	if len(h.Set) > 32 || len(h.Strip) > 32 {
		return caisson.Invalidf(field, "has more than 32 entries")
	}
	names := slices.Clone(h.Strip)
	for name, value := range h.Set {
		names = append(names, name)
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return caisson.Invalidf(field+".set", "the value of %.70q has control characters", name)
		}
	}
	for _, name := range names {
		if !fieldPattern.MatchString(name) || isFixedField(name) {
			return caisson.Invalidf(field, "%.70q is not the name of a header field that a route can change", name)
		}
	}
	return nil
}

// checkHost returns an error if the caller may not have routes of the host in spec. For a caller with a token, the host must be
// directly below the ingress's domain. Only the administrator may use other hosts, and this domain itself, because browsers take
// all pages of the domain for one origin, whatever account their paths belong to.
func (s *Service) checkHost(caller caisson.Caller, spec caisson.RouteSpec) error {
	label, below := strings.CutSuffix(spec.Host, "."+s.settings.domain())
	switch {
	case below && portPattern.MatchString(label):
		return caisson.Invalidf("host", "hosts of the form PORT-SANDBOX.%s lead to the ports of sandboxes without a route; sign a URL instead", s.settings.domain())
	case caller.MayUseHost():
		return nil
	case below && !strings.Contains(label, "."):
		return nil
	}
	return caisson.Errorf(caisson.Denied, "with a token, the host of a route must be NAME.%s; other hosts can be chosen over the unix socket", s.settings.domain())
}

// checkOthers returns a Conflict error if another route has the host and path in spec, or another account has routes of this host
// and it is not the ingress's domain, and an Exhausted error if there are too many routes. The caller must hold s.changing.
func (s *Service) checkOthers(ctx context.Context, account, name string, spec caisson.RouteSpec) error {
	list, err := allRoutes(ctx, s.store)
	if err != nil {
		return err
	}
	own := 0
	shared := spec.Host == "" || spec.Host == s.settings.domain()
	for _, r := range list {
		if r.Account == account {
			if own++; r.Name == name {
				own--
				continue
			}
		}
		host := r.Spec.Host
		if host == s.settings.domain() {
			host = ""
		}
		same := host == spec.Host || shared && host == ""
		switch {
		case same && !shared && r.Account != account:
			return caisson.Errorf(caisson.Conflict, "the host %s belongs to another account; choose another one", spec.Host)
		case same && r.Spec.Path == spec.Path && r.Account != account:
			return caisson.Errorf(caisson.Conflict, "a route of another account has this path; choose another one")
		case same && r.Spec.Path == spec.Path:
			return caisson.Errorf(caisson.Conflict, "route %s has this host and path already; remove it first or choose others", r.Name)
		}
	}
	if own >= maxAccountRoutes || len(list) >= maxRoutes {
		return caisson.Errorf(caisson.Exhausted, "there are too many routes; remove some")
	}
	return nil
}
