package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

func TestRunRequests(t *testing.T) {
	s := serve(t)
	waiting, err := s.local(t, "").StartRun(t.Context(), caisson.RunRequest{Agent: "caisson", Prompt: "wait"})
	if err != nil {
		t.Fatal(err)
	}
	run := "/api/v1/runs/" + string(waiting.ID)
	for name, tt := range map[string]struct {
		method, path, body string
		status             int
		field              string
	}{
		"no agent":          {"POST", "/api/v1/runs", `{"prompt":"x"}`, 400, "agent"},
		"no prompt":         {"POST", "/api/v1/runs", `{"agent":"caisson"}`, 400, "prompt"},
		"empty prompt":      {"POST", "/api/v1/runs", `{"agent":"caisson","prompt":""}`, 400, "prompt"},
		"huge prompt":       {"POST", "/api/v1/runs", `{"agent":"caisson","prompt":"` + strings.Repeat("a", 1<<20) + `"}`, 201, ""},
		"too huge":          {"POST", "/api/v1/runs", `{"agent":"caisson","prompt":"` + strings.Repeat("a", 1<<20+1) + `"}`, 400, "prompt"},
		"beyond all":        {"POST", "/api/v1/runs", `{"agent":"caisson","prompt":"` + strings.Repeat("a", protocol.MaxRunRequest) + `"}`, 400, ""},
		"unknown field":     {"POST", "/api/v1/runs", `{"agent":"caisson","prompt":"x","temperature":1}`, 400, "temperature"},
		"session's key":     {"POST", "/api/v1/runs", `{"agent":"caisson","prompt":"x","session":"a b"}`, 400, "session"},
		"negative cost":     {"POST", "/api/v1/runs", `{"agent":"caisson","prompt":"x","limits":{"cost":-1}}`, 400, "limits.cost"},
		"role":              {"POST", "/api/v1/runs", `{"agent":"caisson","prompt":"x","history":[{"role":"system","content":"x"}]}`, 400, "history[0].role"},
		"host path":         {"POST", "/api/v1/runs", `{"agent":"caisson","prompt":"x","source":"/etc"}`, 400, "source"},
		"no id":             {"GET", "/api/v1/runs/x", "", 404, ""},
		"walks":             {"GET", "/api/v1/runs/..%2fx", "", 404, ""},
		"unknown":           {"GET", "/api/v1/runs/rn-aaaaaaaaaaaaaaaa", "", 404, ""},
		"state":             {"GET", "/api/v1/runs?state=sleepy", "", 400, "state[0]"},
		"after":             {"GET", "/api/v1/runs?after=x", "", 400, "after"},
		"session's id":      {"GET", "/api/v1/runs?session=x", "", 400, "session"},
		"limit":             {"GET", "/api/v1/runs?limit=1001", "", 400, "limit"},
		"unknown parameter": {"GET", "/api/v1/runs?sort=cost", "", 400, "sort"},
		"events after":      {"GET", run + "/events?after=-1", "", 400, "after"},
		"log":               {"GET", run + "/log?stream=secrets", "", 400, "stream"},
		"remove":            {"DELETE", run, "", 409, ""},
		"retry":             {"POST", run + "/retry", "", 409, ""},
		"no session":        {"DELETE", "/api/v1/sessions/x", "", 404, ""},
		"agent's id":        {"PUT", "/api/v1/agents/a", `{"id":"b","name":"x","driver":"exec"}`, 400, "id"},
		"agent's driver":    {"PUT", "/api/v1/agents/a", `{"id":"a","name":"x","driver":"telepathy"}`, 400, "driver"},
		"built-in agent":    {"PUT", "/api/v1/agents/caisson", `{"id":"caisson","name":"x","driver":"acp","image":"host","command":["x"]}`, 403, ""},
		"build of nobody":   {"POST", "/api/v1/agents/nobody/build", "", 404, ""},
		"no form":           {"POST", "/api/v1/runs/upload", `{"agent":"caisson","prompt":"x"}`, 400, "Content-Type"},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, body := s.raw(t, true, tt.method, tt.path, tt.body, nil)
			var p protocol.Problem
			if err := json.Unmarshal([]byte(body), &p); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			if status != tt.status || status >= 400 && p.Field != tt.field {
				t.Errorf("%d about %q, want %d about %q: %.300s", status, p.Field, tt.status, tt.field, body)
			}
		})
	}
	apitest.Fails(t, second(s.remote(t, "alice").StartRun(t.Context(), caisson.RunRequest{Agent: "caisson", Prompt: "x", Source: "/etc"})), caisson.Denied, "")
}

func second[T any](_ T, err error) error { return err }

