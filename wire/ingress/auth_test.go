package ingress

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/ingress/signedurl"
)

func TestAuth(t *testing.T) {
	w := newWorld(t, mirror, nil)
	w.configure(
		caisson.RouteSpec{Host: "bearer", Auth: caisson.RouteAuth{Kind: "bearer", Hashes: []string{hash("one"), hash("two")}}},
		caisson.RouteSpec{Host: "basic", Auth: caisson.RouteAuth{Kind: "basic", Hashes: []string{hash("user:pass:word")}}},
		caisson.RouteSpec{Host: "unknown", Auth: caisson.RouteAuth{Kind: "magic"}},
		caisson.RouteSpec{Host: "get", Methods: []string{"GET"}},
	)
	for _, c := range []struct {
		host, authorization string
		want                int
		header              []string
	}{
		{"bearer", "", 401, nil}, {"bearer", "Bearer one", 200, nil}, {"bearer", "bearer two", 200, nil}, {"bearer", "Bearer three", 401, nil},
		{"bearer", "Bearer " + hash("one"), 401, nil}, {"bearer", "Bearer ", 401, nil}, {"bearer", "one", 401, nil}, {"bearer", "Basic one", 401, nil},
		{"basic", "", 401, nil}, {"basic", "Basic dXNlcjpwYXNzOndvcmQ=", 200, nil}, {"basic", "Basic dXNlcjpwYXNz", 401, nil},
		{"basic", "Basic dXNlcjpwYXNzOndvcmQ=", 403, []string{"Origin", "http://evil.example"}},
		{"basic", "Basic dXNlcjpwYXNzOndvcmQ=", 403, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}},
		{"basic", "Basic dXNlcjpwYXNzOndvcmQ=", 200, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}},
		{"unknown", "", 403, nil}, {"get", "", 200, nil},
	} {
		header := c.header
		if c.authorization != "" {
			header = append(header, "Authorization", c.authorization)
		}
		before := w.dials.Load()
		res, body := w.get(c.host, "/", header...)
		if res.StatusCode != c.want {
			t.Errorf("%s with %q: %d %s, want %d", c.host, c.authorization, res.StatusCode, body, c.want)
		}
		switch {
		case c.want == 200 && c.host != "get" && parseSeen(t, body).Header.Get("Authorization") != "":
			t.Errorf("%s: the sandbox sees the credential", c.host)
		case c.want == 401 && res.Header.Get("WWW-Authenticate") == "":
			t.Errorf("%s: no challenge", c.host)
		case c.want != 200 && w.dials.Load() != before:
			t.Errorf("%s with %q: the sandbox is asked before the client is known", c.host, c.authorization)
		}
	}
	res, _ := w.do(w.request(http.MethodPost, "get", "/", nil))
	if res.StatusCode != 405 || res.Header.Get("Allow") != "GET" {
		t.Errorf("POST: %d, %v", res.StatusCode, res.Header)
	}
}

// sign returns a token.
func (w *world) sign(t signedurl.Token) string {
	if t.Expires.IsZero() {
		t.Expires = time.Now().Add(time.Hour)
	}
	return signedurl.Sign(w.private, t)
}

