package runs_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// console is an agent's interface: it greets, repeats lines and counts them, until it reads exit and a code.
func console(ctx context.Context, p *fake.Proc) int {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(p.Stdin()); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	if slices.Contains(p.Args(), "briefly") {
		return 0
	}
	fmt.Fprint(p.Stdout(), "ready\r\n")
	for n := 1; ; n++ {
		select {
		case line, ok := <-lines:
			if !ok {
				return 1
			}
			var code int
			if _, err := fmt.Sscanf(line, "exit %d", &code); err == nil {
				return code
			}
			fmt.Fprintf(p.Stdout(), "%d %s\r\n", n, line)
		case <-ctx.Done():
			return 1
		}
	}
}

// putConsole stores an agent that has an interface.
func (w *world) putConsole() {
	w.t.Helper()
	w.put(caisson.Agent{ID: "console", Interactive: []string{"/bin/console"}})
}

// sit starts an interactive run and waits for its terminal.
func (w *world) sit(req caisson.RunRequest) *caisson.Run {
	w.t.Helper()
	req.Agent, req.Interactive = "console", true
	return w.opened(w.start(req).ID)
}

// opened waits until the terminal of a run is open.
func (w *world) opened(id caisson.ID) *caisson.Run {
	w.t.Helper()
	w.eventually(func() bool { return w.stored(id).Terminal != "" && w.stored(id).State == caisson.RunRunning })
	return w.stored(id)
}

// says types a line at the terminal of a run, and waits for the text that follows.
func (w *world) says(r *caisson.Run, line, want string) {
	w.t.Helper()
	p := got(w.boxes.AttachTerminal(w.ctx(), string(r.Sandbox), r.Terminal, caisson.AttachRequest{}))(w.t)
	out := &safeBuffer{}
	go io.Copy(out, p.Stdout())
	got(io.WriteString(p.Stdin(), line+"\n"))(w.t)
	w.eventually(func() bool { return strings.Contains(out.String(), want) })
	must(w.t, p.Close())
}

// leaves types exit at the terminal of a run and waits for its end.
func (w *world) leaves(r *caisson.Run, code int) *caisson.Run {
	w.t.Helper()
	p := got(w.boxes.AttachTerminal(w.ctx(), string(r.Sandbox), r.Terminal, caisson.AttachRequest{}))(w.t)
	defer p.Close()
	go io.Copy(io.Discard, p.Stdout())
	got(fmt.Fprintf(p.Stdin(), "exit %d\n", code))(w.t)
	return w.ended(r.ID)
}

// wantExit checks that a run has ended with its program.
func wantExit(t testing.TB, r *caisson.Run, code int) {
	t.Helper()
	if r.State != caisson.RunSucceeded || r.Result.Exit == nil || r.Result.Exit.Code != code {
		t.Errorf("the run is %s with %+v, want exit code %d", r.State, r.Result, code)
	}
}

func TestInteractiveRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.putConsole()
	for field, req := range map[string]caisson.RunRequest{
		"interactive": {Agent: "echo"},
		"prompt":      {Agent: "console", Prompt: "x"},
		"session":     {Agent: "console", Session: "s"},
		"limits.time": {Agent: "console", Limits: caisson.AgentLimits{Time: -1}},
	} {
		req.Interactive = true
		_, err := w.Runs().StartRun(w.ctx(), req)
		if wantKind(t, err, caisson.Invalid); caisson.FieldOf(err) != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	_, err := w.Runs().StartRun(w.ctx(), caisson.RunRequest{Agent: "console", Interactive: true, History: []caisson.Message{{Role: "user", Content: "x"}}})
	wantKind(t, err, caisson.Invalid)
	w.empty()
}

