package apitest

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// runCore runs agents that do what their prompt says. A prompt is a list of steps with "; " between them:
//
//	refuse KIND FIELD TEXT   the run is not begun; KIND may be a code of a run's error
//	say TEXT                 TEXT is the next part of the answer
//	tool NAME RESULT         a tool is called; RESULT !TEXT is a failure
//	status TEXT              what the agent is doing, in its words
//	child PROMPT             a run with this prompt is started, and waited for
//	flood N                  N parts of the answer, of a kibibyte each
//	change PATH              a file of the workspace is changed
//	log STREAM TEXT          TEXT is in that log
//	files                    the answer has the names of what is in the workspace
//	wait                     the run goes on when [Memory.Go] says so
//	deliver STATE TEXT       its commits are in that state, with TEXT as the error; without it nothing is delivered
//	fail CODE TEXT           the run fails; only in its first attempt if CODE is once
//
// Any other prompt is answered with itself. Steps are taken by whoever starts, cancels or releases the run: nothing happens beside the calls.
type runCore struct{ m *Memory }

// task is a run with what is left to do.
type task struct {
	caisson.Run
	events []caisson.RunEvent
	steps  []string
	answer strings.Builder
	files  []string
	result caisson.RunResult
	logs   map[string]string
}

func (c runCore) StartRun(ctx context.Context, req caisson.RunRequest) (*caisson.Run, error) {
	files, err := workspace(&req)
	if err != nil {
		return nil, err
	}
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	a, err := agentCore(c).find(ctx, req.Agent)
	if err != nil {
		return nil, err
	}
	if word, rest, _ := strings.Cut(req.Prompt, " "); word == "refuse" {
		return nil, refusal(rest)
	}
	if req.Model != "" && len(a.Models) > 0 && !slices.Contains(a.Models, req.Model) {
		return nil, caisson.Invalidf("model", "the agent %s may not use the model %.40q", a.ID, req.Model)
	}
	if err := c.m.mayWorkOn(caller, req); err != nil {
		return nil, err
	}
	t, err := c.begin(caller, req, "")
	if err != nil {
		return nil, err
	}
	if req.Kind != caisson.WorkspaceVolume {
		t.files = files
	}
	c.m.advance(t)
	return t.copy(), nil
}

// begin needs mu.
func (c runCore) begin(caller caisson.Caller, req caisson.RunRequest, parent caisson.ID) (*task, error) {
	t := &task{Run: caisson.Run{
		ID: caisson.NewID(caisson.RunPrefix), Account: caller.Account, Local: caller.Local, Agent: req.Agent, Request: req, Parent: parent,
		Limits: req.Limits, Model: req.Model, CreatedAt: time.Now().UTC(),
	}}
	t.Request.Directory, t.Request.Workspace = nil, nil
	if p := c.m.run(parent); p != nil {
		t.Lineage = append(slices.Clone(p.Lineage), parent)
	}
	if err := volumeCore(c).take(t); err != nil {
		return nil, err
	}
	if req.Session != "" {
		s := c.m.session(caller.Account, req)
		if s.Run != "" {
			volumeCore(c).freed(t.Sandbox)
			return nil, caisson.Errorf(caisson.Conflict, "the session %s has the run %s under way", s.Key, s.Run)
		}
		s.Run, s.Runs, t.Session = t.ID, s.Runs+1, s.ID
	}
	c.m.runs = append(c.m.runs, t)
	t.begin()
	return t, nil
}

// session needs mu.
func (m *Memory) session(account string, req caisson.RunRequest) *caisson.Session {
	for _, s := range m.sessions {
		if s.Account == account && s.Agent == req.Agent && s.User == req.User && s.Key == req.Session {
			return s
		}
	}
	s := &caisson.Session{
		ID: caisson.NewID(caisson.SessionPrefix), Account: account, Agent: req.Agent, User: req.User, Key: req.Session, CreatedAt: time.Now().UTC(),
	}
	m.sessions = append(m.sessions, s)
	return s
}

// refusal makes the error of a step refuse.
func refusal(s string) error {
	kind, rest, _ := strings.Cut(s, " ")
	field, text, _ := strings.Cut(rest, " ")
	if field == "-" {
		field = ""
	}
	if kind == caisson.RunNoCredits {
		return caisson.Wrap(&caisson.RunError{Code: kind, Message: text}, caisson.Exhausted, "%s", text)
	}
	return &caisson.Error{Kind: caisson.Kind(kind), Field: field, Msg: text, Err: errors.New("a secret cause")}
}

// workspace returns the names of what is to be in the workspace, and closes what it was given.
func workspace(req *caisson.RunRequest) (names []string, err error) {
	if req.Directory != nil {
		dir, ok := req.Directory.(*os.File)
		if !ok {
			return nil, caisson.Errorf(caisson.Invalid, "not a file")
		}
		defer dir.Close()
		if names, err = dir.Readdirnames(-1); err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "source: cannot be read")
		}
		slices.Sort(names)
	}
	if req.Workspace == nil {
		return names, nil
	}
	for tr := tar.NewReader(req.Workspace); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "workspace: is not an archive")
		}
		names = append(names, h.Name)
	}
	if _, err := io.Copy(io.Discard, req.Workspace); err != nil {
		return nil, err
	}
	return names, nil
}

