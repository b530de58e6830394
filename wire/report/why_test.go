package report

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

var at = time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)

func someRefused() []caisson.Decision {
	return []caisson.Decision{
		{At: at, Kind: "name", Rule: -1, Reason: "no rule allows it", Name: "evil.example", Count: 1},
		{At: at, Kind: "flow", Rule: 2, Reason: "rule 2 denies *.example.com", Name: "a.example.com", Address: "192.0.2.1:8443", Protocol: "tcp", Count: 12},
		{At: at, Kind: "flow", Rule: -1, Reason: "no rule allows it", Address: "[2001:db8::1]:53", Protocol: "udp", Count: 1},
		{At: at, Kind: "request", Rule: -1, Reason: "the host \x1b]0;x\a\n\u202e is not allowed", Name: "$(reboot)\x1b[2J", Count: 1},
		{At: at, Kind: "request", Rule: -1, Reason: "no", Name: "--yes", Count: 1},
	}
}

func get(t *testing.T, target string, header ...string) (int, http.Header, string) {
	t.Helper()
	h := WhyHandler("sb-1", someRefused, func(host string) caisson.Verdict {
		return caisson.Verdict{Allowed: host == "good.example", Reason: "because of " + host}
	})
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Header(), w.Body.String()
}

func TestWhy(t *testing.T) {
	const (
		evil  = "2030-01-02T03:04:05Z  refused once  name evil.example: no rule allows it; ask the operator to run: caisson policy explain sb-1 evil.example\n"
		com   = "2030-01-02T03:04:05Z  refused 12 times since  flow a.example.com 192.0.2.1:8443 tcp: rule 2 denies *.example.com; ask the operator to run: caisson policy explain sb-1 a.example.com:8443\n"
		six   = "2030-01-02T03:04:05Z  refused once  flow [2001:db8::1]:53 udp: no rule allows it; ask the operator to run: caisson policy explain sb-1 '[2001:db8::1]:53/udp'\n"
		shell = `2030-01-02T03:04:05Z  refused once  request $(reboot)\x1b[2J: the host \x1b]0;x\x07\x0a\u202e is not allowed; ask the operator to run: caisson policy explain sb-1` + "\n"
		flag  = "2030-01-02T03:04:05Z  refused once  request --yes: no; ask the operator to run: caisson policy explain sb-1\n"
		none  = "Nothing was refused lately.\n"
	)
	for target, want := range map[string]string{
		"/why":                           evil + com + six + shell + flag,
		"/why?host=evil.example":         "evil.example is now refused: because of evil.example\n" + evil,
		"/why?host=EXAMPLE.com.":         "example.com is now refused: because of example.com\n" + com,
		"/why?host=a.example.com:8443":   "a.example.com is now refused: because of a.example.com\n" + com,
		"/why?host=192.0.2.1":            "192.0.2.1 is now refused: because of 192.0.2.1\n" + com,
		"/why?host=2001:db8::1":          "2001:db8::1 is now refused: because of 2001:db8::1\n" + six,
		"/why?host=%5B2001:db8::1%5D:53": "2001:db8::1 is now refused: because of 2001:db8::1\n" + six,
		"/why?host=good.example":         "good.example is now allowed: because of good.example\n" + none,
		"/why?host=%1b%5b2J":             `\x1b[2j is now refused: because of \x1b[2j` + "\n" + none,
	} {
		code, header, body := get(t, target)
		if code != http.StatusOK || body != want {
			t.Errorf("%s: %d\n%swant\n%s", target, code, body, want)
		}
		if header.Get("Content-Type") != "text/plain; charset=utf-8" || header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", target, header)
		}
	}
	if code, _, _ := get(t, "/why?host="+strings.Repeat("x", 1000)); code != http.StatusBadRequest {
		t.Errorf("a long host: %d", code)
	}
}

