package coretest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// agents are the programs of all agents of a [World]. A prompt is a list of steps, which "; " separates:
//
//	say TEXT            add TEXT to the answer
//	tool NAME RESULT    call a tool; the call fails if RESULT begins with !
//	status TEXT         report TEXT as the status
//	child PROMPT        start a sub-run with this prompt
//	flood N             add N KiB to the answer, in as many parts
//	write PATH TEXT     write TEXT to a file of the workspace and report the change
//	log STREAM TEXT     write TEXT to the log STREAM of the run
//	files               add the names of the files in the workspace to the answer
//	wait                wait until a test calls [World.EndWait]
//	fail CODE TEXT      end the run with this error; if CODE is "once", end only the first attempt
//
// Any other step adds itself to the answer. Each attempt calls a model once.
type agents struct {
	w *World // the engine under test, in whose sandboxes the agents run

	mu    sync.Mutex
	turns map[string]*turn // the prompts that are being answered, by the id of the run; guarded by mu
}

// turn is one prompt, with the state of the agent that answers it.
type turn struct {
	*fake.Proc
	*task.Task
	w       *World               // the engine under test
	ctx     context.Context      // ends when the process of the agent is killed
	guest   caisson.Guest        // the sandbox of the agent, as the model gateway sees it
	out     *task.Writer         // the output of the agent
	calls   int                  // number of tool calls so far
	changes []caisson.FileChange // changes of files that were reported so far
	waits   chan struct{}        // closed to end a step "wait"; nil in other steps; guarded by agents.mu
}

// release ends the step "wait" of a run's prompt, in which the agent waits for this call. It returns false if it does not wait.
func (a *agents) release(run caisson.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.turns[string(run)]
	if t == nil || t.waits == nil {
		return false
	}
	close(t.waits)
	t.waits = nil
	return true
}

// wait executes the step "wait" of t: it waits until release is called for the run. It returns false if the process is killed
// before.
func (a *agents) wait(t *turn) bool {
	on := make(chan struct{})
	a.mu.Lock()
	t.waits = on
	a.mu.Unlock()
	select {
	case <-on:
		return true
	case <-t.ctx.Done():
		a.mu.Lock()
		defer a.mu.Unlock()
		t.waits = nil
		return false
	}
}

// drive is the program of an agent in a sandbox. It reads one task from its standard input and executes the steps of the prompt.
func (a *agents) drive(ctx context.Context, p *fake.Proc) int {
	if len(p.Args()) < 2 || p.Args()[1] != "drive" {
		return 0
	}
	line, err := bufio.NewReader(p.Stdin()).ReadBytes('\n')
	if err != nil {
		return 3
	}
	k, err := task.Decode(bytes.TrimSuffix(line, []byte("\n")))
	if err != nil {
		return 4
	}
	guest, err := caisson.GuestOf(a.w.wires.guest(ctx, sandboxOf(p)))
	if err != nil {
		return 5
	}
	t := &turn{Proc: p, Task: k, w: a.w, ctx: ctx, guest: guest, out: task.NewWriter(p.Stdout())}
	a.mu.Lock()
	a.turns[guest.Run] = t
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.turns[guest.Run] == t {
			delete(a.turns, guest.Run)
		}
	}()
	return t.run()
}

// event writes an event to the output of the agent.
func (t *turn) event(e caisson.RunEvent) { t.line(task.Line{RunEvent: e}) }

// line writes a line to the output of the agent.
func (t *turn) line(l task.Line) { t.out.Write(l) }

// say adds s to the answer, in parts of at most task.MaxDelta bytes.
func (t *turn) say(s string) {
	for len(s) > 0 {
		n := min(len(s), task.MaxDelta)
		for n < len(s) && !utf8.RuneStart(s[n]) {
			n--
		}
		t.event(caisson.RunEvent{Type: caisson.EventTextDelta, Delta: s[:n]})
		s = s[n:]
	}
}

