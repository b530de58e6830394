package apitest

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/caisson-dev/caisson"
)

// startRun starts a run of the agent caisson, which in these tests follows the instructions in prompt.
func startRun(t testing.TB, ctx context.Context, c Cores, prompt string) *caisson.Run {
	t.Helper()
	return must(c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Prompt: prompt}))(t)
}

// runEvents returns the events of a run after seq, until the stream ends.
func runEvents(t testing.TB, ctx context.Context, c Cores, id caisson.ID, seq int64) (out []caisson.RunEvent) {
	t.Helper()
	for e := range must(c.Runs.WatchRun(ctx, id, seq))(t) {
		out = append(out, e)
	}
	return out
}

// waitForEnd waits for a run's end and returns it.
func waitForEnd(t testing.TB, ctx context.Context, c Cores, id caisson.ID) *caisson.Run {
	t.Helper()
	runEvents(t, ctx, c, id, 0)
	return must(c.Runs.GetRun(ctx, id))(t)
}

// readUntil reads a run's events up to the first one of the type kind, and fails the test if there is none.
func readUntil(t testing.TB, events <-chan caisson.RunEvent, kind string) {
	t.Helper()
	for e := range events {
		if e.Type == kind {
			return
		}
	}
	t.Fatalf("no event is a %s", kind)
}

// eventTypes returns the types of events.
func eventTypes(events []caisson.RunEvent) (out []string) {
	for _, e := range events {
		out = append(out, e.Type)
	}
	return out
}

func testRuns(t *testing.T, ctx context.Context, c Cores) {
	req := caisson.RunRequest{
		Agent: "openclaw", Persona: "reviewer", Prompt: "say hel; say lo ü; write a.go x; log stdout hi", Model: "small", User: "u@example.com",
		History: []caisson.Message{{Role: "user", Content: "before"}}, Env: map[string]string{"A": "b"}, Labels: map[string]string{"k": "v"},
		Limits: caisson.AgentLimits{Cost: new(caisson.Dollar / 4), Memory: 1 << 30, Time: 60e9}, Keep: true,
		Policy: &caisson.Policy{Rules: []caisson.Rule{{Action: caisson.Allow, Host: "a.example"}}},
	}
	run := must(c.Runs.StartRun(ctx, req))(t)
	if diff := cmp.Diff(req, run.Request); diff != "" {
		t.Error(diff)
	}
	if caller := must(caisson.CallerOf(ctx))(t); run.Account != caller.Account || run.Local != caller.Local || run.Attempt != 1 {
		t.Errorf("%+v", run)
	}
	events := runEvents(t, ctx, c, run.ID, 0)
	got := must(c.Runs.GetRun(ctx, run.ID))(t)
	if got.State != caisson.RunSucceeded || got.Result == nil || got.Result.Answer != "hello ü" || got.Result.Usage.Cost != caisson.Dollar/100 ||
		len(got.Result.Changes) != 1 || got.EndedAt.IsZero() {
		t.Errorf("%+v", got)
	}
	if final := events[len(events)-2]; final.Type != caisson.EventFinal || final.Content != "hello ü" {
		t.Errorf("%+v", final)
	}
	log := must(c.Runs.RunLog(ctx, run.ID, caisson.LogStdout))(t)
	if b := must(io.ReadAll(log))(t); string(b) != "hi\n" {
		t.Errorf("log %q", b)
	}
	log.Close()
	if got := must(c.Runs.CancelRun(ctx, run.ID))(t); got.State != caisson.RunSucceeded {
		t.Errorf("a cancel changed what was over: %+v", got)
	}
	_, err := c.Runs.RetryRun(ctx, run.ID)
	Fails(t, err, caisson.Conflict, "")
	succeeds(t, c.Runs.RemoveRun(ctx, run.ID))
	for name, err := range map[string]error{
		"get": errorOf(c.Runs.GetRun(ctx, run.ID)), "watch": errorOf(c.Runs.WatchRun(ctx, run.ID, 0)), "cancel": errorOf(c.Runs.CancelRun(ctx, run.ID)),
		"retry": errorOf(c.Runs.RetryRun(ctx, run.ID)), "remove": c.Runs.RemoveRun(ctx, run.ID), "log": errorOf(c.Runs.RunLog(ctx, run.ID, "stderr")),
	} {
		if caisson.KindOf(err) != caisson.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "nobody", Prompt: "x"})
	Fails(t, err, caisson.NotFound, "")
	_, err = c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "openclaw", Prompt: "x", Model: "huge"})
	Fails(t, err, caisson.Invalid, "model")
}

