package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/sse"
)

// TestChatCatalog: clients of this route take nothing else.
func TestChatCatalog(t *testing.T) {
	s := serve(t)
	c := s.local(t, "")
	if _, err := c.PutAgent(t.Context(), caisson.Agent{ID: "zz", Name: "Aardvark", Driver: "acp", Image: "host", Command: []string{"agent"}}); err != nil {
		t.Fatal(err)
	}
	_, _, body := s.raw(t, true, http.MethodGet, "/api/v1/ai/agents", "", nil)
	want := `{"agents":[{"agentId":"zz","graphId":"sandbox:zz","name":"Aardvark","description":null},` +
		`{"agentId":"caisson","graphId":"sandbox:caisson","name":"Caisson","description":null},` +
		`{"agentId":"openclaw","graphId":"sandbox:openclaw","name":"OpenClaw","description":"Gets things done"}],"defaultAgentId":"caisson"}` + "\n"
	if body != want {
		t.Error(cmp.Diff(want, body))
	}
	for agent, want := range map[string]string{"openclaw": `"defaultAgentId":"openclaw"}`, "nobody": `"defaultAgentId":null}`} {
		s := serve(t, func(cfg *httpapi.Config) { cfg.DefaultAgent = agent })
		if _, _, body := s.raw(t, true, http.MethodGet, "/api/v1/ai/agents", "", nil); !strings.HasSuffix(body, want+"\n") {
			t.Errorf("default %s: %s", agent, body)
		}
	}
}

// events parses a stream of events.
func events(t *testing.T, body string) (out []caisson.RunEvent) {
	t.Helper()
	in := sse.NewReader(strings.NewReader(body), protocol.MaxEvent)
	for {
		e, err := in.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		var event caisson.RunEvent
		if err := json.Unmarshal(e.Data, &event); err != nil || string(e.Name) != event.Type || string(e.ID) != fmt.Sprint(event.Seq) {
			t.Fatalf("%v in %s %s %s", err, e.ID, e.Name, e.Data)
		}
		out = append(out, event)
	}
}

func TestChat(t *testing.T) {
	s := serve(t)
	const path = "/api/v1/ai/chat"
	status, h, body := s.raw(t, true, http.MethodPost, path, `{"message":"say hel; say lo"}`, map[string]string{"X-User-Id": "ada"})
	list := events(t, body)
	if status != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("X-State-Key") == "" || list[len(list)-2].Content != "hello" ||
		list[len(list)-1].Type != caisson.EventDone {
		t.Fatalf("%d %v %s", status, h, body)
	}
	id := caisson.ID(h.Get("X-Run-Id"))
	c := s.local(t, "")
	run, err := c.GetRun(t.Context(), id)
	if err != nil || run.Agent != "caisson" || run.Request.User != "ada" || run.Request.Session != h.Get("X-State-Key") {
		t.Errorf("%+v, %v", run, err)
	}
	// The name that was made continues the conversation, and so does one that the client chooses.
	_, again, _ := s.raw(t, true, http.MethodPost, path, `{"message":"say x"}`, map[string]string{"X-State-Key": h.Get("X-State-Key"), "X-User-Id": "ada"})
	second, err := c.GetRun(t.Context(), caisson.ID(again.Get("X-Run-Id")))
	if err != nil || second.Session != run.Session || again.Get("X-State-Key") != h.Get("X-State-Key") {
		t.Errorf("%+v, %v", second, err)
	}
	_, h, body = s.raw(t, true, http.MethodPost, path, `{"message":"say x","stateKey":"mine","graphName":"sandbox:openclaw"}`,
		map[string]string{"Accept": "application/json;q=0.1, text/event-stream; protocol=ui-message"})
	if h.Get("X-State-Key") != "mine" || h.Get("X-Vercel-Ai-Ui-Message-Stream") != "v1" || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("%v %s", h, body)
	}
}

// refusing are runs whose StartRun fails if the prompt is "refuse KIND TEXT". KIND may also be the code of a run's error.
type refusing struct{ caisson.Runs }

func (r refusing) StartRun(ctx context.Context, req caisson.RunRequest) (*caisson.Run, error) {
	rest, refused := strings.CutPrefix(req.Prompt, "refuse ")
	kind, text, _ := strings.Cut(rest, " ")
	switch {
	case !refused:
		return r.Runs.StartRun(ctx, req)
	case kind == caisson.RunNoCredits:
		return nil, caisson.Wrap(&caisson.RunError{Code: kind, Message: text}, caisson.Exhausted, "%s", text)
	}
	return nil, &caisson.Error{Kind: caisson.Kind(kind), Msg: text, Err: errors.New("a secret cause")}
}

// prompt are runs whose events are delivered after the end of the run, without those of the phase running.
type prompt struct{ caisson.Runs }