// TestInteractiveTime: a local user's run may last for weeks; over a token it has the agent's time.
func TestInteractiveTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.putConsole()
	token, usual := w.as(caisson.LocalAccount), caisson.DefaultAgentLimits().Time
	for _, c := range []struct {
		ctx         context.Context
		asked, want caisson.Duration
	}{
		{w.ctx(), 0, 30 * 24 * hour}, {w.ctx(), hour / 2, hour / 2}, {w.ctx(), 100 * 24 * hour, 100 * 24 * hour},
		{token, 0, usual}, {token, usual / 2, usual / 2}, {token, usual + 1, 0},
	} {
		r, err := w.Runs().StartRun(c.ctx, caisson.RunRequest{Agent: "console", Interactive: true, Limits: caisson.AgentLimits{Time: c.asked}})
		if c.want == 0 {
			wantKind(t, err, caisson.Denied)
			continue
		}
		must(t, err)
		if r = w.opened(r.ID); r.Limits.Time != c.want || r.Deadline.After(time.Now().Add(time.Duration(c.want))) {
			t.Errorf("it asks for %v and has %v, until %v", c.asked, r.Limits.Time, r.Deadline)
		}
		got(w.Runs().CancelRun(w.ctx(), r.ID))(t)
	}
	w.empty()
}

// TestInteractiveEnds: an interactive run ends with its program, or the program with the run.
func TestInteractiveEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.putConsole()
	for _, code := range []int{0, 3} {
		r := w.sit(caisson.RunRequest{})
		w.says(r, "one", "1 one")
		wantExit(t, w.leaves(r, code), code)
	}
	wantFailed(t, w.leaves(w.sit(caisson.RunRequest{}), 127), caisson.RunAgentError, "cannot be started")

	r := w.sit(caisson.RunRequest{})
	got(w.Runs().CancelRun(w.ctx(), r.ID))(t)
	wantFailed(t, w.ended(r.ID), caisson.RunAborted, "cancelled")
	wantFailed(t, w.ended(w.sit(caisson.RunRequest{Limits: caisson.AgentLimits{Time: caisson.Duration(4 * time.Second)}}).ID), caisson.RunTimeout, "4s")

	r = w.sit(caisson.RunRequest{})
	must(t, w.rt.Kill(r.Sandbox))
	wantFailed(t, w.ended(r.ID), caisson.RunAgentError, "sandbox ended")
	r = w.sit(caisson.RunRequest{})
	must(t, w.boxes.Remove(w.ctx(), string(r.Sandbox)))
	wantFailed(t, w.ended(r.ID), caisson.RunAgentError, "sandbox")
	w.empty()

	// In a sandbox that is kept, the program ends with its run, too.
	r = w.sit(caisson.RunRequest{Keep: true})
	got(w.Runs().CancelRun(w.ctx(), r.ID))(t)
	w.empty(r.Sandbox)
	w.eventually(func() bool { return !w.running(r.Sandbox, "console") })
	if sb := w.box(r.Sandbox); sb.State != caisson.Running || sb.Assigned != nil {
		t.Errorf("the sandbox is %+v", sb)
	}
}

// running reports whether a program runs in a sandbox.
func (w *world) running(box caisson.ID, program string) bool {
	w.t.Helper()
	list := got(w.life.Processes().ListProcesses(w.ctx(), string(box)))(w.t)
	return slices.ContainsFunc(list, func(p caisson.ProcessInfo) bool { return p.Command == program })
}

// TestInteractiveWaits: while the terminal cannot be reached, and while the sandbox is suspended, the run goes on.
func TestInteractiveWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.putConsole()
	w.boxes.fail("attach terminal", 2, caisson.Errorf(caisson.NotFound, "nobody listens"))
	r := w.sit(caisson.RunRequest{})
	w.eventually(func() bool { return w.boxes.count("attach terminal") > 2 })
	w.boxes.on(nil)
	w.says(r, "one", "1 one")
	got(w.boxes.Suspend(w.ctx(), string(r.Sandbox)))(t)
	got(w.boxes.Wake(w.ctx(), string(r.Sandbox)))(t)
	w.says(r, "two", "2 two")
	wantExit(t, w.leaves(r, 0), 0)
	w.empty()
}

