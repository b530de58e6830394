package ingress

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// A table holds the routes, indexed for lookup by requests. It is immutable.
type table struct {
	domain string                // the ingress's domain, in canonical form
	key    ed25519.PublicKey     // verifies signed URLs
	hosts  map[string][]*route   // routes by canonical host, those with the longest path first
	routes map[caisson.ID]*route // all routes
}

// A route holds the destination of requests, and the rules for them.
type route struct {
	id      caisson.ID // "" for a host of the form PORT-SANDBOX.DOMAIN
	spec    caisson.RouteSpec
	sandbox caisson.ID // sandbox to which the route leads
	shared  bool       // the host is the ingress's domain or below it, as are hosts of other sandboxes
	signed  bool       // this route, or another one of its host, is used with signed URLs
}

// newTable compiles routes. The daemon has checked them; those that are invalid nevertheless cause an error.
func newTable(c caisson.IngressConfig) (*table, error) {
	t := &table{
		domain: strings.ToLower(c.Domain), key: ed25519.PublicKey(c.Key),
		hosts: map[string][]*route{}, routes: map[caisson.ID]*route{},
	}
	if len(c.Key) != ed25519.PublicKeySize {
		return nil, errors.New("the key of signed URLs is malformed")
	}
	for _, r := range c.Routes {
		sandbox, err := caisson.ParseID(caisson.SandboxPrefix, r.Spec.Sandbox)
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", r.ID, err)
		}
		host := t.domain
		if r.Spec.Host != "" {
			host = r.Spec.Host
		}
		x := &route{id: r.ID, spec: withDefaults(r.Spec), sandbox: sandbox, shared: underDomain(host, t.domain)}
		t.routes[r.ID] = x
		t.hosts[host] = append(t.hosts[host], x)
	}
	for _, list := range t.hosts {
		slices.SortStableFunc(list, func(a, b *route) int { return len(b.spec.Path) - len(a.spec.Path) })
		signed := slices.ContainsFunc(list, func(x *route) bool { return x.spec.Auth.Kind == caisson.RouteAuthSigned })
		for _, x := range list {
			x.signed = signed
		}
	}
	return t, nil
}

// find returns the route of a request, or nil. ok is false if servers may disagree about the route to which the request's path
// belongs. The path of r must have been checked with checkPath.
func (t *table) find(r *http.Request) (found *route, ok bool) {
	host, ok := canonicalHost(r.Host)
	if !ok {
		return nil, true
	}
	found = match(t.hosts[host], r.URL.Path)
	if found != match(t.hosts[host], cutParameters(r.URL.Path)) {
		return nil, false
	}
	if found == nil && t.hosts[host] == nil {
		found = t.directRoute(host)
	}
	return found, true
}

// match returns the first route of list that path belongs to, or nil.
func match(list []*route, path string) *route {
	path = collapse(path)
	for _, x := range list {
		if underPath(path, x.spec.Path) {
			return x
		}
	}
	return nil
}

// directRoute returns the route of a host of the form PORT-SANDBOX.DOMAIN, or nil.
func (t *table) directRoute(host string) *route {
	label, ok := strings.CutSuffix(host, "."+t.domain)
	if !ok {
		return nil
	}
	sandbox, port, ok := parseLabel(label)
	if !ok {
		return nil
	}
	return &route{sandbox: sandbox, shared: true, signed: true, spec: withDefaults(caisson.RouteSpec{
		Sandbox: string(sandbox), Port: port, Auth: caisson.RouteAuth{Kind: caisson.RouteAuthSigned},
	})}
}

// underDomain reports whether host is domain or below it.
func underDomain(host, domain string) bool {
	return host == domain || strings.HasSuffix(host, "."+domain)
}

// parseLabel parses PORT-SANDBOX, the first label of a host that is not that of a route.
func parseLabel(label string) (sandbox caisson.ID, port int, ok bool) {
	number, rest, _ := strings.Cut(label, "-")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != number {
		return "", 0, false
	}
	sandbox, err = caisson.ParseID(caisson.SandboxPrefix, rest)
	return sandbox, int(n), err == nil
}

// canonicalHost returns the host of a Host header: in lower case, without port and trailing dot. Hosts that are not made of ASCII
// letters, digits, dashes and dots belong to no route: names in other scripts arrive as punycode.
func canonicalHost(s string) (string, bool) {
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		if _, err := strconv.ParseUint(s[i+1:], 10, 16); err != nil && s[i+1:] != "" {
			return "", false
		}
		s = s[:i]
	}
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return "", false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return "", false
		}
	}
	return strings.ToLower(s), true
}

// underPath reports whether path is prefix, or below it in whole segments.
func underPath(path, prefix string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// collapse replaces consecutive slashes by one, as many servers do.
func collapse(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	return path
}

// cutParameters removes the first semicolon and the text after it from each segment of a path, as some servers do.
func cutParameters(path string) string {
	if !strings.Contains(path, ";") {
		return path
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return strings.Join(segments, "/")
}

// checkPath reports whether a path means the same to every server: it begins with a slash and has no segment, however it is
// written, that a server may resolve as "." or "..", no backslash and no control character. Otherwise a sandbox could resolve a
// path that matches one route to a path that another route protects.
func checkPath(u *url.URL) bool {
	if !strings.HasPrefix(u.Path, "/") {
		return false
	}
	for _, c := range []byte(u.Path) {
		if c < ' ' || c == 0x7f || c == '\\' {
			return false
		}
	}
	for segment := range strings.SplitSeq(cutParameters(u.Path), "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

// stripPrefix removes prefix from the path of u. It returns false if the path has prefix in escaped form, so that it cannot be
// removed.
func stripPrefix(u *url.URL, prefix string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	raw := u.EscapedPath()
	rest, ok := strings.CutPrefix(raw, prefix)
	if !ok || rest != "" && rest[0] != '/' {
		return false
	}
	path := strings.TrimPrefix(u.Path, prefix)
	if rest == "" {
		path, rest = "/", "/"
	}
	u.Path, u.RawPath = path, rest
	return true
}