// testWaitingRuns checks that runs that do not end by themselves can be watched and cancelled, but not removed, and that a run
// that has failed can be retried.
func testWaitingRuns(t *testing.T, ctx context.Context, c Cores) {
	run := startRun(t, ctx, c, "say a; wait")
	if run.State.Ended() {
		t.Fatalf("%+v", run)
	}
	Fails(t, c.Runs.RemoveRun(ctx, run.ID), caisson.Conflict, "")
	events := must(c.Runs.WatchRun(ctx, run.ID, 0))(t)
	if e := <-events; e.Seq != 1 || e.Type != caisson.EventStatus || e.At.IsZero() {
		t.Errorf("%+v", e)
	}
	readUntil(t, events, caisson.EventTextDelta)
	got := must(c.Runs.CancelRun(ctx, run.ID))(t)
	if got.State != caisson.RunFailed || got.Result.Error == nil || got.Result.Error.Code != caisson.RunAborted || got.Result.Answer != "a" {
		t.Errorf("%+v", got)
	}
	var seen []caisson.RunEvent
	for e := range events {
		seen = append(seen, e)
	}
	if got := eventTypes(seen[len(seen)-2:]); !slices.Equal(got, []string{caisson.EventError, caisson.EventDone}) {
		t.Error(got)
	}
	// The events of another attempt continue the same sequence.
	again := startRun(t, ctx, c, "fail once it crashed; say done")
	if got := waitForEnd(t, ctx, c, again.ID); got.State != caisson.RunFailed || got.Result.Error.Code != caisson.RunAgentError {
		t.Errorf("%+v", got)
	}
	first := runEvents(t, ctx, c, again.ID, 0)
	got = must(c.Runs.RetryRun(ctx, again.ID))(t)
	if got.Attempt != 2 || len(got.Previous) != 1 || got.Previous[0].Error == nil {
		t.Errorf("%+v", got)
	}
	second := runEvents(t, ctx, c, again.ID, first[len(first)-1].Seq)
	if len(second) == 0 || second[0].Attempt != 2 || second[0].Seq != int64(len(first)+1) || second[len(second)-1].Type != caisson.EventDone {
		t.Errorf("%+v", second)
	}
	if got := must(c.Runs.GetRun(ctx, again.ID))(t); got.State != caisson.RunSucceeded || got.Result.Answer != "done" {
		t.Errorf("%+v", got)
	}
	// A watch ends when its context is cancelled.
	waiting := startRun(t, ctx, c, "wait")
	watching, stop := context.WithCancel(ctx)
	events = must(c.Runs.WatchRun(watching, waiting.ID, 0))(t)
	<-events
	stop()
	for range events {
	}
	must(c.Runs.CancelRun(ctx, waiting.ID))(t)
}