// run executes the steps of the prompt and returns the exit code of the agent's process.
func (t *turn) run() int {
	end := task.Line{RunEvent: caisson.RunEvent{Type: task.LineEnd}, Exit: &caisson.ExitStatus{}, Agent: "1"}
	if err := t.charge(); err != nil {
		end.Error = &caisson.RunError{Code: caisson.RunInternal, Message: err.Error()}
	}
	t.line(task.Line{RunEvent: caisson.RunEvent{Type: task.LineMark}, Mark: task.MarkPrompt})
	for _, step := range strings.Split(t.Prompt, "; ") {
		if end.Error != nil {
			break
		}
		if step == "wait" {
			if !t.w.agents.wait(t) {
				return 1
			}
			continue
		}
		end.Error = t.step(step)
	}
	if len(t.changes) > 0 && t.Track != "" {
		t.line(task.Line{RunEvent: caisson.RunEvent{Type: task.LineChanges}, Changes: t.changes})
	}
	if end.Error == nil {
		t.event(caisson.RunEvent{Type: caisson.EventFinal})
	}
	t.line(end)
	return 0
}

// charge records one call of a model by the agent.
func (t *turn) charge() error {
	if t.Model == "" {
		return nil
	}
	return t.w.Charge(t.ctx, caisson.Call{
		ID: caisson.NewID(caisson.CallPrefix), At: time.Now().UTC(), Guest: t.guest,
		Provider: "local", Model: t.Model, Upstream: t.Model, API: "chat", Status: 200,
		Tokens: caisson.TokenCount{Input: 1000, Output: 234}, Cost: caisson.Dollar / 100, FirstByte: 1, Duration: 2,
	})
}

// step executes one step of the prompt. It returns the error that ends the run, or nil.
func (t *turn) step(step string) *caisson.RunError {
	word, rest, _ := strings.Cut(step, " ")
	name, text, _ := strings.Cut(rest, " ")
	switch word {
	case "say":
		t.say(rest)
	case "status":
		t.event(caisson.RunEvent{Type: caisson.EventStatus, Phase: "thinking", Label: rest})
	case "tool":
		t.tool(name, text)
	case "child":
		in, err := json.Marshal(map[string]string{"agent": t.guest.Agent, "prompt": rest})
		if err == nil {
			_, err = t.w.wires.serving().Tool(t.w.wires.guest(t.ctx, t.guest.Sandbox), "start", in)
		}
		if err != nil {
			return &caisson.RunError{Code: caisson.RunAgentError, Message: caisson.MessageOf(err)}
		}
	case "flood":
		n, _ := strconv.Atoi(rest)
		for range n {
			t.say(strings.Repeat("0123456789abcde\n", 64))
		}
	case "write":
		err := os.MkdirAll(filepath.Join(t.Root(), t.Workdir), 0o755)
		if err == nil {
			_, err = t.WriteFile(filepath.Join(t.Workdir, name), []byte(text), false)
		}
		if err != nil {
			return &caisson.RunError{Code: caisson.RunAgentError, Message: err.Error()}
		}
		t.changes = append(t.changes, caisson.FileChange{Path: name, Kind: "modified", Added: 1, Removed: 1})
	case "log":
		t.line(task.Line{RunEvent: caisson.RunEvent{Type: task.LineLog}, Stream: name, Data: []byte(text + "\n")})
	case "files":
		t.say(strings.Join(t.files(), " "))
	case "fail":
		if name != "once" {
			return &caisson.RunError{Code: name, Message: text}
		}
		if t.guest.Attempt == 1 {
			return &caisson.RunError{Code: caisson.RunAgentError, Message: text}
		}
	default:
		t.say(step)
	}
	return nil
}

// tool reports a call of the tool name with the input text, and its result.
func (t *turn) tool(name, text string) {
	t.calls++
	id := "call-" + strconv.Itoa(t.calls)
	args, err := json.Marshal(map[string]string{"input": text})
	if err != nil {
		panic(err) // not possible: a map of strings can be marshalled
	}
	result, isError := strings.CutPrefix(text, "!")
	t.event(caisson.RunEvent{Type: caisson.EventToolStart, CallID: id, Tool: name, Args: args})
	t.event(caisson.RunEvent{Type: caisson.EventToolResult, CallID: id, Result: result, IsError: isError})
}

// files returns the paths of the files and directories in the workspace. The path of a directory ends with a slash.
func (t *turn) files() (names []string) {
	dir := os.DirFS(filepath.Join(t.Root(), t.Workdir))
	_ = fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			name += "/"
		}
		names = append(names, name)
		return nil
	})
	return names
}
