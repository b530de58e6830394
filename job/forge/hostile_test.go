package forge

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/internal/workertest"
)

// against returns a Tool and a Server for a forge that answers with h.
func against(t *testing.T, kind caisson.Forge, h http.HandlerFunc) (*Tool, Server) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return NewTool(workertest.Runner(t)), Server{
		Forge: kind, API: srv.URL + "/api", Project: "a/b", Web: srv.URL + "/a/b", Token: caisson.NewSecret(testToken), Local: true,
	}
}

var somePull = PullRequest{Head: "caisson/1", Base: "main", Title: "x"}

// TestErrorsKeepTheToken: a forge sends the token back in every way in which an error could show it.
func TestErrorsKeepTheToken(t *testing.T) {
	basic := base64.StdEncoding.EncodeToString([]byte("ada:" + testToken))
	echo := strings.Repeat("x", maxErrorText-10) + " " + testToken + " " + testToken
	answers := map[string]http.HandlerFunc{
		"message": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(422)
			fmt.Fprintf(w, `{"message":%q}`, testToken)
		},
		"cut": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(422)
			fmt.Fprintf(w, `{"message":%q}`, echo)
		},
		"basic": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(403)
			fmt.Fprintf(w, `{"message":["%s %s"]}`, basic, testToken)
		},
		"fields": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"message":{%q:[%q]},"error":%q}`, testToken, testToken, testToken)
		},
		"errors": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(422)
			fmt.Fprintf(w, `{"errors":[{"message":%q},{"field":%q,"code":"x"}]}`, testToken, testToken)
		},
		"escaped": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			fmt.Fprintf(w, `{"message":"\u0067%s"}`, testToken[1:])
		},
		"html": func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<p>"+testToken) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://evil.example.org/"+testToken, http.StatusFound)
		},
		"scheme": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, testToken+"://x/", http.StatusFound) },
		"header": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", testToken)
			w.WriteHeader(429)
		},
		"json": func(w http.ResponseWriter, r *http.Request) {
			json.NewEncoder(w).Encode([]any{map[string]any{"number": testToken, "state": testToken, "iid": testToken}})
		},
	}
	for name, h := range answers {
		each(t, func(t *testing.T, kind caisson.Forge) {
			tool, s := against(t, kind, h)
			for _, secret := range []string{testToken, "ada:" + testToken} {
				s.Token = caisson.NewSecret(secret)
				_, err := tool.Pull(t.Context(), s, somePull)
				if err == nil || strings.Contains(err.Error(), testToken[4:20]) || secret != testToken && strings.Contains(err.Error(), basic) {
					t.Errorf("%s: %v", name, err)
				}
				if caisson.KindOf(err) == caisson.Internal {
					t.Errorf("%s: nobody is told: %v", name, err)
				}
			}
		})
	}
}

// TestHostileAnswers: none of these answers is a pull request.
func TestHostileAnswers(t *testing.T) {
	write := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) }
	}
	pull := `"head":{"ref":"caisson/1","repo":{"id":1}},"base":{"ref":"main","repo":{"id":1}},"source_branch":"caisson/1","target_branch":"main"`
	for name, h := range map[string]http.HandlerFunc{
		"nothing":  write(""),
		"null":     write("null"),
		"list":     write("[[]]"),
		"negative": write(`[{"number":-1,"iid":-1,"state":"open",` + pull + `}]`),
		"overflow": write(`[{"number":99999999999999999999,"iid":99999999999999999999,` + pull + `}]`),
		"deep":     write(strings.Repeat("[", 100_000)),
		"endless":  func(w http.ResponseWriter, _ *http.Request) { endless(w) },
		"trickle": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "[")
		},
		"no status": func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) },
		"controls": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(422)
			fmt.Fprint(w, `{"message":"a\u001b[31m\n\u202e\u0000b"}`)
		},
		"post as get": func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				http.Redirect(w, r, "/api/x", http.StatusFound)
				return
			}
			fmt.Fprint(w, `[]`)
		},
		"loop": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"/x", http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, kind caisson.Forge) {
				tool, s := against(t, kind, h)
				p, err := tool.Pull(t.Context(), s, somePull)
				if err == nil || caisson.KindOf(err) == caisson.Internal {
					t.Fatalf("%+v, %v", p, err)
				}
				if m := caisson.MessageOf(err); len(m) > maxMessage+10 || strings.ContainsAny(m, "\x1b\n\x00\u202e") {
					t.Errorf("%q", m)
				}
			})
		})
	}
}

func endless(w http.ResponseWriter) {
	w.Write([]byte("["))
	for range 4 * maxAnswer / 1024 {
		if _, err := w.Write([]byte(strings.Repeat(" ", 1024))); err != nil {
			return
		}
	}
}

// TestRedirectAtHome: GitHub sends this redirect for a repository that was renamed.
func TestRedirectAtHome(t *testing.T) {
	tool, s := against(t, caisson.ForgeGitHub, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer "+testToken:
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/api/repos/a/b/pulls":
			http.Redirect(w, r, "/api/repositories/7/pulls?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
		case r.Method == http.MethodGet:
			fmt.Fprint(w, "[]")
		default:
			var in struct{ Head string }
			json.NewDecoder(r.Body).Decode(&in)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"number":3,"state":"open","draft":true,"head":{"ref":%q}}`, in.Head)
		}
	})
	p, err := tool.Pull(t.Context(), s, somePull)
	if err != nil || p.Number != 3 || p.URL != s.Web+"/pull/3" {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestTokenIsNotSentInTheOpen: without TLS a token is sent to this host only, regardless of the host name.
func TestTokenIsNotSentInTheOpen(t *testing.T) {
	tool := NewTool(workertest.Runner(t))
	s := Server{Forge: caisson.ForgeGitea, Project: "a/b", Token: caisson.NewSecret(testToken), Local: true}
	for api, kind := range map[string]caisson.Kind{
		"http://192.0.2.1/api/v1": caisson.Denied, "http://example.org/api/v1": caisson.Denied, "https://169.254.169.254": caisson.Denied,
		"https://0.0.0.0": caisson.Denied, "https://[::]": caisson.Denied, "ftp://localhost/": caisson.Invalid, "": caisson.Invalid,
	} {
		s.API = api
		_, err := tool.Pull(t.Context(), s, somePull)
		if caisson.KindOf(err) != kind {
			t.Errorf("%s: %v", api, err)
		}
	}
	s.Local, s.Host.PublicAddresses = false, []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")}
	for _, s.API = range []string{"https://127.0.0.1:1", "https://203.0.113.9:1", "https://[64:ff9b::cb00:7109]"} {
		_, err := tool.Pull(t.Context(), s, somePull)
		wantKind(t, err, caisson.Denied)
	}
}

func TestReachable(t *testing.T) {
	for _, tt := range []struct {
		addr, scheme          string
		loopback, local, want bool
	}{
		{"140.82.121.3", "https", false, false, true}, {"140.82.121.3", "http", false, true, false}, {"127.0.0.1", "http", true, true, true},
		{"::ffff:127.0.0.1", "http", true, true, true}, {"10.0.0.1", "http", true, true, false}, {"127.0.0.1", "http", true, false, false},
		{"10.0.0.1", "https", false, true, true}, {"10.0.0.1", "https", false, false, false}, {"169.254.169.254", "https", true, true, false},
		{"203.0.113.9", "https", false, false, false}, {"64:ff9b::cb00:7109", "https", false, false, false}, {"203.0.113.9", "https", false, true, true},
		{"203.0.113.10", "https", false, false, true},
	} {
		own := reach.Host{PublicAddresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")}}
		if err := checkReachable(netip.MustParseAddr(tt.addr), tt.scheme, tt.loopback, tt.local, own); (err == nil) != tt.want {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

func TestBelieves(t *testing.T) {
	s := Server{Forge: caisson.ForgeGitHub, API: "https://api.example.org/v3", Web: "https://git.example.org:8443/a/b", Token: caisson.NewSecret(testToken)}
	for raw, want := range map[string]bool{
		"https://git.example.org/a/b/pull/1": true, "https://GIT.example.org:8443/x": true, "https://api.example.org/x": true, "http://git.example.org/x": false,
		"": false, "javascript:alert(1)": false, "//git.example.org/x": false, "https://evil.org/git.example.org": false, "https://git.example.org@evil.org/": false,
		"https://git.example.org.evil.org/": false, "https://user@git.example.org/": false, "https://git.example.org/a b": false, "https://git.example.org/\n": false,
		"https://git.example.org/\u202e": false, "https://evil.org\\@git.example.org/": false, "https://git.example.org/?" + testToken: false,
		"https://git.example.org/" + strings.Repeat("a", maxURL): false, "data:text/html,x": false, "https:///x": false,
	} {
		if s.trustsURL(raw) != want {
			t.Errorf("%q", raw)
		}
	}
}

func TestWait(t *testing.T) {
	now := time.Now()
	in := func(d time.Duration) string { return fmt.Sprint(now.Add(d).Unix()) }
	for _, tt := range []struct {
		status  int
		header  map[string]string
		words   string
		limited bool
		least   time.Duration
		most    time.Duration
	}{
		{200, map[string]string{"Retry-After": "5"}, "", false, 0, 0},
		{403, nil, "no access", false, 0, 0},
		{403, map[string]string{"X-RateLimit-Remaining": "9"}, "", false, 0, 0},
		{403, map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": in(20 * time.Minute)}, "", true, 19 * time.Minute, 20 * time.Minute},
		{403, nil, "You have exceeded a secondary rate limit", true, time.Minute, time.Minute},
		{403, map[string]string{"Retry-After": "7"}, "", true, 7 * time.Second, 7 * time.Second},
		{429, map[string]string{"RateLimit-Reset": in(time.Minute)}, "", true, 59 * time.Second, time.Minute},
		{429, map[string]string{"Retry-After": now.Add(2 * time.Minute).UTC().Format(http.TimeFormat)}, "", true, time.Minute, 2 * time.Minute},
		{429, map[string]string{"Retry-After": "-5"}, "", true, time.Second, time.Second},
		{429, map[string]string{"Retry-After": "999999999"}, "", true, maxRetryDelay, maxRetryDelay},
		{429, map[string]string{"Retry-After": "99999999999999999999"}, "", true, time.Second, time.Second},
		{429, map[string]string{"X-RateLimit-Reset": "9999999999999999999999"}, "", true, time.Minute, time.Minute},
		{503, map[string]string{"Retry-After": "9"}, "", false, 9 * time.Second, 9 * time.Second},
	} {
		h := http.Header{}
		for k, v := range tt.header {
			h.Set(k, v)
		}
		after, limited := retryDelay(h, tt.status, tt.words, now)
		if limited != tt.limited || after < tt.least || after > tt.most {
			t.Errorf("%d %v: %v, %v", tt.status, tt.header, after, limited)
		}
	}
}

func TestPlainText(t *testing.T) {
	for in, want := range map[string]string{" a\nb\x1b[0m\u202e c ": "a b [0m c", "\xff": "", "": "", strings.Repeat("é", 300): strings.Repeat("é", maxTitle-1) + "…"} {
		if got := plainTitle(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	if got := plainBody("a\r\n\tb\x00\u200bc\n"); got != "a\n\tbc\n" {
		t.Errorf("%q", got)
	}
	if got := plainBody(strings.Repeat("é", maxBody)); len(got) > maxBody+3 {
		t.Errorf("%d bytes", len(got))
	}
	if got := escapeQuickActions("/merge\n /close\nsee a/b\n\n\t/x"); got != "\\/merge\n \\/close\nsee a/b\n\n\t\\/x" {
		t.Errorf("%q", got)
	}
}

func FuzzWords(f *testing.F) {
	f.Add(`{"message":"x","errors":[{"resource":"PullRequest","field":"head","code":"invalid"},"y"]}`)
	f.Add(`{"message":{"a":["b"]},"error":"c","error_description":"d"}`)
	f.Add(`{"message":["` + testToken + `"]}`)
	f.Fuzz(func(t *testing.T, body string) {
		words := errorMessage([]byte(body), testToken)
		if len(words) > maxErrorText+len("…") || strings.ContainsAny(words, "\n\r\x1b\x00") || strings.Contains(words, testToken) {
			t.Errorf("%q", words)
		}
	})
}

func FuzzBelieves(f *testing.F) {
	s := Server{Forge: caisson.ForgeGitHub, API: "https://api.github.com", Web: "https://github.com/a/b"}
	f.Add("https://github.com/a/b/pull/1")
	f.Add("https://github.com@evil.org")
	f.Fuzz(func(t *testing.T, raw string) {
		if !s.trustsURL(raw) {
			return
		}
		u, err := url.Parse(raw)
		if h := strings.ToLower(u.Hostname()); err != nil || u.Scheme != "https" || h != "github.com" && h != "api.github.com" {
			t.Errorf("%q", raw)
		}
	})
}