// TestInteractiveSurvives: the agent of an interactive run works on while there is no daemon, and the next one has the run, whatever has
// become of the agent's entry and its models. What becomes of the run afterwards is as without a restart.
func TestInteractiveSurvives(t *testing.T) {
	t.Parallel()
	w := plan{limits: limitsOf(1, 1)}.world(t)
	relay := &relay{steps: &w.steps, in: map[caisson.ID]bool{}, deliveries: map[caisson.ID]*caisson.Delivery{}}
	w.down()
	w.config.Work.Relay = relay
	w.up()
	for _, c := range []struct {
		name   string
		req    caisson.RunRequest
		down   func(r *caisson.Run) // while there is no daemon
		up     func(r *caisson.Run) // with the next one
		code   string               // of the failure
		words  string
		gone   bool // there is no program any more
		remain bool // the sandbox is kept
	}{
		{name: "plain"},
		{name: "kept", req: caisson.RunRequest{Keep: true}, remain: true},
		{name: "on a repository", req: caisson.RunRequest{Repo: &caisson.RepoRequest{Name: "r"}}},
		{name: "its agent was removed", down: func(*caisson.Run) {
			must(t, w.store.Store.Agents().Delete(context.Background(), caisson.In(caisson.LocalAccount), "console"))
		}},
		{name: "its model was removed", down: func(*caisson.Run) { w.models.set(nil, "other") }},
		{
			name: "cancelled", up: func(r *caisson.Run) { got(w.Runs().CancelRun(w.ctx(), r.ID))(t) },
			code: caisson.RunAborted, words: "cancelled", gone: true,
		},
		{
			name: "cancelled in a kept sandbox", req: caisson.RunRequest{Keep: true},
			up:   func(r *caisson.Run) { got(w.Runs().CancelRun(w.ctx(), r.ID))(t) },
			code: caisson.RunAborted, words: "cancelled", gone: true, remain: true,
		},
		{
			name: "its sandbox died", down: func(r *caisson.Run) { must(t, w.rt.Kill(r.Sandbox)) },
			code: caisson.RunAgentError, words: "sandbox ended", gone: true,
		},
		{
			name: "its time is over", down: func(r *caisson.Run) {
				got(w.store.Store.Runs().Update(context.Background(), caisson.AllAccounts(), r.ID, func(r *caisson.Run) error {
					r.Deadline = time.Now().Add(-time.Second)
					return nil
				}))(t)
			}, code: caisson.RunTimeout, gone: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.models.set(nil, "small")
			w.put(caisson.Agent{ID: "console", Interactive: []string{"/bin/console"}, Models: []string{"small"}})
			r := w.sit(c.req)
			w.says(r, "one", "1 one")
			next := w.start(caisson.RunRequest{Prompt: "x"})
			w.down()
			if c.down != nil {
				c.down(r)
			}
			w.up()
			if c.up != nil {
				c.up(r)
			}
			if !c.gone {
				w.says(r, "two", "2 two")
				if s := w.stored(next.ID).State; s != caisson.RunQueued {
					t.Errorf("a run that waited for its place is %s", s)
				}
				wantExit(t, w.leaves(r, 0), 0)
			} else {
				wantFailed(t, w.ended(r.ID), c.code, c.words)
			}
			wantAnswer(t, w.ended(next.ID), "you said x")
			r = w.stored(r.ID)
			if d := r.Result.Delivery; c.req.Repo != nil && (d == nil || d.State != caisson.DeliveryDelivered) {
				t.Errorf("what the agent has done is not delivered: %+v", d)
			}
			if !c.remain {
				w.empty()
				return
			}
			w.empty(r.Sandbox)
			w.eventually(func() bool { return !w.running(r.Sandbox, "console") })
			must(t, w.boxes.Remove(w.ctx(), string(r.Sandbox)))
		})
	}
}

// TestInteractiveUnopened: a run without a terminal does not survive the daemon, and what it has is removed.
func TestInteractiveUnopened(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.putConsole()
	reached := make(chan bool, 1)
	w.boxes.on(func(ctx context.Context, op string) error {
		if op != "create terminal" {
			return nil
		}
		reached <- true
		<-ctx.Done()
		return errors.Join(ctx.Err(), context.Cause(ctx))
	})
	r := w.start(caisson.RunRequest{Agent: "console", Interactive: true})
	receive(t, reached)
	w.restart()
	wantFailed(t, w.ended(r.ID), caisson.RunInternal, "daemon ended")
	poll.Until(t, patience, w.Idle)
	w.empty()
}