// begin sets out on an attempt.
func (t *task) begin() {
	t.Attempt++
	t.Trace = strings.Repeat("0", 30) + strconv.Itoa(10+t.Attempt%90)
	t.State, t.StartedAt, t.EndedAt = caisson.RunRunning, time.Now().UTC(), time.Time{}
	t.answer.Reset()
	t.logs = map[string]string{}
	t.result = caisson.RunResult{Attempt: t.Attempt, Trace: t.Trace, Usage: caisson.RunUsage{
		Calls: 1, Tokens: caisson.TokenCount{Input: 1000, Output: 234}, Cost: caisson.Dollar / 100,
	}}
	t.steps = strings.Split(t.Request.Prompt, "; ")
	t.say(caisson.RunEvent{Type: caisson.EventStatus, Phase: "queued"})
	t.say(caisson.RunEvent{Type: caisson.EventStatus, Phase: "starting"})
}

func (t *task) say(e caisson.RunEvent) {
	e.Seq, e.At, e.Attempt = int64(len(t.events)+1), time.Now().UTC(), t.Attempt
	t.events = append(t.events, e)
}

func (t *task) delta(s string) {
	t.answer.WriteString(s)
	t.say(caisson.RunEvent{Type: caisson.EventTextDelta, Delta: s})
}

func (t *task) copy() *caisson.Run {
	out := t.Run
	return &out
}

// advance takes steps until there are none or one has to wait. It needs mu.
func (m *Memory) advance(t *task) {
	defer m.notify()
	for len(t.steps) > 0 && !t.State.Ended() {
		step := t.steps[0]
		if step == "wait" {
			return
		}
		t.steps = t.steps[1:]
		m.step(t, step)
	}
	if !t.State.Ended() {
		m.end(t, nil)
	}
}

// step needs mu.
func (m *Memory) step(t *task, step string) {
	word, rest, _ := strings.Cut(step, " ")
	name, text, _ := strings.Cut(rest, " ")
	switch word {
	case "say":
		t.delta(rest)
	case "status":
		t.say(caisson.RunEvent{Type: caisson.EventStatus, Phase: "thinking", Label: rest})
	case "tool":
		id := "call-" + strconv.Itoa(len(t.events))
		args, err := json.Marshal(map[string]string{"input": text})
		if err != nil {
			panic(err) // a string
		}
		result, isError := strings.CutPrefix(text, "!")
		t.say(caisson.RunEvent{Type: caisson.EventToolStart, CallID: id, Tool: name, Args: args})
		t.say(caisson.RunEvent{Type: caisson.EventToolResult, CallID: id, Result: result, IsError: isError})
	case "child":
		child, err := runCore{m}.begin(caisson.Caller{Account: t.Account}, caisson.RunRequest{Agent: t.Agent, Prompt: rest}, t.ID)
		if err != nil {
			panic(err) // it has no session
		}
		t.Children++
		t.say(caisson.RunEvent{Type: caisson.EventStatus, Phase: "running", Child: child.ID})
		m.advance(child)
	case "flood":
		n, _ := strconv.Atoi(rest)
		for range n {
			t.delta(strings.Repeat("0123456789abcde\n", 64))
		}
	case "write":
		rest, _, _ = strings.Cut(rest, " ")
		t.result.Changes = append(t.result.Changes, caisson.FileChange{Path: rest, Kind: "modified", Added: 1, Removed: 1})
	case "log":
		t.logs[name] += text + "\n"
		t.say(caisson.RunEvent{Type: caisson.EventStatus, Phase: "running"})
	case "deliver":
		m.deliver(t, caisson.DeliveryState(name), text)
	case "files":
		t.delta(strings.Join(t.files, " "))
	case "fail":
		if name == "once" {
			if name = caisson.RunAgentError; t.Attempt > 1 {
				return
			}
		}
		m.end(t, &caisson.RunError{Code: name, Message: text})
	default:
		t.delta(step)
	}
}

// end needs mu.
func (m *Memory) end(t *task, failed *caisson.RunError) {
	t.State, t.EndedAt, t.steps = caisson.RunSucceeded, time.Now().UTC(), nil
	if failed != nil {
		t.State = caisson.RunFailed
	}
	t.result.Answer, t.result.Error = t.answer.String(), failed
	result := t.result
	t.Result = &result
	t.say(caisson.RunEvent{Type: caisson.EventUsage, Usage: &result.Usage})
	if failed != nil {
		t.say(caisson.RunEvent{Type: caisson.EventError, Error: failed})
	} else {
		t.say(caisson.RunEvent{Type: caisson.EventFinal, Content: result.Answer})
	}
	t.say(caisson.RunEvent{Type: caisson.EventDone})
	for _, s := range m.sessions {
		if s.Run == t.ID {
			s.Run, s.UsedAt = "", t.EndedAt
		}
	}
	volumeCore{m}.freed(t.Sandbox)
	m.notify()
}

// Go lets a run that waits take its next steps. It reports whether there was one.
func (m *Memory) Go(id caisson.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.run(id)
	if t == nil || len(t.steps) == 0 || t.steps[0] != "wait" {
		return false
	}
	t.steps = t.steps[1:]
	m.advance(t)
	return true
}

// run needs mu; nil if there is none.
func (m *Memory) run(id caisson.ID) *task {
	for _, t := range m.runs {
		if t.ID == id {
			return t
		}
	}
	return nil
}
