package httpapi_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/sse"
)

// raw makes a request without the client and returns status, header and body.
func (s *server) raw(t *testing.T, local bool, method, path, body string, header map[string]string) (int, http.Header, string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	base := s.url
	if local {
		base = "http://caisson"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

func TestWhoMay(t *testing.T) {
	s := serve(t)
	root := s.local(t, "")
	_, alice, err := root.CreateToken(t.Context(), "alice", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	_, old, err := root.CreateToken(t.Context(), "alice", "", time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	bearer := "Bearer " + alice.Reveal()
	type headers = map[string]string
	for name, tt := range map[string]struct {
		local        bool
		method, path string
		header       headers
		status       int
	}{
		"health needs nobody":             {false, "GET", "/healthz", nil, 200},
		"health from another site":        {false, "GET", "/healthz", headers{"Origin": "http://evil.example"}, 403},
		"no token":                        {false, "GET", "/api/v1/sandboxes", nil, 401},
		"no token, no such path":          {false, "GET", "/api/v1/nonsense", nil, 401},
		"description needs a token":       {false, "GET", "/api/v1/openapi.json", nil, 401},
		"wrong token":                     {false, "GET", "/api/v1/sandboxes", headers{"Authorization": "Bearer x"}, 401},
		"wrong scheme":                    {false, "GET", "/api/v1/sandboxes", headers{"Authorization": "Basic " + alice.Reveal()}, 401},
		"empty token":                     {false, "GET", "/api/v1/sandboxes", headers{"Authorization": "Bearer "}, 401},
		"expired token":                   {false, "GET", "/api/v1/sandboxes", headers{"Authorization": "Bearer " + old.Reveal()}, 401},
		"token":                           {false, "GET", "/api/v1/sandboxes", headers{"Authorization": bearer}, 200},
		"token, scheme in lower case":     {false, "GET", "/api/v1/sandboxes", headers{"Authorization": "bearer " + alice.Reveal()}, 200},
		"token, own account":              {false, "GET", "/api/v1/sandboxes", headers{"Authorization": bearer, "X-Caisson-Account": "alice"}, 200},
		"token, other account":            {false, "GET", "/api/v1/sandboxes", headers{"Authorization": bearer, "X-Caisson-Account": "bob"}, 403},
		"token, handles":                  {false, "GET", "/api/v1/sandboxes", headers{"Authorization": bearer, "X-Caisson-Handles": "x"}, 403},
		"token passes no handles":         {false, "POST", "/api/v1/handles", headers{"Authorization": bearer, "Connection": "Upgrade", "Upgrade": "caisson-handles"}, 403},
		"token from own site":             {false, "GET", "/api/v1/sandboxes", headers{"Authorization": bearer, "Origin": s.url}, 200},
		"token from another site":         {false, "GET", "/api/v1/sandboxes", headers{"Authorization": bearer, "Origin": "https://evil.example"}, 403},
		"token from nowhere":              {false, "GET", "/api/v1/sandboxes", headers{"Authorization": bearer, "Origin": "null"}, 403},
		"token may not see disk usage":    {false, "GET", "/api/v1/df", headers{"Authorization": bearer}, 403},
		"token may not collect garbage":   {false, "POST", "/api/v1/gc", headers{"Authorization": bearer}, 403},
		"token may not read a backup":     {false, "GET", "/api/v1/daemon/backup", headers{"Authorization": bearer}, 403},
		"token may not examine the host":  {false, "GET", "/api/v1/doctor", headers{"Authorization": bearer}, 403},
		"token may see what this is":      {false, "GET", "/api/v1/info", headers{"Authorization": bearer}, 200},
		"token, exec from another site":   {false, "GET", "/api/v1/sandboxes/x/exec/stream", headers{"Authorization": bearer, "Origin": "http://evil.example", "Connection": "Upgrade", "Upgrade": "websocket"}, 403},
		"socket":                          {true, "GET", "/api/v1/df", nil, 200},
		"socket, description":             {true, "GET", "/api/v1/openapi.json", nil, 200},
		"socket, an account":              {true, "GET", "/api/v1/sandboxes", headers{"X-Caisson-Account": "alice"}, 200},
		"socket, no such account":         {true, "GET", "/api/v1/sandboxes", headers{"X-Caisson-Account": "bob-2"}, 404},
		"socket, no account's name":       {true, "GET", "/api/v1/sandboxes", headers{"X-Caisson-Account": "../x"}, 400},
		"socket, empty account":           {true, "GET", "/api/v1/sandboxes", headers{"X-Caisson-Account": ""}, 400},
		"socket from another site":        {true, "GET", "/api/v1/sandboxes", headers{"Origin": "http://evil.example"}, 403},
		"socket, handles without upgrade": {true, "POST", "/api/v1/handles", nil, 400},
		"no such path":                    {true, "GET", "/api/v1/nonsense", nil, 404},
		"no such method":                  {true, "PATCH", "/api/v1/sandboxes", nil, 404},
		"no HEAD":                         {true, "HEAD", "/api/v1/sandboxes", nil, 404},
		"unclean path":                    {true, "GET", "/api/v1/sandboxes/../tokens", nil, 404},
		"double slash":                    {true, "GET", "/api/v1//sandboxes", nil, 404},
		"exec without upgrade":            {true, "GET", "/api/v1/sandboxes/x/exec/stream", nil, 400},
	} {
		t.Run(name, func(t *testing.T) {
			status, h, body := s.raw(t, tt.local, tt.method, tt.path, "", tt.header)
			if status != tt.status {
				t.Fatalf("%d, want %d: %s", status, tt.status, body)
			}
			if status >= 400 && h.Get("Content-Type") != protocol.ProblemType {
				t.Errorf("an error of type %s", h.Get("Content-Type"))
			}
			if (status == 401) != (h.Get("WWW-Authenticate") != "") {
				t.Errorf("%d with WWW-Authenticate %q", status, h.Get("WWW-Authenticate"))
			}
			for k := range h {
				if strings.HasPrefix(k, "Access-Control") {
					t.Errorf("answers other sites: %s", k)
				}
			}
		})
	}
}

func TestAccountsAreApart(t *testing.T) {
	s := serve(t)
	sb, err := s.remote(t, "alice").Create(t.Context(), caisson.CreateRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*client.Client{"token of bob": s.remote(t, "bob"), "socket as bob": s.local(t, "bob"), "socket": s.local(t, "")} {
		_, err := c.Get(t.Context(), string(sb.ID))
		if caisson.KindOf(err) != caisson.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.local(t, "alice").Get(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	_, _, err = s.remote(t, "alice").CreateToken(t.Context(), "bob", "", 0)
	apitest.Fails(t, err, caisson.Denied, "")
}

// failing answers every Get with its error.
type failing struct {
	caisson.Sandboxes
	err error
}

func (f failing) Get(context.Context, string) (*caisson.Sandbox, error) { return nil, f.err }

func TestErrorsCrossUnchanged(t *testing.T) {
	t.Parallel()
	for kind, status := range map[caisson.Kind]int{
		caisson.Internal: 500, caisson.Invalid: 400, caisson.NotFound: 404, caisson.Conflict: 409, caisson.Denied: 403,
		caisson.Unauthed: 401, caisson.Exhausted: 429, caisson.Unavailable: 503, "": 500,
	} {
		t.Run(string(kind), func(t *testing.T) {
			var want error = &caisson.Error{Kind: kind, Msg: "do this: instead", Err: errors.New("the cause")}
			if kind == caisson.Invalid {
				want = caisson.Invalidf("a.b", "is wrong")
			}
			if kind == "" {
				want = errors.New("the cause")
			}
			s := serve(t, func(c *httpapi.Config) { c.Sandboxes = failing{c.Sandboxes, want} })
			_, got := s.local(t, "").Get(t.Context(), "x")
			if caisson.KindOf(got) != caisson.KindOf(want) || caisson.FieldOf(got) != caisson.FieldOf(want) || caisson.MessageOf(got) != caisson.MessageOf(want) {
				t.Errorf("%v became %v", want, got)
			}
			code, _, body := s.raw(t, true, "GET", "/api/v1/sandboxes/x", "", nil)
			if code != status || strings.Contains(body, "the cause") {
				t.Errorf("%d %s", code, body)
			}
			if logged := strings.Contains(s.log.String(), "the cause"); logged != (status >= 500) {
				t.Errorf("%d, logged %v", status, logged)
			}
		})
	}
}

func TestPanicIsRecovered(t *testing.T) {
	s := serve(t, withFaults)
	_, err := s.local(t, "").Create(t.Context(), caisson.CreateRequest{Name: "panic"})
	apitest.Fails(t, err, caisson.Internal, "")
	if strings.Contains(err.Error(), "as asked") || !strings.Contains(s.log.String(), "as asked") {
		t.Errorf("%v; log: %s", err, s.log)
	}
	if _, err := s.local(t, "").Create(t.Context(), caisson.CreateRequest{}); err != nil {
		t.Error(err)
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	if _, err := s.local(t, "").Create(t.Context(), caisson.CreateRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		method, path, body, field string
	}{
		"unknown field":           {"POST", "/sandboxes", `{"nmae":"x"}`, "nmae"},
		"unknown nested field":    {"POST", "/sandboxes", `{"resources":{"ram":1}}`, "resources.ram"},
		"store-only field":        {"PUT", "/templates/t", `{"name":"t","image":"host","built":{"key":"k","at":"2026-01-01T00:00:00Z","rootfs":{}}}`, "built.rootfs"},
		"wrong type":              {"POST", "/sandboxes", `{"name":1}`, "name"},
		"wrong type in a list":    {"POST", "/sandboxes", `{"command":["a",2]}`, "command[1]"},
		"bad size":                {"POST", "/sandboxes", `{"resources":{"memory":"much"}}`, "resources.memory"},
		"negative size":           {"POST", "/sandboxes", `{"resources":{"memory":-1}}`, "resources.memory"},
		"bad duration":            {"POST", "/sandboxes", `{"ttl":"soon"}`, "ttl"},
		"negative duration":       {"POST", "/sandboxes/a/stop", `{"grace":"-1s"}`, "grace"},
		"too large a number":      {"POST", "/sandboxes/a/exec", `{"command":["a"],"rows":70000}`, "rows"},
		"missing field":           {"POST", "/sandboxes/a/exec", `{}`, "command"},
		"empty command":           {"POST", "/sandboxes/a/exec", `{"command":[]}`, "command"},
		"terminal without stream": {"POST", "/sandboxes/a/exec", `{"command":["a"],"tty":true}`, "tty"},
		"not JSON":                {"POST", "/sandboxes", `{`, "body"},
		"two values":              {"POST", "/sandboxes", `{}{}`, "body"},
		"not an object":           {"POST", "/sandboxes", `[]`, "body"},
		"no body":                 {"POST", "/sandboxes", ``, ""},
		"too large":               {"POST", "/sandboxes", `{"name":"` + strings.Repeat("x", 2<<20) + `"}`, ""},
		"mount without handle":    {"POST", "/sandboxes", `{"mounts":[{"source":"/etc","target":"/x"}]}`, "mounts"},
		"unknown parameter":       {"GET", "/sandboxes?stat=running", "", "stat"},
		"unknown state":           {"GET", "/sandboxes?state=walking", "", "state[0]"},
		"bad label":               {"GET", "/sandboxes?label=x", "", "label"},
		"bad limit":               {"GET", "/sandboxes?limit=x", "", "limit"},
		"large limit":             {"GET", "/sandboxes?limit=1001", "", "limit"},
		"bad cursor":              {"GET", "/sandboxes?after=x", "", "after"},
		"no path":                 {"GET", "/sandboxes/a/files", "", "path"},
		"relative path":           {"GET", "/sandboxes/a/files?path=etc", "", "path"},
		"zero byte":               {"GET", "/sandboxes/a/files?path=/a%00b", "", "path"},
		"bad mode":                {"PUT", "/sandboxes/a/files?path=/a&mode=rwx", "x", "mode"},
		"negative offset":         {"GET", "/sandboxes/a/files?path=/a&offset=-1", "", "offset"},
		"pid 0":                   {"POST", "/sandboxes/a/kill", `{"pid":0,"signal":9}`, "pid"},
		"signal 0":                {"POST", "/sandboxes/a/kill", `{"pid":2,"signal":0}`, "signal"},
		"other name":              {"PUT", "/templates/t", `{"name":"u","image":"host"}`, "name"},
		"bad token id":            {"DELETE", "/tokens/x", "", "id"},
		"bad account":             {"POST", "/tokens", `{"account":"A B","name":""}`, "account"},
		"handle for nothing":      {"POST", "/images/pull", `{"reference":"dir:/x"}`, "reference"},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, body := s.raw(t, true, tt.method, protocol.Prefix+tt.path, tt.body, nil)
			var p protocol.Problem
			if err := json.Unmarshal([]byte(body), &p); err != nil {
				t.Fatalf("%d %s: %v", status, body, err)
			}
			if status != 400 || p.Status != 400 || p.Code != caisson.Invalid || p.Field != tt.field || p.Detail == "" || strings.ContainsAny(p.Detail, "\x00\n") {
				t.Errorf("%d %s, want field %q", status, body, tt.field)
			}
		})
	}
	if n := count(t, s.local(t, "")); n != 1 {
		t.Errorf("%d sandboxes were made", n)
	}
}

// hidden looks for what must not leave anywhere in JSON.
func hidden(t *testing.T, where string, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if k == "rootfs" && where != ".depends" {
				t.Errorf("%s.%s is in an answer", where, k)
			}
			hidden(t, "."+k, e)
		}
	case []any:
		for _, e := range v {
			hidden(t, where, e)
		}
	case string:
		if strings.Contains(v, "coretest-") || strings.Contains(v, "[redacted]") { // "coretest-" is in the path of the data directory
			t.Errorf("%s is %q", where, v)
		}
	}
}

func TestStoreOnlyFieldsStayInside(t *testing.T) {
	t.Parallel()
	s := serve(t)
	seen := 0
	for _, step := range []struct{ method, path, body string }{
		{"POST", "/sandboxes", `{"name":"a"}`},
		{"GET", "/sandboxes", ""},
		{"GET", "/sandboxes/a", ""},
		{"POST", "/sandboxes/a/extend", `{"ttl":"1h"}`},
		{"POST", "/sandboxes/a/pause", ""},
		{"POST", "/sandboxes/a/resume", ""},
		{"POST", "/sandboxes/a/suspend", ""},
		{"POST", "/sandboxes/a/wake", ""},
		{"POST", "/sandboxes/a/stop", ""},
		{"POST", "/sandboxes/a/start", ""},
		{"POST", "/sandboxes/a/snapshot", `{"name":"s"}`},
		{"POST", "/sandboxes/a/fork", `{}`},
		{"POST", "/sandboxes/s/fork", `{"count":2}`},
		{"GET", "/snapshots", ""},
		{"GET", "/snapshots/s", ""},
		{"PUT", "/templates/t", `{"name":"t","image":"host","setup":[{"run":["echo"]}]}`},
		{"POST", "/templates/t/build", ""},
		{"GET", "/templates/t", ""},
		{"GET", "/templates", ""},
		{"POST", "/images/pull", `{"reference":"debian:12"}`},
		{"POST", "/images/pull", `{"reference":"debian:12","offline":true}`},
		{"GET", "/images", ""},
		{"POST", "/tokens", `{"account":"local","name":"x"}`},
		{"GET", "/tokens", ""},
	} {
		status, h, body := s.raw(t, true, step.method, protocol.Prefix+step.path, step.body, map[string]string{"Idempotency-Key": step.path})
		if status/100 != 2 {
			t.Fatalf("%s %s: %d %s", step.method, step.path, status, body)
		}
		values := []string{body}
		if h.Get("Content-Type") == protocol.EventType {
			values = nil
			for r := sse.NewReader(strings.NewReader(body), protocol.MaxEvent); ; {
				e, err := r.Next()
				if err != nil {
					break
				}
				values = append(values, string(e.Data))
			}
		}
		for _, value := range values {
			var v any
			if err := json.Unmarshal([]byte(value), &v); err != nil {
				t.Fatalf("%s: %v", value, err)
			}
			hidden(t, step.path, v)
			seen++
		}
	}
	if seen < 20 {
		t.Errorf("only %d answers were seen", seen)
	}
	for name, schema := range document(t, s) {
		if _, ok := schema.Properties["rootfs"]; ok && name != "Dependencies" {
			t.Errorf("the description shows %s.rootfs", name)
		}
	}
}

func document(t *testing.T, s *server) map[string]struct{ Properties map[string]any } {
	t.Helper()
	b, err := s.api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Components.Schemas
}

func TestTLS(t *testing.T) {
	s := serve(t)
	_, secret, err := s.local(t, "").CreateToken(t.Context(), "alice", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	secure := httptest.NewUnstartedServer(nil)
	secure.Config = httpapi.Server(s.api.Remote(), discard())
	secure.StartTLS()
	t.Cleanup(secure.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	c := connect(t, client.Config{URL: secure.URL, Token: secret, CAFile: ca})
	sb, err := c.Create(t.Context(), caisson.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Exec(t.Context(), string(sb.ID), caisson.ExecRequest{Command: []string{"echo", "sealed"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if b, err := io.ReadAll(p.Stdout()); string(b) != "sealed\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	_, err = connect(t, client.Config{URL: secure.URL, Token: secret}).Info(t.Context())
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok || caisson.KindOf(err) != caisson.Unavailable {
		t.Errorf("a stranger's certificate is trusted: %v", err)
	}
}

// TestBelowPrefix tests that a request without the prefix of the API is told it.
func TestBelowPrefix(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for path, want := range map[string]bool{"/v1/runs": true, "/api/v1/rnus": false} {
		if status, _, body := s.raw(t, true, http.MethodGet, path, "", nil); status != 404 || strings.Contains(body, "all requests are below /api/v1") != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}
