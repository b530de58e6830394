package ingress

import (
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/ingress/signedurl"
)

// clientHeader is the header field with the client's address for the sandbox. Fields of this name in the client's request are
// removed.
const clientHeader = "Caisson-Client"

// rewrite directs a request to its sandbox, removes Caisson's credentials and private fields, and makes the route's changes.
func rewrite(p *httputil.ProxyRequest) {
	c := contextCall(p.In.Context())
	spec := &c.route.spec
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.URL.RawQuery = "http", address(c.route.sandbox, spec.Port), c.query
	h := p.Out.Header
	for name := range h {
		if isPrivateHeader(name) {
			delete(h, name)
		}
	}
	if k := spec.Auth.Kind; k == caisson.RouteAuthBearer || k == caisson.RouteAuthBasic {
		h.Del("Authorization")
	}
	if !isWebSocket(p.In) { // ReverseProxy would pass on upgrades to other protocols, in which requests would not be checked
		delete(h, "Upgrade")
		delete(h, "Connection")
	}
	cutCookies(h)
	cutReferer(h)
	applyHeaderChanges(h, spec.Headers)
	h.Set(clientHeader, c.client.String())
	proto := "http"
	if c.secure {
		proto = "https"
	}
	h.Set("X-Forwarded-Proto", proto)
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // otherwise net/http would add its own
	}
}

// isWebSocket reports whether a request begins a WebSocket.
func isWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// privateHeaders are header fields that are removed from clients' requests. isPrivateHeader adds those with certain prefixes.
var privateHeaders = map[string]bool{
	// Fields about the identity of the client.
	"forwarded": true, "via": true, "x-real-ip": true, "true-client-ip": true, "client-ip": true, "x-client-ip": true, "x-cluster-client-ip": true,
	"x-original-forwarded-for": true, "x-originating-ip": true, "x-remote-ip": true, "x-remote-addr": true, "x-proxyuser-ip": true,
	"x-envoy-external-address": true, "x-azure-clientip": true, "x-azure-socketip": true, "x-appengine-user-ip": true,
	"cf-connecting-ip": true, "cf-connecting-ipv6": true, "fastly-client-ip": true, "fly-client-ip": true,
	// Fields that replace the path or method that was checked.
	"x-original-url": true, "x-rewrite-url": true, "x-http-method": true, "x-http-method-override": true, "x-method-override": true,
	// Fields for another proxy, or for another protocol.
	"proxy": true, "proxy-authorization": true, "http2-settings": true,
}

// isPrivateHeader reports whether a header field is removed from clients' requests, because it could contradict the rest of the
// request about the client, the path or the method, or is Caisson's own. Dashes and underscores are treated alike, because
// servers that pass fields in environment variables do not distinguish them.
func isPrivateHeader(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	return privateHeaders[name] || strings.HasPrefix(name, "x-forwarded") || strings.HasPrefix(name, "caisson-")
}

// cutCookies removes the cookies with tokens of signed URLs, both those set over TLS and those set without it.
func cutCookies(h http.Header) {
	lines := h["Cookie"]
	if len(lines) == 0 {
		return
	}
	var kept []string
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ";") {
			name, _, _ := strings.Cut(part, "=")
			if part = strings.TrimSpace(part); part != "" && !ownCookie(name) {
				kept = append(kept, part)
			}
		}
	}
	if len(kept) == 0 {
		h.Del("Cookie")
		return
	}
	h.Set("Cookie", strings.Join(kept, "; "))
}

// ownCookie reports whether the cookie of this name has the token of a signed URL, for any route.
func ownCookie(name string) bool {
	name = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(name)), strings.ToLower(hostPrefix))
	return strings.HasPrefix(name, signedurl.Parameter)
}

// cutReferer removes tokens of signed URLs from the header field Referer.
func cutReferer(h http.Header) {
	for i, ref := range h["Referer"] {
		u, err := url.Parse(ref)
		if err != nil {
			h.Del("Referer")
			return
		}
		tokens, rest := cutToken(u.RawQuery)
		if len(tokens) > 0 || strings.Contains(strings.ToLower(u.RawQuery+u.Fragment), signedurl.Parameter) {
			u.RawQuery, u.Fragment = rest, ""
			h["Referer"][i] = u.String()
		}
	}
}

