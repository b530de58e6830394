package subruns_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/wire/subruns"
)

const (
	hang  = time.Minute // waiting requests poll once per second in the end, and some tests count to fifteen
	runID = caisson.ID("rn-aaaaaaaaaaaaaaaa")
)

// engineClient is a fake of the engine.
type engineClient struct {
	mu     sync.Mutex
	asked  []string         // names and arguments of requests; guarded by mu
	state  string           // state of the only run, as JSON without the id; guarded by mu
	err    map[string]error // by name of the request; guarded by mu
	now    int              // requests in progress; guarded by mu
	most   int              // maximum of now; guarded by mu
	hold   chan struct{}    // if not nil, responses wait for it
	begins func()           // if not nil, called when a run is started
}

func (e *engineClient) set(state string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state = state
}

func (e *engineClient) count(name string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.asked {
		if strings.HasPrefix(a, name+" ") {
			n++
		}
	}
	return n
}

func (e *engineClient) call(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error) {
	if _, err := caisson.GuestOf(ctx); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.asked = append(e.asked, name+" "+string(in))
	e.now++
	e.most = max(e.most, e.now)
	hold := e.hold
	e.mu.Unlock()
	if hold != nil {
		<-hold
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now--
	if err := e.err[name]; err != nil {
		return nil, err
	}
	switch name {
	case "agents":
		return json.RawMessage(`[{"id":"caisson","name":"Caisson","description":"codes"}]`), nil
	case "start":
		if e.begins != nil {
			e.begins()
		}
	case "cancel":
		e.state = `"state":"failed","error":{"code":"aborted","message":"cancelled"}`
	}
	state := e.state
	if state == "" {
		state = `"state":"running"`
	}
	return json.RawMessage(fmt.Sprintf(`{"id":%q,"agent":"caisson",%s}`, runID, state)), nil
}

// serve serves the tools of an engine to one sandbox, over real sockets.
func serve(t testing.TB, e *engineClient) *httptest.Server {
	t.Helper()
	h := subruns.Handler(e.call)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := caisson.Guest{Sandbox: caisson.ID("sb-" + r.Header.Get("Test-Sandbox")), Account: "local"}
		h.ServeHTTP(w, r.WithContext(caisson.WithGuest(r.Context(), g)))
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv
}

// do makes one request and returns the status and the body of the response.
func do(t testing.TB, srv *httptest.Server, method, path, body string, header ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, srv.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestRequests(t *testing.T) {
	e := &engineClient{}
	srv := serve(t, e)
	big := strings.Repeat("x", 256<<10)
	for _, row := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/v1/agents", "", 200, `[{"id":"caisson","name":"Caisson","description":"codes"}]`},
		{"POST", "/v1/runs", `{"agent":"caisson","prompt":"p"}`, 201, `{"id":"rn-aaaaaaaaaaaaaaaa","agent":"caisson","state":"running"}`},
		{"GET", "/v1/runs/" + string(runID), "", 200, `"state":"running"`},
		{"POST", "/v1/runs/" + string(runID) + "/cancel", "", 200, `"code":"aborted"`},
		{"GET", "/v1/runs/" + string(runID) + "?wait=300", "", 200, `"state":"failed"`},

		{"POST", "/v1/runs", ``, 400, `"code":"invalid"`},
		{"POST", "/v1/runs", `{"agent":"caisson"}`, 400, "prompt: is missing"},
		{"POST", "/v1/runs", `{"prompt":"p"}`, 400, "agent: is missing"},
		{"POST", "/v1/runs", `{"agent":"caisson","prompt":"p","policy":{}}`, 400, "policy"},
		{"POST", "/v1/runs", `{"agent":"caisson","prompt":"p","prompt":"q"}`, 400, "twice"},
		{"POST", "/v1/runs", `{"agent":"caisson","prompt":"p"}{}`, 400, "behind it"},
		{"POST", "/v1/runs", "{\"agent\":\"caisson\",\"prompt\":\"\xff\"}", 400, "UTF-8"},
		{"POST", "/v1/runs", `{"agent":"caisson","prompt":"p","env":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, 400, "nested"},
		{"POST", "/v1/runs", `{"agent":"caisson","prompt":"` + big + `"}`, 413, "256KiB"},
		{"GET", "/v1/runs/" + string(runID) + "?wait=301", "", 400, "wait"},
		{"GET", "/v1/runs/" + string(runID) + "?wait=-1", "", 400, "wait"},
		{"GET", "/v1/runs/" + string(runID) + "?wait=1&wait=2", "", 400, "wait"},
		{"GET", "/v1/runs/" + string(runID) + "?weight=1", "", 400, "wait"},
		{"GET", "/v1/runs/..%2f..%2fagents", "", 400, "id"},
		{"GET", "/v1/runs/sb-aaaaaaaaaaaaaaaa", "", 400, "id"},
		{"POST", "/v1/runs//cancel", "", 400, "id"},

		{"POST", "/v1/agents", "", 405, "GET"},
		{"DELETE", "/v1/runs", "", 405, "POST"},
		{"GET", "/v1/runs", "", 405, "POST"},
		{"DELETE", "/v1/runs/" + string(runID), "", 405, "GET"},
		{"GET", "/v1/runs/" + string(runID) + "/cancel", "", 405, "POST"},
		{"GET", "/mcp", "", 405, "POST"},
		{"DELETE", "/mcp", "", 405, "POST"},
		{"OPTIONS", "/mcp", "", 405, "POST"},
		{"GET", "/", "", 404, "/mcp"},
		{"GET", "/v2/agents", "", 404, "/mcp"},
	} {
		status, body := do(t, srv, row.method, row.path, row.body)
		if status != row.status || !strings.Contains(body, row.want) {
			t.Errorf("%s %s %.60s: %d %.300s, want %d and %s", row.method, row.path, row.body, status, body, row.status, row.want)
		}
		var refused struct{ Error, Code string }
		if status >= 400 && (json.Unmarshal([]byte(body), &refused) != nil || refused.Error == "" || refused.Code == "") {
			t.Errorf("%s %s: the error is %s", row.method, row.path, body)
		}
	}
}

// The handler re-encodes requests: the engine receives no unknown fields, and nothing that readers interpret differently.
func TestTheEngineSeesWhatWasUnderstood(t *testing.T) {
	e := &engineClient{}
	srv := serve(t, e)
	body := `{ "prompt" : "<p>", "agent":"caisson", "persona":"x", "model":"m", "env":{"A":"1"}, "limits":{"time":"1m0s","cost":"0.5","calls":3},
		"history":[{"role":"user","content":"before"}] }`
	if status, got := do(t, srv, "POST", "/v1/runs", body); status != 201 {
		t.Fatal(status, got)
	}
	_, in, _ := strings.Cut(e.asked[0], " ")
	var was, is map[string]any
	if err := json.Unmarshal([]byte(body), &was); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(in), &is); err != nil {
		t.Fatal(err)
	}
	if len(is) != len(was) || fmt.Sprint(is["prompt"], is["persona"], is["model"], is["env"], is["history"]) != fmt.Sprint(was["prompt"], was["persona"], was["model"], was["env"], was["history"]) {
		t.Errorf("the engine sees %s", in)
	}
	if strings.ContainsAny(in, "<>") {
		t.Error("the request grows when it is encoded again for the feed")
	}
}

func TestErrorsOfTheEngine(t *testing.T) {
	for _, row := range []struct {
		err    error
		status int
		want   string
	}{
		{caisson.Errorf(caisson.Denied, "no"), 403, `{"error":"no","code":"denied"}`},
		{caisson.Errorf(caisson.NotFound, "no"), 404, `"code":"not_found"`},
		{caisson.Errorf(caisson.Conflict, "no"), 409, `"code":"conflict"`},
		{caisson.Invalidf("model", "no"), 400, `"error":"model: no"`},
		{caisson.Errorf(caisson.Exhausted, "no"), 429, `"code":"exhausted"`},
		{caisson.Errorf(caisson.Unavailable, "no"), 503, `"code":"unavailable"`},
		{caisson.Wrap(io.EOF, caisson.Internal, "no"), 500, `{"error":"no","code":"internal"}`},
		{io.ErrUnexpectedEOF, 503, `the engine does not answer`},
	} {
		e := &engineClient{err: map[string]error{"start": row.err, "run": row.err, "cancel": row.err, "agents": row.err}}
		srv := serve(t, e)
		for _, req := range [][3]string{
			{"POST", "/v1/runs", `{"agent":"a","prompt":"p"}`}, {"GET", "/v1/agents"}, {"GET", "/v1/runs/" + string(runID)}, {"POST", "/v1/runs/" + string(runID) + "/cancel"},
		} {
			if status, body := do(t, srv, req[0], req[1], req[2]); status != row.status || !strings.Contains(body, row.want) {
				t.Errorf("%v, %v: %d %s", row.err, req, status, body)
			}
		}
	}
}

func TestSpent(t *testing.T) {
	h := subruns.Handler(func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		return json.RawMessage(`{"spent":"nothing is left"}`), nil
	})
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/v1/runs", strings.NewReader(`{"agent":"a","prompt":"p"}`))
	h.ServeHTTP(w, r.WithContext(caisson.WithGuest(r.Context(), caisson.Guest{Sandbox: "sb-a", Account: "local"})))
	if w.Code != 402 || !strings.Contains(w.Body.String(), `{"error":"nothing is left","code":"insufficient_credits"}`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A request without a guest in its context is rejected.
func TestNoGuest(t *testing.T) {
	e := &engineClient{}
	for _, path := range []string{"/v1/agents", "/mcp", "/v1/runs/" + string(runID), "/"} {
		w := httptest.NewRecorder()
		subruns.Handler(e.call).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != 401 || len(e.asked) != 0 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestWaiting(t *testing.T) {
	e := &engineClient{}
	srv := serve(t, e)
	path := "/v1/runs/" + string(runID)
	began := time.Now()
	if status, body := do(t, srv, "GET", path+"?wait=1", ""); status != 200 || !strings.Contains(body, "running") || time.Since(began) < time.Second {
		t.Errorf("after %v: %d %s", time.Since(began), status, body)
	}
	if n := e.count("run"); n < 3 || n > 12 {
		t.Errorf("the engine was asked %d times in a second", n)
	}
	go func() {
		poll.Until(t, hang, func() bool { return e.count("run") > 14 })
		e.set(`"state":"succeeded","answer":"forty-two"`)
	}()
	began = time.Now()
	if status, body := do(t, srv, "GET", path+"?wait=300", ""); status != 200 || !strings.Contains(body, "forty-two") || time.Since(began) > hang {
		t.Errorf("%d %s", status, body)
	}
}

// While a client waits, the engine may be busy or restart.
func TestWaitingBearsFaults(t *testing.T) {
	e := &engineClient{}
	srv := serve(t, e)
	fault := func(err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.err = map[string]error{"run": err}
	}
	go func() {
		poll.Until(t, hang, func() bool { return e.count("run") >= 2 })
		fault(caisson.Errorf(caisson.Exhausted, "busy"))
		poll.Until(t, hang, func() bool { return e.count("run") >= 4 })
		fault(io.EOF)
		poll.Until(t, hang, func() bool { return e.count("run") >= 6 })
		e.set(`"state":"succeeded","answer":"forty-two"`)
		fault(nil)
	}()
	if status, body := do(t, srv, "GET", "/v1/runs/"+string(runID)+"?wait=300", ""); status != 200 || !strings.Contains(body, "forty-two") {
		t.Errorf("%d %s", status, body)
	}
	e.set(`"state":"running"`)
	go func() {
		poll.Until(t, hang, func() bool { return e.count("run") >= 10 })
		fault(caisson.Errorf(caisson.Denied, "the run is over"))
	}()
	if status, body := do(t, srv, "GET", "/v1/runs/"+string(runID)+"?wait=300", ""); status != 403 {
		t.Errorf("%d %s", status, body)
	}
}

// A client that disconnects ends its request.
func TestGoingAway(t *testing.T) {
	e := &engineClient{}
	srv := serve(t, e)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		poll.Until(t, hang, func() bool { return e.count("run") >= 2 })
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/v1/runs/"+string(runID)+"?wait=300", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := srv.Client().Do(req); err == nil {
		resp.Body.Close()
		t.Error("there is an answer")
	}
	srv.Close() // waits for the request to end
	if e.count("cancel") != 0 {
		t.Error("the run was cancelled")
	}
}

// A run that was started for a client that has disconnected is cancelled.
func TestStartedForNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e := &engineClient{begins: cancel}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/v1/runs", strings.NewReader(`{"agent":"a","prompt":"p"}`))
	subruns.Handler(e.call).ServeHTTP(w, r.WithContext(caisson.WithGuest(ctx, caisson.Guest{Sandbox: "sb-a", Account: "local"})))
	if e.count("cancel") != 1 {
		t.Errorf("the engine was asked %q", e.asked)
	}
}

// The requests of one sandbox are limited, and so are those that reach the engine at once; other sandboxes have their own limits.
func TestManyRequests(t *testing.T) {
	e := &engineClient{hold: make(chan struct{})}
	srv := serve(t, e)
	statuses := make(chan int, 40)
	for range cap(statuses) {
		go func() {
			status, _ := do(t, srv, "GET", "/v1/agents", "")
			statuses <- status
		}()
	}
	for range 8 { // more than 32
		if s := <-statuses; s != 429 {
			t.Errorf("status %d", s)
		}
	}
	done := make(chan int)
	go func() {
		status, _ := do(t, srv, "GET", "/v1/agents", "", "Test-Sandbox", "other")
		done <- status
	}()
	poll.Until(t, hang, func() bool { return e.count("agents") == 4+1 })
	close(e.hold)
	if s := <-done; s != 200 {
		t.Errorf("another sandbox has status %d", s)
	}
	for range cap(statuses) - 8 {
		if s := <-statuses; s != 200 {
			t.Errorf("status %d", s)
		}
	}
	if e.most > 4+1 {
		t.Errorf("the engine had %d questions at once", e.most)
	}
	if status, _ := do(t, srv, "GET", "/v1/agents", ""); status != 200 {
		t.Errorf("afterwards: %d", status)
	}
}