func testRunPages(t *testing.T, ctx context.Context, c Cores) {
	var want []caisson.ID
	for i := range 5 {
		prompt := "say x"
		if i%2 == 1 {
			prompt = "fail timeout too slow"
		}
		want = append(want, startRun(t, ctx, c, prompt).ID)
	}
	for _, id := range want {
		waitForEnd(t, ctx, c, id)
	}
	slices.Reverse(want)
	var got []caisson.ID
	f := caisson.RunFilter{Limit: 2}
	for {
		page, more, err := c.Runs.ListRuns(ctx, f)
		if err != nil || len(page) > 2 {
			t.Fatal(page, err)
		}
		for _, r := range page {
			got = append(got, r.ID)
		}
		if !more {
			break
		}
		f.Before = page[len(page)-1].ID
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, tt := range []struct {
		f    caisson.RunFilter
		want int
	}{
		{caisson.RunFilter{States: []caisson.RunState{caisson.RunFailed}}, 2},
		{caisson.RunFilter{States: []caisson.RunState{caisson.RunFailed, caisson.RunSucceeded}}, 5},
		{caisson.RunFilter{Agent: "caisson"}, 5},
		{caisson.RunFilter{Agent: "openclaw"}, 0},
		{caisson.RunFilter{Parent: want[0]}, 0},
		{caisson.RunFilter{Under: want[0]}, 1},
	} {
		if page, _, err := c.Runs.ListRuns(ctx, tt.f); err != nil || len(page) != tt.want {
			t.Errorf("%+v: %d runs, %v; want %d", tt.f, len(page), err, tt.want)
		}
	}
}

func testRunEvents(t *testing.T, ctx context.Context, c Cores) {
	run := startRun(t, ctx, c, "status looking; tool bash ls -l; tool bash !no such file; flood 40; say end\u2028\n\t<&>\"ü")
	all := runEvents(t, ctx, c, run.ID, 0)
	last := all[len(all)-1]
	if last.Type != caisson.EventDone || last.Seq != int64(len(all)) {
		t.Fatalf("%+v is event %d", last, len(all))
	}
	var text strings.Builder
	for _, e := range all {
		text.WriteString(e.Delta)
	}
	if final := all[len(all)-2]; final.Content != text.String() || !strings.HasSuffix(final.Content, "end\u2028\n\t<&>\"ü") {
		t.Errorf("the answer is not what was said: %q", final.Content[len(final.Content)-40:])
	}
	i := slices.IndexFunc(all, func(e caisson.RunEvent) bool { return e.Type == caisson.EventToolStart })
	if all[i].Tool != "bash" || all[i].CallID == "" || string(all[i].Args) != `{"input":"ls -l"}` || all[i+1].Result != "ls -l" || !all[i+3].IsError {
		t.Errorf("%+v", all[i:i+4])
	}
	for after := range len(all) + 2 { // numbers of all events, and numbers beyond the last one
		got := runEvents(t, ctx, c, run.ID, int64(after))
		if diff := cmp.Diff(all[min(after, len(all)):], got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("after %d: %s", after, diff)
		}
	}
}

func testRunWorkspaces(t *testing.T, ctx context.Context, c Cores) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, name := range []string{"a.go", "dir/", "dir/b ü.go"} {
		h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(name)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		succeeds(t, tw.WriteHeader(h))
		if h.Size > 0 {
			io.WriteString(tw, name)
		}
	}
	tw.Close()
	archive := b.Bytes()
	run := must(c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Prompt: "files", Workspace: bytes.NewReader(archive)}))(t)
	if got := waitForEnd(t, ctx, c, run.ID); got.Result.Answer != "a.go dir/ dir/b ü.go" {
		t.Errorf("%+v", got.Result)
	}
	_, err := c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Prompt: "files", Workspace: strings.NewReader(strings.Repeat("no tar", 1000))})
	Fails(t, err, caisson.Invalid, "")
	_, err = c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "nobody", Prompt: "files", Workspace: bytes.NewReader(archive)})
	Fails(t, err, caisson.NotFound, "")
	_, err = c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Prompt: "files", Workspace: io.MultiReader(bytes.NewReader(archive[:100]), iotest.ErrReader(io.ErrClosedPipe))})
	if err == nil {
		t.Error("a broken upload began a run")
	}
	if page, _, err := c.Runs.ListRuns(ctx, caisson.RunFilter{}); len(page) != 1 || err != nil {
		t.Errorf("%d runs, %v; want 1", len(page), err)
	}
	if !must(caisson.CallerOf(ctx))(t).Local {
		return
	}
	dir := t.TempDir()
	succeeds(t, os.WriteFile(dir+"/main.go", nil, 0o600))
	run = must(c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Prompt: "files", Source: dir, Directory: must(os.Open(dir))(t)}))(t)
	if got := waitForEnd(t, ctx, c, run.ID); got.Result.Answer != "main.go" || got.Request.Source != dir {
		t.Errorf("%+v", got)
	}
}

