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

// clientHeader is the header field in which the sandbox learns the address of the client. It cannot come from outside.
const clientHeader = "Caisson-Client"

// rewrite changes a request for its sandbox.
func rewrite(p *httputil.ProxyRequest) {
	c := callOf(p.In.Context())
	spec := &c.route.spec
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.URL.RawQuery = "http", address(c.route.sandbox, spec.Port), c.query
	h := p.Out.Header
	for name := range h {
		if private(name) {
			delete(h, name)
		}
	}
	if k := spec.Auth.Kind; k == caisson.RouteAuthBearer || k == caisson.RouteAuthBasic {
		h.Del("Authorization")
	}
	if !isWebSocket(p.In) { // ReverseProxy passes others on: in the new protocol a client could send requests that nobody checks
		delete(h, "Upgrade")
		delete(h, "Connection")
	}
	cutCookies(h)
	cutReferer(h)
	change(h, spec.Headers)
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

// privateHeaders are the header fields that must not come from outside, beside those with the prefixes in private.
var privateHeaders = map[string]bool{
	// Who the client is.
	"forwarded": true, "via": true, "x-real-ip": true, "true-client-ip": true, "client-ip": true, "x-client-ip": true, "x-cluster-client-ip": true,
	"x-original-forwarded-for": true, "x-originating-ip": true, "x-remote-ip": true, "x-remote-addr": true, "x-proxyuser-ip": true,
	"x-envoy-external-address": true, "x-azure-clientip": true, "x-azure-socketip": true, "x-appengine-user-ip": true,
	"cf-connecting-ip": true, "cf-connecting-ipv6": true, "fastly-client-ip": true, "fly-client-ip": true,
	// Another path or method than those that were checked.
	"x-original-url": true, "x-rewrite-url": true, "x-http-method": true, "x-http-method-override": true, "x-method-override": true,
	// Another proxy, or another protocol.
	"proxy": true, "proxy-authorization": true, "http2-settings": true,
}

// private reports whether a header field must not come from outside: it says who the client is or what it asks for otherwise than the
// request does, or is Caisson's own. Servers that pass fields as variables of the environment do not distinguish dashes from underscores.
func private(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	return privateHeaders[name] || strings.HasPrefix(name, "x-forwarded") || strings.HasPrefix(name, "caisson-")
}

// cutCookies removes the cookies with tokens of signed URLs, those of other schemes included.
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

// ownCookie reports whether a cookie has the token of a signed URL, of whatever route.
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

// change makes the changes of a route to a header.
func change(h http.Header, c *caisson.RouteHeaders) {
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

// modifyResponse changes an answer of a sandbox for its client.
func modifyResponse(res *http.Response) error {
	c := callOf(res.Request.Context())
	h := res.Header
	if lines := h["Set-Cookie"]; len(lines) > 0 {
		h["Set-Cookie"] = slices.DeleteFunc(lines, func(line string) bool { return !mayset(c, line) })
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
	change(h, c.route.spec.ResponseHeaders)
	return nil
}

// mayset reports whether a sandbox may set a cookie: not Caisson's own, and none for other hosts of the ingress's domain.
func mayset(c *call, line string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(line, "= \t"), "=") // a browser may send a cookie without a name as if its value were a name
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

// allowOrigin adds the header fields that let a page of origin read an answer.
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

// preflight answers the question of a browser whether a page of another origin may send a request. Such questions have no
// credentials. It returns false for other requests, and if the route leaves such questions to the sandbox.
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

// allowsMethod reports whether methods, or all if there are none, include method.
func allowsMethod(methods []string, method string) bool {
	return len(methods) == 0 || slices.Contains(methods, method)
}
