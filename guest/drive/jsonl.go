package drive

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// jsonlDriver is the driver [caisson.DriverJSONL]: each line of standard output is a JSON value in one of several dialects.
// Other lines go only to the log.
type jsonlDriver struct{}

// A dialect parses the lines of one kind of agent.
type dialect interface {
	// line processes one JSON value and reports whether the dialect defines it.
	line(raw []byte, s *turnState) bool
	// reportsEnd reports whether agents of this kind write a line at the end of their turn.
	reportsEnd() bool
}

// turnState is the state of a turn: the output of the agent so far.
type turnState struct {
	out     Out
	answer  *Answer
	tools   map[string]bool // calls that have begun and not ended
	done    bool            // the agent has reported the end of its turn
	err     *caisson.RunError
	version string           // version of the agent
	usage   caisson.RunUsage // the last usage that the agent has reported
}

// maxTools is the maximum number of open calls that are recorded.
const maxTools = 10000

func newTurnState(t *task.Task, out Out) *turnState {
	return &turnState{out: out, answer: NewAnswer(out, int(t.Output)), tools: map[string]bool{}}
}

// toolStart reports the start of a call, once.
func (s *turnState) toolStart(id, name string, args any) {
	if s.tools[id] || len(s.tools) >= maxTools {
		return
	}
	s.tools[id] = true
	s.answer.EndMessage()
	s.out.ToolStart(id, name, args)
}

// toolResult reports the end of a call whose start was reported.
func (s *turnState) toolResult(id, result string, isError bool) {
	if s.tools[id] {
		delete(s.tools, id)
		s.out.ToolResult(id, result, isError)
	}
}

// report reports the usage that the agent counts.
func (s *turnState) report(u caisson.RunUsage) {
	s.usage = u
	s.out.Usage(u)
}

func (jsonlDriver) Run(ctx context.Context, t *task.Task, out Out) (End, error) {
	d, err := dialectOf(t.Events)
	if err != nil {
		return End{Error: newError(caisson.RunInvalid, err.Error())}, nil
	}
	s := newTurnState(t, out)
	var valid, other int
	done := make(chan struct{})
	var over sync.Once
	end, err := runOnce(ctx, t, out, done, func(r io.Reader) {
		lines := newLines(r, maxJSON)
		for {
			line, whole, ok := lines.next()
			if !ok {
				return
			}
			out.Log(caisson.LogStdout, append(line, '\n'))
			if line = bytes.TrimSpace(line); len(line) == 0 {
				continue
			}
			if whole && json.Valid(line) && d.line(line, s) {
				valid++
			} else {
				other++
			}
			if s.done {
				out.Mark(task.MarkAnswer)
				over.Do(func() { close(done) })
			}
		}
	})
	if err != nil {
		return end, err
	}
	end.Agent = s.version
	end.Error = turnError(s, d, end.Error, valid, other)
	return end, nil
}

// turnError returns the error of a turn, or nil. The agent's own report takes precedence over the exit status of its program.
func turnError(s *turnState, d dialect, exit *caisson.RunError, valid, other int) *caisson.RunError {
	switch {
	case s.err != nil:
		return s.err
	case s.done:
		return nil // failures of the program after the answer are ignored
	case exit != nil:
		return exit
	case valid == 0:
		return newError(caisson.RunAgentError, fmt.Sprintf("the agent has ended without a line of JSON that is known (%d others are in its log)", other))
	case d.reportsEnd():
		return newError(caisson.RunAgentError, "the agent has ended without saying that it is done")
	case s.answer.Empty():
		return newError(caisson.RunAgentError, "the agent has ended without an answer")
	}
	return nil
}

// dialectOf returns the dialect that an agent's catalog entry names, or that of its paths.
func dialectOf(events map[string]string) (dialect, error) {
	name := events["dialect"]
	known := map[string]dialect{"codex": &codex{}, "claude": &claude{}, "opencode": &opencode{}, "caisson": &caissonEvents{}}
	switch {
	case name != "" && known[name] != nil:
		return known[name], nil
	case name != "":
		return nil, fmt.Errorf("there is no dialect %.40q; write codex, claude, opencode or caisson, or the paths of text, final, error, tool, result and usage", name)
	case len(events) > 0:
		return newByPath(events)
	}
	return &autoDialect{}, nil
}

// autoDialect is the dialect of agents that name none: the first one that accepts a line.
type autoDialect struct{ chosen dialect }

func (g *autoDialect) line(raw []byte, s *turnState) bool {
	if g.chosen != nil {
		return g.chosen.line(raw, s)
	}
	for _, d := range []dialect{&codex{}, &claude{}, &opencode{}, &caissonEvents{}} {
		if d.line(raw, s) {
			g.chosen = d
			return true
		}
	}
	return false
}

func (g *autoDialect) reportsEnd() bool { return g.chosen != nil && g.chosen.reportsEnd() }

// joinTexts returns the text of a JSON value that is a string or a list of blocks with text.
func joinTexts(raw json.RawMessage) string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var blocks []struct {
		Text    string `json:"text"`
		Content *struct {
			Text string `json:"text"`
		} `json:"content"`
	}
	if json.Unmarshal(raw, &blocks) != nil {
		return ""
	}
	var all []string
	for _, b := range blocks {
		if b.Content != nil {
			b.Text += b.Content.Text
		}
		if b.Text != "" {
			all = append(all, b.Text)
		}
	}
	return strings.Join(all, "\n")
}

// dollars converts an amount that is a floating-point number in JSON. Values outside of 0 to 1e6 become 0.
func dollars(f float64) caisson.USD {
	if !(f > 0 && f < 1e6) {
		return 0
	}
	return caisson.USD(f * float64(caisson.Dollar))
}