func TestWhyJSON(t *testing.T) {
	code, header, body := get(t, "/why?host=evil.example", "Accept", "application/json, text/plain")
	if code != http.StatusOK || header.Get("Content-Type") != "application/json; charset=utf-8" {
		t.Fatalf("%d %v", code, header)
	}
	var p page
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatal(err)
	}
	if p.Host != "evil.example" || p.Now == nil || p.Now.Allowed || len(p.Refused) != 1 ||
		p.Refused[0].Command != "caisson policy explain sb-1 evil.example" || p.Refused[0].Reason != "no rule allows it" {
		t.Errorf("%+v", p)
	}
	_, _, body = get(t, "/why?format=json")
	if err := json.Unmarshal([]byte(body), &p); err != nil || len(p.Refused) != 5 {
		t.Errorf("%v: %d", err, len(p.Refused))
	}
	if strings.ContainsAny(body, "\x1b\a\u202e") {
		t.Errorf("unsafe characters in %q", body)
	}
	empty := httptest.NewRecorder()
	WhyHandler("sb-1", func() []caisson.Decision { return nil }, nil).ServeHTTP(empty, httptest.NewRequest("GET", "/why?format=json&host=x", nil))
	if got := empty.Body.String(); got != `{"host":"x","refused":[]}`+"\n" {
		t.Errorf("nothing is %q", got)
	}
}

func TestRootAndTheRest(t *testing.T) {
	code, _, body := get(t, "/")
	if code != http.StatusOK || strings.Count(body, "\n") != 6 || !strings.Contains(body, "http://caisson.internal/why") || !strings.Contains(body, "policy show sb-1\n") {
		t.Errorf("/: %d %q", code, body)
	}
	if code, _, _ := get(t, "/etc/passwd"); code != http.StatusNotFound {
		t.Errorf("elsewhere: %d", code)
	}
	s := httptest.NewServer(WhyHandler("sb-1", someRefused, nil))
	defer s.Close()
	for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "PUT": 405, "DELETE": 405, "OPTIONS": 405, "TRACE": 405, "X": 405} {
		r, err := http.NewRequest(method, s.URL+"/why", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || (method == "HEAD" && len(b) > 0) || (want == 405 && resp.Header.Get("Allow") != "GET, HEAD") {
			t.Errorf("%s: %d %q", method, resp.StatusCode, b)
		}
	}
}

// FuzzWhy checks that a sandbox and its operator receive only printable text, and valid JSON, for any input.
func FuzzWhy(f *testing.F) {
	f.Add("evil.example", "192.0.2.1:443", "no rule", "evil.example")
	f.Add("\x1b[2J", "::1", "\xff\u202e\n", "[::1]:53")
	f.Add("a;b", "", "", "a%00b")
	f.Fuzz(func(t *testing.T, name, address, reason, host string) {
		d := caisson.Decision{Kind: "flow", Name: name, Address: address, Reason: reason, Count: 1, Protocol: "udp"}
		h := WhyHandler("sb-1", func() []caisson.Decision { return []caisson.Decision{d} }, func(host string) caisson.Verdict { return caisson.Verdict{Reason: host} })
		for _, format := range []string{"", "json"} {
			r := httptest.NewRequest("GET", "/why", nil)
			q := r.URL.Query()
			q.Set("host", host)
			q.Set("format", format)
			r.URL.RawQuery = q.Encode()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				continue
			}
			body := w.Body.String()
			for _, c := range body {
				if c < 0x20 && c != '\n' || c == 0x7f || c == '\u202e' {
					t.Fatalf("%q is in %q", c, body)
				}
			}
			if format == "json" && !json.Valid([]byte(body)) {
				t.Fatalf("not JSON: %q", body)
			}
		}
		target := strings.TrimPrefix(whyServer{sandbox: "sb-1"}.command(d), "caisson policy explain sb-1")
		if strings.ContainsAny(strings.TrimPrefix(target, " "), " ;$`\"\\|&<>(){}!#~\n\x1b") || strings.HasPrefix(target, " -") {
			t.Fatalf("for a shell: %q", target)
		}
	})
}