// testRunTrees checks a run that has started a sub-run: listing both, and cancelling them together.
func testRunTrees(t *testing.T, ctx context.Context, c Cores) {
	top := startRun(t, ctx, c, "child wait; say started; wait")
	events := must(c.Runs.WatchRun(ctx, top.ID, 0))(t)
	readUntil(t, events, caisson.EventTextDelta)
	children, _, err := c.Runs.ListRuns(ctx, caisson.RunFilter{Parent: top.ID})
	if err != nil || len(children) != 1 || !slices.Equal(children[0].Lineage, []caisson.ID{top.ID}) {
		t.Fatal(children, err)
	}
	if tree, _, err := c.Runs.ListRuns(ctx, caisson.RunFilter{Under: top.ID}); len(tree) != 2 || err != nil {
		t.Error(tree, err)
	}
	must(c.Runs.CancelRun(ctx, top.ID))(t)
	if got := must(c.Runs.GetRun(ctx, children[0].ID))(t); got.State != caisson.RunFailed || got.Parent != top.ID {
		t.Errorf("%+v", got)
	}
	for range events { // wait until the run has ended
	}
	if !slices.ContainsFunc(runEvents(t, ctx, c, top.ID, 0), func(e caisson.RunEvent) bool { return e.Child == children[0].ID }) {
		t.Errorf("nothing says that %s was started", children[0].ID)
	}
}

func testSessions(t *testing.T, ctx context.Context, c Cores) {
	ask := func(agent, user, key, prompt string) (*caisson.Run, error) {
		return c.Runs.StartRun(ctx, caisson.RunRequest{Agent: agent, User: user, Session: key, Prompt: prompt})
	}
	first := must(ask("caisson", "u", "k:1", "say a"))(t)
	waitForEnd(t, ctx, c, first.ID)
	if second := must(ask("caisson", "u", "k:1", "say b"))(t); second.Session != first.Session || first.Session == "" {
		t.Errorf("%+v", second)
	}
	if other := must(ask("caisson", "v", "k:1", "say c"))(t); other.Session == first.Session {
		t.Error("two people share a conversation")
	}
	waiting := must(ask("openclaw", "u", "k:1", "wait"))(t)
	_, err := ask("openclaw", "u", "k:1", "say d")
	Fails(t, err, caisson.Conflict, "")
	for _, tt := range []struct {
		f    caisson.SessionFilter
		want int
	}{
		{caisson.SessionFilter{}, 3}, {caisson.SessionFilter{User: "u"}, 2}, {caisson.SessionFilter{Agent: "openclaw"}, 1},
		{caisson.SessionFilter{Key: "k:2"}, 0}, {caisson.SessionFilter{Agent: "caisson", User: "u", Key: "k:1"}, 1},
	} {
		if list := must(c.Runs.ListSessions(ctx, tt.f))(t); len(list) != tt.want {
			t.Errorf("%+v: %d sessions, want %d", tt.f, len(list), tt.want)
		}
	}
	if page, _, err := c.Runs.ListRuns(ctx, caisson.RunFilter{Session: first.Session}); len(page) != 2 || err != nil {
		t.Errorf("%d runs, %v; want 2", len(page), err)
	}
	Fails(t, c.Runs.RemoveSession(ctx, waiting.Session), caisson.Conflict, "")
	must(c.Runs.CancelRun(ctx, waiting.ID))(t)
	succeeds(t, c.Runs.RemoveSession(ctx, waiting.Session))
	Fails(t, c.Runs.RemoveSession(ctx, waiting.Session), caisson.NotFound, "")
}
