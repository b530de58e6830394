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

// jsonlDriver is the driver [caisson.DriverJSONL]: each line of standard output is a JSON value in one of several formats. All
// lines go to the log, and lines in an unknown format only to the log.
type jsonlDriver struct{}

// A dialect is a format of JSON lines that a kind of agent writes. It parses the lines.
type dialect interface {
	// line updates s with one line, a JSON value, and reports whether the line belongs to the dialect.
	line(raw []byte, s *turnState) bool
	// reportsEnd reports whether agents with this dialect always write a line that ends the turn.
	reportsEnd() bool
}

// turnState is the state of a turn, as far as it is known from the agent's output so far.
type turnState struct {
	out       Out               // receives the output of the agent
	answer    *Answer           // assembles the answer and writes it to out
	openCalls map[string]bool   // ids of the tool calls that have begun and not ended
	done      bool              // the agent has reported the end of its turn
	err       *caisson.RunError // error that the agent has reported; nil if none
	version   string            // version that the agent has reported; "" if none
	usage     caisson.RunUsage  // the last usage that the agent has reported
}

// maxOpenCalls is the maximum number of tool calls that have begun and not ended. The start of any further call is not reported.
const maxOpenCalls = 10000

// newTurnState returns the state at the beginning of a turn, whose output is written to out.
func newTurnState(t *task.Task, out Out) *turnState {
	return &turnState{out: out, answer: NewAnswer(out, int(t.Output)), openCalls: map[string]bool{}}
}

// toolStart reports the start of a tool call, unless it has been reported before.
func (s *turnState) toolStart(id, name string, args any) {
	if s.openCalls[id] || len(s.openCalls) >= maxOpenCalls {
		return
	}
	s.openCalls[id] = true
	s.answer.EndMessage()
	s.out.ToolStart(id, name, args)
}

// toolResult reports the result of a tool call, if its start was reported.
func (s *turnState) toolResult(id, result string, isError bool) {
	if s.openCalls[id] {
		delete(s.openCalls, id)
		s.out.ToolResult(id, result, isError)
	}
}

// report reports the usage of the turn so far, as counted by the agent.
func (s *turnState) report(u caisson.RunUsage) {
	s.usage = u
	s.out.Usage(u)
}

// Run implements [Driver]. The dialect of the lines is the one that t.Events describes, or is detected if t.Events is empty.
func (jsonlDriver) Run(ctx context.Context, t *task.Task, out Out) (TurnResult, error) {
	d, err := newDialect(t.Events)
	if err != nil {
		return TurnResult{Error: newError(caisson.RunInvalid, err.Error())}, nil
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

// turnError returns the error of a turn, or nil. What the agent reports takes precedence over exit, the error of its program.
// valid and other are the numbers of lines that d has accepted and rejected.
func turnError(s *turnState, d dialect, exit *caisson.RunError, valid, other int) *caisson.RunError {
	switch {
	case s.err != nil:
		return s.err
	case s.done:
		return nil // a failure of the program after it has reported the end of the turn is ignored
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

// newDialect returns the dialect for "events" of an agent's catalog entry: the one that it names, the one that it describes by
// paths, or, if it is empty, one that is detected from the output.
func newDialect(events map[string]string) (dialect, error) {
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

// autoDialect detects the dialect of an agent: the first known dialect that accepts a line parses all further lines.
type autoDialect struct{ chosen dialect } // nil until a line was accepted

// line implements [dialect]: it passes one line to the chosen dialect, or to each until one accepts it, and reports whether one
// has accepted it.
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

// reportsEnd implements [dialect] with the chosen dialect.
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

// dollars converts an amount of dollars from a floating-point number. Amounts that are negative, or 1e6 and more, become 0.
func dollars(f float64) caisson.USD {
	if !(f > 0 && f < 1e6) {
		return 0
	}
	return caisson.USD(f * float64(caisson.Dollar))
}