// applyHeaderChanges applies to h the changes c, which are configured for a route.
func applyHeaderChanges(h http.Header, c *caisson.RouteHeaders) {
	if c == nil {
		return
	}
	for _, name := range c.Strip {
		h.Del(name)
	}
	for name, value := range c.Set {
		h.Set(name, value)
	}
}

// modifyResponse removes from a sandbox's answer the header fields that it may not set, and makes the changes of the route.
func modifyResponse(res *http.Response) error {
	c := contextCall(res.Request.Context())
	h := res.Header
	if lines := h["Set-Cookie"]; len(lines) > 0 {
		h["Set-Cookie"] = slices.DeleteFunc(lines, func(line string) bool { return !maySetCookie(c, line) })
	}
	for name := range h {
		if strings.HasPrefix(textproto.CanonicalMIMEHeaderKey(name), "Caisson-") {
			delete(h, name)
		}
	}
	if cors := c.route.spec.CORS; cors != nil {
		for name := range h {
			if strings.HasPrefix(name, "Access-Control-") {
				delete(h, name)
			}
		}
		allowOrigin(h, cors, res.Request.Header.Get("Origin"))
	}
	applyHeaderChanges(h, c.route.spec.ResponseHeaders)
	return nil
}

// maySetCookie reports whether a sandbox may set the cookie in line, the value of a Set-Cookie field. The cookie must not be one
// of Caisson's own and, on a host of the ingress's domain, must not apply to other hosts of that domain.
func maySetCookie(c *call, line string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(line, "= \t"), "=") // a browser may send a nameless cookie's value as its name
	if name, _, _ = strings.Cut(name, ";"); ownCookie(name) {
		return false
	}
	if !c.route.shared {
		return true
	}
	_, attributes, _ := strings.Cut(line, ";")
	for a := range strings.SplitSeq(attributes, ";") {
		if name, _, _ := strings.Cut(a, "="); strings.EqualFold(strings.TrimSpace(name), "domain") {
			return false
		}
	}
	return true
}

// allowOrigin adds the header fields that let a page of origin read an answer. It returns false if cors does not allow that.
func allowOrigin(h http.Header, cors *caisson.RouteCORS, origin string) bool {
	h.Add("Vary", "Origin")
	switch {
	case origin == "":
		return false
	case slices.Contains(cors.Origins, origin):
		h.Set("Access-Control-Allow-Origin", origin)
		if cors.Credentials {
			h.Set("Access-Control-Allow-Credentials", "true")
		}
		return true
	case slices.Contains(cors.Origins, "*") && !cors.Credentials:
		h.Set("Access-Control-Allow-Origin", "*")
		return true
	}
	return false
}

// preflight answers a preflight request, with which a browser asks whether a page of another origin may send a request. Such
// requests have no credentials. It returns false for other requests, and if cors is nil: the sandbox then answers.
func preflight(out *responder, r *http.Request, cors *caisson.RouteCORS) bool {
	if cors == nil || r.Method != http.MethodOptions || r.Header.Get("Origin") == "" || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h := out.Header()
	if allowOrigin(h, cors, r.Header.Get("Origin")) {
		methods := cors.Methods
		if len(methods) == 0 {
			methods = []string{http.MethodGet, http.MethodHead, http.MethodPost}
		}
		h.Set("Access-Control-Allow-Methods", strings.Join(methods, ", "))
		if len(cors.Headers) > 0 {
			h.Set("Access-Control-Allow-Headers", strings.Join(cors.Headers, ", "))
		}
		if cors.MaxAge > 0 {
			h.Set("Access-Control-Max-Age", strconv.Itoa(int(time.Duration(cors.MaxAge)/time.Second)))
		}
	}
	out.WriteHeader(http.StatusNoContent)
	return true
}

// allowsMethod reports whether methods includes method. An empty list includes all methods.
func allowsMethod(methods []string, method string) bool {
	return len(methods) == 0 || slices.Contains(methods, method)
}
