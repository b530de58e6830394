package coder

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

func toolServer(t testing.TB, h http.HandlerFunc) map[string]tool {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	s, err := parseServer(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]tool{}
	for _, tool := range runTools(s) {
		all[tool.name] = tool
	}
	return all
}

func TestParseServer(t *testing.T) {
	for text, want := range map[string]server{
		"http://host": {"http://host", "host:80"}, "http://host/": {"http://host", "host:80"},
		"http://host:8080/a/b/": {"http://host:8080/a/b", "host:8080"},
		"http://[::1]/a":        {"http://[::1]/a", "[::1]:80"}, "http://[::1]:81": {"http://[::1]:81", "[::1]:81"},
		"": {}, "host": {}, "https://host": {}, "http://": {}, "http:///a": {},
		"http://me@host": {}, "http://host?a": {}, "http://host/#a": {}, "http://host/ a": {}, "http://host/a\r\nb": {}, "http://höst": {}, "http://host:x": {}, "http://host/%zz": {},
	} {
		if got, err := parseServer(text); got != want || (err == nil) != (want != server{}) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestRunAgent(t *testing.T) {
	for _, row := range []struct {
		name   string
		args   string
		post   string // answer to POST, with status 403 if it begins with !
		gets   []string
		failed bool
		want   string
	}{
		{"an answer", `{"agent":"a","prompt":"p","model":"m"}`, `{"id":"r1","state":"queued"}`, []string{`{"id":"r1","state":"running"}`, `{"id":"r1","state":"succeeded","answer":"forty-two","cut":true}`}, false, "forty-two\n[the answer was longer]"},
		{"ended at once", `{"agent":"a","prompt":"p"}`, `{"id":"r1","state":"succeeded","answer":"yes"}`, nil, false, "yes"},
		{"a failure", `{"agent":"a","prompt":"p"}`, `{"id":"r1","state":"running"}`, []string{`{"state":"failed","answer":"half","error":{"code":"timeout","message":"too slow"}}`}, true, "Run r1 failed: timeout: too slow\nhalf"},
		{"a failure without a reason", `{"agent":"a","prompt":"p"}`, `{"id":"r1","state":"failed"}`, nil, true, "Run r1 failed"},
		{"refused", `{"agent":"a","prompt":"p"}`, `!{"error":{"message":"not that agent"}}`, nil, true, "not that agent"},
		{"refused later", `{"agent":"a","prompt":"p"}`, `{"id":"r1","state":"running"}`, []string{`!{"detail":"gone"}`}, true, "Nothing is known of what became of run r1: refused (403): gone"},
		{"an id that is a path", `{"agent":"a","prompt":"p"}`, `{"id":"../x","state":"running"}`, nil, true, "no id"},
		{"no JSON", `{"agent":"a","prompt":"p"}`, `hello`, nil, true, "not started"},
		{"too long", `{"agent":"a","prompt":"p"}`, strings.Repeat(" ", maxToolAnswer+1), nil, true, "larger than"},
		{"no agent", `{"prompt":"p"}`, ``, nil, true, "list_agents"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var n atomic.Int64
			tools := toolServer(t, func(w http.ResponseWriter, r *http.Request) {
				body := row.post
				if r.Method == "GET" {
					if r.URL.String() != "/v1/runs/r1?wait=30" {
						t.Errorf("asked for %s", r.URL)
					}
					body = row.gets[n.Add(1)-1]
				} else {
					var got map[string]string
					if err := json.NewDecoder(r.Body).Decode(&got); err != nil || r.URL.Path != "/v1/runs" || got["agent"] != "a" || got["prompt"] != "p" {
						t.Errorf("%s %v, %v", r.URL, got, err)
					}
				}
				if rest, no := strings.CutPrefix(body, "!"); no {
					w.WriteHeader(http.StatusForbidden)
					body = rest
				}
				w.Write([]byte(body))
			})
			got := tools["run_agent"].run(t.Context(), []byte(row.args))
			if got.failed != row.failed || !strings.Contains(got.text, row.want) {
				t.Errorf("failed %v: %.300s", got.failed, got.text)
			}
			if int(n.Load()) != len(row.gets) {
				t.Errorf("asked %d times", n.Load())
			}
		})
	}
}

func TestListAgents(t *testing.T) {
	for _, row := range []struct {
		body   string
		failed bool
		want   string
	}{
		{`[{"id":"a","name":"A","description":"does a"}]`, false, "a: A. does a\n"},
		{`{"agents":[{"id":"b","name":"B"}]}`, false, "b: B. \n"},
		{`[]`, false, "[there are none]"},
		{`7`, true, "cannot be understood"},
		{`{`, true, "cannot be listed"},
	} {
		tools := toolServer(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/agents" {
				t.Errorf("asked for %s", r.URL)
			}
			w.Write([]byte(row.body))
		})
		if got := tools["list_agents"].run(t.Context(), nil); got.failed != row.failed || !strings.Contains(got.text, row.want) {
			t.Errorf("%s: %+v", row.body, got)
		}
	}
}