// TestSigned tests that the token of a signed URL moves to a cookie of its host, that it is good for one port of one sandbox, and
// that the sandbox does not see it.
func TestSigned(t *testing.T) {
	w := newWorld(t, mirror, nil)
	w.configure(caisson.RouteSpec{Host: "signed.example", Auth: caisson.RouteAuth{Kind: "signed"}},
		caisson.RouteSpec{Host: "signed.example", Path: "/b", Auth: caisson.RouteAuth{Kind: "signed"}}, caisson.RouteSpec{Host: "signed.example", Path: "/public"})
	host := fmt.Sprintf("3000-%s.%s", sandboxID, domain)
	token := w.sign(signedurl.Token{Sandbox: sandboxID, Port: 3000})
	res, _ := w.get(host, "//evil.example/x?a=1&caisson-token="+token+"&b=%20")
	if res.StatusCode != 302 || res.Header.Get("Location") != "/.//evil.example/x?a=1&b=%20" || res.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	cookies := res.Cookies()
	if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].Secure || cookies[0].Domain != "" || cookies[0].Path != "/" || cookies[0].MaxAge < 3500 || cookies[0].MaxAge > 3600 {
		t.Fatalf("%+v", cookies)
	}
	cookie := cookies[0].Name + "=" + cookies[0].Value
	for _, how := range [][]string{{"Cookie", "x=1; " + cookie}, {"Cookie", cookies[0].Name + "=forged; " + cookie}, {"Caisson-Token", token}} {
		res, body := w.get(host, "/clean?q", how...)
		if s := parseSeen(t, body); res.StatusCode != 200 || s.Query != "q" || strings.Contains(fmt.Sprint(s), token) {
			t.Errorf("%d %s", res.StatusCode, body)
		}
	}
	// Other methods are not redirected.
	res, body := w.do(w.request(http.MethodPost, host, "/?caisson-token="+token+"&x=1", strings.NewReader("body")))
	if s := parseSeen(t, body); res.StatusCode != 200 || s.Query != "x=1" || s.Body != "body" {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	// No other port, sandbox or route, and not after the end.
	other := caisson.NewID(caisson.SandboxPrefix)
	route := w.sign(signedurl.Token{Route: w.routes[0].ID})
	for _, c := range []struct{ host, token string }{
		{fmt.Sprintf("3001-%s.%s", sandboxID, domain), token}, {fmt.Sprintf("3000-%s.%s", other, domain), token}, {"signed.example", token},
		{host, route}, {"signed.example", w.sign(signedurl.Token{Route: caisson.NewID(caisson.RoutePrefix)})},
		{host, w.sign(signedurl.Token{Sandbox: sandboxID, Port: 3000, Expires: time.Now().Add(-time.Second)})}, {host, ""}, {host, "x" + token},
	} {
		names := []string{cookies[0].Name, "caisson-token", "caisson-token-" + string(w.routes[0].ID)}
		for _, how := range [][]string{{"Cookie", strings.Join(names, "="+c.token+"; ") + "=" + c.token}, {"Caisson-Token", c.token}} {
			if res, body := w.get(c.host, "/", how...); res.StatusCode != 401 {
				t.Errorf("%s with %s: %d %s", c.host, c.token, res.StatusCode, body)
			}
		}
		if res, body := w.get(c.host, "/?caisson-token="+c.token, "Cookie", cookie); res.StatusCode != 401 {
			t.Errorf("%s with %s in the query: %d %s", c.host, c.token, res.StatusCode, body)
		}
	}
	// Routes of one host have a cookie each, so that a visit of one ends none of another.
	jar := map[string]string{}
	for i, path := range []string{"/", "/b"} {
		res, _ := w.get("signed.example", path+"?caisson-token="+w.sign(signedurl.Token{Route: w.routes[i].ID}))
		for _, c := range res.Cookies() {
			jar[c.Name] = c.Value
		}
	}
	both := ""
	for name, value := range jar {
		both += name + "=" + value + "; "
	}
	for _, path := range []string{"/", "/b"} {
		if res, body := w.get("signed.example", path, "Cookie", both); res.StatusCode != 200 || strings.Contains(body, "caisson-token") {
			t.Errorf("route %s: %d %s", path, res.StatusCode, body)
		}
	}
	// A service worker would see the addresses of later visits, with their tokens, whatever route of the host it comes from.
	for _, path := range []string{"/sw.js", "/public/sw.js"} {
		if res, body := w.get("signed.example", path, "Cookie", both, "Service-Worker", "script"); res.StatusCode != 403 {
			t.Errorf("a service worker from %s: %d %s", path, res.StatusCode, body)
		}
	}
	if res, body := w.get(host, "/sw.js", "Cookie", cookie, "Service-Worker", "script"); res.StatusCode != 403 {
		t.Errorf("a service worker: %d %s", res.StatusCode, body)
	}
	// Pages of other sandboxes are of the same site, so the browser sends the cookie.
	for _, how := range [][]string{
		{"Origin", fmt.Sprintf("http://3000-%s.%s", other, domain)}, {"Origin", "null"},
		{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, {"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
	} {
		if res, _ := w.get(host, "/", append(how, "Cookie", cookie)...); res.StatusCode != 403 {
			t.Errorf("%v: %d", how, res.StatusCode)
		}
	}
	if res, _ := w.get(host, "/", "Origin", "http://"+host, "Sec-Fetch-Site", "same-origin", "Cookie", cookie); res.StatusCode != 200 {
		t.Errorf("same origin: %d", res.StatusCode)
	}
}