// ended waits for a run's end and returns it.
func ended(t *testing.T, c *client.Client, id caisson.ID) *caisson.Run {
	t.Helper()
	events, err := c.WatchRun(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range events {
	}
	run, err := c.GetRun(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func TestRunUploads(t *testing.T) {
	s := serve(t)
	const request = "--x\r\nContent-Disposition: form-data; name=\"request\"\r\n\r\n{\"agent\":\"caisson\",\"prompt\":\"files\"}\r\n"
	const file = "--x\r\nContent-Disposition: form-data; name=\"workspace\"; filename=\"w.tar\"\r\nContent-Type: application/x-tar\r\n\r\n"
	end := "\r\n--x--\r\n"
	archive := strings.Repeat("\x00", 1024)
	for name, tt := range map[string]struct {
		body   string
		status int
		field  string
	}{
		"whole":              {request + file + archive + end, 201, ""},
		"no workspace":       {request + end, 400, "workspace"},
		"other order":        {file + archive + "\r\n" + request + end, 400, "request"},
		"nothing":            {end, 400, "request"},
		"no request":         {file + archive + end, 400, "request"},
		"broken off":         {request + file + archive, 400, ""},
		"no form":            {"hello", 400, "request"},
		"request is a list":  {strings.Replace(request, `{"agent":"caisson","prompt":"files"}`, `[]`, 1) + file + archive + end, 400, "body"},
		"request is no JSON": {strings.Replace(request, `{"agent"`, `{agent`, 1) + file + archive + end, 400, ""},
		"no prompt":          {strings.Replace(request, `,"prompt":"files"`, ``, 1) + file + archive + end, 400, "prompt"},
		"wrong type":         {strings.Replace(request, `"files"`, `7`, 1) + file + archive + end, 400, "prompt"},
		"huge request":       {strings.Replace(request, "files", strings.Repeat("a", protocol.MaxRunRequest), 1) + file + archive + end, 400, "request"},
		"no such agent":      {strings.Replace(request, "caisson", "nobody", 1) + file + archive + end, 404, ""},
		"no archive":         {request + file + strings.Repeat("x", 2000) + end, 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, body := s.raw(t, true, http.MethodPost, "/api/v1/runs/upload", tt.body, map[string]string{"Content-Type": `multipart/form-data; boundary="x"`})
			var p protocol.Problem
			if err := json.Unmarshal([]byte(body), &p); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			if status != tt.status || status >= 400 && p.Field != tt.field {
				t.Errorf("%d about %q, want %d about %q: %.300s", status, p.Field, tt.status, tt.field, body)
			}
		})
	}
	if page, _, err := s.local(t, "").ListRuns(t.Context(), caisson.RunFilter{}); len(page) != 1 || err != nil {
		t.Errorf("%d runs, %v; want 1", len(page), err)
	}
}

func TestRunsAreStartedOnce(t *testing.T) {
	s := serve(t)
	c := s.local(t, "")
	dir := t.TempDir()
	start := func(key, prompt string, way int) (*caisson.Run, error) {
		req := caisson.RunRequest{Agent: "caisson", Prompt: prompt}
		switch way {
		case 1:
			f, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			req.Source, req.Directory = dir, f
		case 2:
			req.Workspace = strings.NewReader(strings.Repeat("\x00", 1024))
		}
		return c.StartRun(client.WithIdempotencyKey(context.WithoutCancel(t.Context()), key), req)
	}
	for way, name := range []string{"plain", "directory", "archive"} {
		first, err := start(name, "say a", way)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		again, err := start(name, "say a", way)
		if err != nil || again.ID != first.ID {
			t.Errorf("%s: %+v, %v", name, again, err)
		}
		apitest.Fails(t, second(start(name, "say b", way)), caisson.Invalid, protocol.IdempotencyHeader)
	}
}

func TestRunListingsAreShort(t *testing.T) {
	s := serve(t)
	c := s.local(t, "")
	run, err := c.StartRun(t.Context(), caisson.RunRequest{
		Agent: "caisson", Prompt: strings.Repeat("ü", 100_000), Env: map[string]string{"A": "b"}, History: []caisson.Message{{Role: "user", Content: "x"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended(t, c, run.ID)
	page, _, err := c.ListRuns(t.Context(), caisson.RunFilter{})
	if err != nil {
		t.Fatal(err)
	}
	r := page[0]
	for what, s := range map[string]string{"prompt": r.Request.Prompt, "answer": r.Result.Answer} {
		if len(s) > protocol.MaxExcerpt+8 || !strings.HasSuffix(s, "ü…") {
			t.Errorf("%s has %d bytes and ends with %q", what, len(s), s[len(s)-10:])
		}
	}
	if r.Request.Env != nil || r.Request.History != nil || r.ID != run.ID {
		t.Errorf("%+v", r.Request)
	}
	if full, err := c.GetRun(t.Context(), run.ID); err != nil || len(full.Result.Answer) != 200_000 || full.Request.Env["A"] != "b" {
		t.Errorf("the run itself is short too, %v", err)
	}
}
