package ingress

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/ingress/signedurl"
)

// tokenHeader is a header field in which programs may send the token of a signed URL.
const tokenHeader = "Caisson-Token"

// hostPrefix begins the names of cookies that, by the rules of browsers, no other host can set, and that are sent over TLS only.
const hostPrefix = "__Host-"

// cookieName returns the name of the cookie that has the token of a signed URL for the request's route. It differs between the
// routes of a host.
func (c *call) cookieName() string {
	name := signedurl.Parameter + "-" + string(c.route.id)
	if c.route.id == "" {
		name = signedurl.Parameter + "-" + strconv.Itoa(c.route.spec.Port) + "-" + string(c.route.sandbox)
	}
	if c.secure {
		return hostPrefix + name
	}
	return name
}

// authenticate returns an error if the client of a request may not use its route. It sets c.dial, with which the daemon is asked
// for a connection. It may answer the request with a redirection.
func (g *Ingress) authenticate(t *table, c *call, out *responder, r *http.Request) error {
	c.dial = caisson.IngressDial{Route: c.route.id}
	if c.route.signed && r.Header.Get("Service-Worker") != "" {
		return errWorker
	}
	auth := c.route.spec.Auth
	switch auth.Kind {
	case caisson.RouteAuthNone:
		return nil
	case caisson.RouteAuthBearer:
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if strings.EqualFold(scheme, "Bearer") && matches(auth.Hashes, token) {
			return nil
		}
		return &refusal{status: http.StatusUnauthorized, msg: "this route needs a bearer token", challenge: "Bearer"}
	case caisson.RouteAuthBasic:
		user, password, ok := r.BasicAuth()
		switch {
		case !ok || !matches(auth.Hashes, user+":"+password):
			return &refusal{status: http.StatusUnauthorized, msg: "this route needs a user and a password", challenge: `Basic realm="caisson", charset="UTF-8"`}
		case isCrossOrigin(c, r):
			return errForeign
		}
		return nil
	case caisson.RouteAuthSigned:
		return g.authenticateSigned(t, c, out, r)
	default:
		return &refusal{status: http.StatusForbidden, msg: "the route allows no access"}
	}
}

// matches reports whether the hash of secret is one of hashes. Its duration reveals nothing about the hashes.
func matches(hashes []string, secret string) bool {
	sum := sha256.Sum256([]byte(secret))
	text, found := []byte(hex.EncodeToString(sum[:])), 0
	for _, h := range hashes {
		found |= subtle.ConstantTimeCompare(text, []byte(h))
	}
	return found == 1
}

// authenticateSigned authenticates the client of a signed URL by the token in the query, in a header field or in a cookie. A
// token in the query of a GET or HEAD request is moved to a cookie, with a redirection.
func (g *Ingress) authenticateSigned(t *table, c *call, out *responder, r *http.Request) error {
	var query []string
	query, c.query = cutToken(r.URL.RawQuery)
	err := error(&refusal{status: http.StatusUnauthorized, msg: "this address needs a signed URL; make one with: caisson open"})
	check := func(list []string) bool {
		for _, text := range list[:min(len(list), 4)] {
			token, terr := signedurl.Verify(t.key, text, g.cfg.Now())
			if terr == nil && token.Route == c.route.id && (c.route.id != "" || token.Sandbox == c.route.sandbox && token.Port == c.route.spec.Port) {
				c.dial, c.until = caisson.IngressDial{Route: c.route.id, Token: text}, token.Expires
				return true
			}
			if terr != nil {
				err = &refusal{status: http.StatusUnauthorized, msg: caisson.MessageOf(terr)}
			}
		}
		return false
	}
	switch {
	case check(query):
		if (r.Method == http.MethodGet || r.Method == http.MethodHead) && !isWebSocket(r) {
			g.redirect(c, out, r)
		}
		return nil
	case len(query) > 0:
		return err
	case check(r.Header.Values(tokenHeader)):
		return nil
	case !check(c.tokenCookies(r)):
		return err
	case isCrossOrigin(c, r):
		return errForeign
	}
	return nil
}

// redirect answers a request for a signed URL: it sets a cookie with the token, and redirects to the URL without the token.
func (g *Ingress) redirect(c *call, out *responder, r *http.Request) {
	http.SetCookie(out, &http.Cookie{
		Name: c.cookieName(), Value: c.dial.Token, Path: "/", MaxAge: max(1, int(c.until.Sub(g.cfg.Now())/time.Second)),
		HttpOnly: true, Secure: c.secure, SameSite: http.SameSiteLaxMode,
	})
	to := r.URL.EscapedPath()
	if strings.HasPrefix(to, "//") {
		to = "/." + to // a browser would take a path that begins with "//" as the name of another host
	}
	if c.query != "" {
		to += "?" + c.query
	}
	h := out.Header()
	h.Set("Location", to)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	out.WriteHeader(http.StatusFound)
}

// cutToken removes the parameters with tokens from a query, and leaves the rest as it is.
func cutToken(query string) (tokens []string, rest string) {
	if query == "" {
		return nil, ""
	}
	var kept []string
	for p := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(p, "=")
		if name, err := url.QueryUnescape(name); err == nil && strings.EqualFold(name, signedurl.Parameter) {
			if value, err := url.QueryUnescape(value); err == nil {
				tokens = append(tokens, value)
			}
			continue
		}
		kept = append(kept, p)
	}
	return tokens, strings.Join(kept, "&")
}

// tokenCookies returns the tokens of signed URLs of the request's route that r has in cookies.
func (c *call) tokenCookies(r *http.Request) (list []string) {
	for _, x := range r.CookiesNamed(c.cookieName()) {
		list = append(list, x.Value)
	}
	return list
}

// isCrossOrigin reports whether a page of another origin has made a browser send the request, which may have credentials that the
// browser adds by itself. Navigation with GET or HEAD, and origins that the route allows, do not count. The cookie attribute
// SameSite does not prevent cross-origin requests between sandboxes, because their hosts are of one domain and so of one site.
func isCrossOrigin(c *call, r *http.Request) bool {
	if cors := c.route.spec.CORS; cors != nil && cors.Credentials && slices.Contains(cors.Origins, r.Header.Get("Origin")) {
		return false
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Method != http.MethodGet && r.Method != http.MethodHead ||
		r.Header.Get("Sec-Fetch-Dest") != "document"
}