func (r prompt) WatchRun(ctx context.Context, id caisson.ID, after int64) (<-chan caisson.RunEvent, error) {
	events, err := r.Runs.WatchRun(ctx, id, after)
	if err != nil {
		return nil, err
	}
	var list []caisson.RunEvent
	for e := range events {
		if e.Phase != "running" {
			list = append(list, e)
		}
	}
	out := make(chan caisson.RunEvent, len(list))
	for _, e := range list {
		out <- e
	}
	close(out)
	return out, nil
}

func TestChatErrors(t *testing.T) {
	t.Parallel()
	s := serve(t, func(cfg *httpapi.Config) { cfg.Runs = prompt{refusing{cfg.Runs}} })
	busy, err := s.local(t, "").StartRun(t.Context(), caisson.RunRequest{Agent: "caisson", Prompt: "wait", Session: "busy"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.local(t, "").CancelRun(context.WithoutCancel(t.Context()), busy.ID)
	for name, tt := range map[string]struct {
		body   string
		header map[string]string
		query  string
		status int
		code   string
	}{
		"empty":               {``, nil, "", 400, "invalid"},
		"two faults":          {`{"message":"","system":"x"}`, nil, "", 400, "invalid"},
		"too large":           {`{"message":"` + strings.Repeat("a", 1<<20) + `"}`, nil, "", 400, "invalid"},
		"two names":           {`{"message":"x","stateKey":"a"}`, map[string]string{"X-State-Key": "b"}, "", 400, "invalid"},
		"name in the header":  {`{"message":"x"}`, map[string]string{"X-State-Key": "a b"}, "", 400, "invalid"},
		"user":                {`{"message":"x"}`, map[string]string{"X-User-Id": strings.Repeat("u", 257)}, "", 400, "invalid"},
		"protocol":            {`{"message":"x"}`, nil, "?protocol=smtp", 400, "invalid"},
		"no such agent":       {`{"message":"x","graphName":"sandbox:nobody"}`, nil, "", 404, "not_found"},
		"other provider":      {`{"message":"x","graphName":"langgraph:poet"}`, nil, "", 404, "not_found"},
		"model":               {`{"message":"x","graphName":"openclaw","model":"huge"}`, nil, "", 409, "invalid"},
		"session is busy":     {`{"message":"x","stateKey":"busy"}`, nil, "", 409, "conflict"},
		"denied":              {`{"message":"refuse denied not you"}`, nil, "", 403, "denied"},
		"too many":            {`{"message":"refuse exhausted too many"}`, nil, "", 429, "exhausted"},
		"full":                {`{"message":"refuse unavailable full"}`, nil, "", 503, "unavailable"},
		"ours":                {`{"message":"refuse internal secret"}`, nil, "", 500, "internal"},
		"no credit at first":  {`{"message":"refuse insufficient_credits empty"}`, nil, "", 402, "insufficient_credits"},
		"no credit":           {`{"message":"fail insufficient_credits empty"}`, nil, "", 402, "insufficient_credits"},
		"timeout":             {`{"message":"fail timeout over"}`, nil, "", 408, "timeout"},
		"rate limit":          {`{"message":"fail rate_limit slow down"}`, nil, "", 429, "rate_limit"},
		"agent":               {`{"message":"fail agent_error crashed"}`, nil, "", 502, "agent_error"},
		"cancelled":           {`{"message":"fail aborted by somebody"}`, nil, "", 409, "aborted"},
		"invalid for the run": {`{"message":"fail invalid_request no"}`, nil, "", 400, "invalid_request"},
		"gone":                {`{"message":"fail not_found no"}`, nil, "", 404, "not_found"},
		"inside":              {`{"message":"fail internal no"}`, nil, "", 500, "internal"},
		"too late":            {`{"message":"say a; fail timeout over"}`, nil, "", 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, h, body := s.raw(t, true, http.MethodPost, "/api/v1/ai/chat"+tt.query, tt.body, tt.header)
			if status != tt.status {
				t.Fatalf("%d, want %d: %s", status, tt.status, body)
			}
			if status == 200 {
				return
			}
			var p protocol.ChatProblem
			if err := json.Unmarshal([]byte(body), &p); err != nil || h.Get("Content-Type") != protocol.ProblemType {
				t.Fatalf("%v in %s", err, body)
			}
			if p.Code != tt.code || p.Status != status || p.Title != http.StatusText(status) || p.Error != p.Detail || p.Detail == "" || strings.Contains(body, "cause") {
				t.Errorf("%s", body)
			}
			if (p.Details != nil) != (tt.code == "invalid" && name != "model") {
				t.Errorf("details %+v", p.Details)
			}
			if name == "two faults" && (len(p.Details) != 2 || p.Details[1].Path != "system") {
				t.Errorf("%+v", p.Details)
			}
			if (p.DefaultModelID != nil) != (name == "model") || name == "model" && *p.DefaultModelID != "large" {
				t.Errorf("default model in %s", body)
			}
		})
	}
}

// TestChatGoesOn: the run of a client that has left can be taken up again, from any event.
func TestChatGoesOn(t *testing.T) {
	s := serve(t)
	c := s.local(t, "alice")
	_, secret, err := s.local(t, "").CreateToken(t.Context(), "alice", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/api/v1/ai/chat", strings.NewReader(`{"message":"say one; wait; say two"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret.Reveal())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan() && !strings.Contains(lines.Text(), "one"); {
	}
	id := caisson.ID(resp.Header.Get("X-Run-Id"))
	leave()
	resp.Body.Close()
	if run, err := c.GetRun(t.Context(), id); err != nil || run.State != caisson.RunRunning {
		t.Fatalf("%+v, %v", run, err)
	}
	poll.Until(t, apitest.Timeout, func() bool { return s.world.EndWait(id) })
	path := "/api/v1/runs/" + string(id) + "/events"
	_, _, body := s.raw(t, true, http.MethodGet, path, "", map[string]string{"X-Caisson-Account": "alice"})
	all := events(t, body)
	if final := all[len(all)-2]; final.Content != "onetwo" {
		t.Errorf("%+v", final)
	}
	for after := range all {
		for _, via := range []struct {
			query  string
			header map[string]string
		}{
			{fmt.Sprintf("?after=%d", after), map[string]string{"X-Caisson-Account": "alice"}},
			{"", map[string]string{"X-Caisson-Account": "alice", "Last-Event-ID": fmt.Sprint(after)}},
		} {
			_, _, body := s.raw(t, true, http.MethodGet, path+via.query, "", via.header)
			if diff := cmp.Diff(all[after:], events(t, body)); diff != "" {
				t.Errorf("after %d: %s", after, diff)
			}
		}
	}
	if status, _, _ := s.raw(t, true, http.MethodGet, path, "", nil); status != 404 {
		t.Errorf("another account sees the run: %d", status)
	}
}

// TestStreamIsBrokenOff: what the daemon's end cuts off does not look whole.
func TestStreamIsBrokenOff(t *testing.T) {
	s := serve(t)
	front := httptest.NewServer(s.api.Local())
	defer front.Close()
	for _, path := range []string{"/api/v1/ai/chat", "/api/v1/runs/%s/events"} {
		run, err := s.local(t, "").StartRun(t.Context(), caisson.RunRequest{Agent: "caisson", Prompt: "say a; wait"})
		if err != nil {
			t.Fatal(err)
		}
		var resp *http.Response
		if strings.Contains(path, "%s") {
			resp, err = http.Get(front.URL + fmt.Sprintf(path, run.ID))
		} else {
			resp, err = http.Post(front.URL+path, "application/json", strings.NewReader(`{"message":"say a; wait"}`))
		}
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		read := make(chan error)
		go func() {
			_, err := io.Copy(io.Discard, resp.Body)
			read <- err
		}()
		defer func() {
			if err := <-read; err == nil {
				t.Errorf("%s ends as if it were over", path)
			}
		}()
	}
	s.api.Close()
}

// TestSlowReader: somebody who does not read holds up neither the run nor others.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	s := serve(t)
	front := httptest.NewServer(s.api.Local())
	defer front.Close()
	resp, err := http.Post(front.URL+"/api/v1/ai/chat", "application/json", strings.NewReader(`{"message":"say a; wait; flood 6000"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	id := caisson.ID(resp.Header.Get("X-Run-Id"))
	poll.Until(t, apitest.Timeout, func() bool { return s.world.EndWait(id) })
	c := s.local(t, "")
	poll.Until(t, apitest.Timeout, func() bool {
		run, err := c.GetRun(t.Context(), id)
		return err == nil && run.State == caisson.RunSucceeded
	})
	// All 6 MiB are in the last event but one, more than other streams have in one.
	watch, err := c.WatchRun(t.Context(), id, 6000)
	if err != nil {
		t.Fatal(err)
	}
	for e := range watch {
		if e.Type == caisson.EventFinal && len(e.Content) == 1+6000<<10 {
			return
		}
	}
	t.Error("the answer did not arrive")
}

// TestQueuedChat: a client that waits for room hears so soon, and is told when the API ends.
func TestQueuedChat(t *testing.T) {
	s := serve(t)
	front := httptest.NewServer(s.api.Local())
	defer front.Close()
	resp, err := http.Post(front.URL+"/api/v1/ai/chat", "application/json", strings.NewReader(`{"message":"wait; fail timeout over"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("status %d", resp.StatusCode)
	}
	id := caisson.ID(resp.Header.Get("X-Run-Id"))
	poll.Until(t, apitest.Timeout, func() bool { return s.world.EndWait(id) })
	b, err := io.ReadAll(resp.Body)
	list := events(t, string(b))
	if err != nil || list[0].Phase != "queued" || list[len(list)-2].Error == nil || list[len(list)-2].Error.Code != caisson.RunTimeout {
		t.Errorf("%s, %v", b, err)
	}
}
