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
	"github.com/caisson-dev/caisson/agent/task"
)

// jsonlDriver is [caisson.DriverJSONL]: each line of standard output is a JSON value in one of several dialects. Other lines go to the log only.
type jsonlDriver struct{}

// A dialect understands the lines of one kind of agent.
type dialect interface {
	// line takes one JSON value and reports whether it is one of the dialect's.
	line(raw []byte, s *speech) bool
	// ends reports whether agents of this kind say in a line of their own that their turn is over.
	ends() bool
}

// speech is what an agent has said so far.
type speech struct {
	out    Out
	answer *Answer
	tools  map[string]bool // calls that have begun and not ended
	done   bool            // the agent has said that its turn is over
	err    *caisson.RunError
	agent  string // its version
	usage  caisson.RunUsage
}

// maxTools bounds the calls that are remembered as open.
const maxTools = 10000

func newSpeech(t *task.Task, out Out) *speech {
	return &speech{out: out, answer: NewAnswer(out, int(t.Output)), tools: map[string]bool{}}
}

// toolStart says that a call has begun, once.
func (s *speech) toolStart(id, name string, args any) {
	if s.tools[id] || len(s.tools) >= maxTools {
		return
	}
	s.tools[id] = true
	s.answer.Break()
	s.out.ToolStart(id, name, args)
}

// toolResult says that a call has ended; one that was not said to have begun has none.
func (s *speech) toolResult(id, result string, isError bool) {
	if s.tools[id] {
		delete(s.tools, id)
		s.out.ToolResult(id, result, isError)
	}
}

// report says what was used, as the agent has it.
func (s *speech) report(u caisson.RunUsage) {
	s.usage = u
	s.out.Usage(u)
}

func (jsonlDriver) Run(ctx context.Context, t *task.Task, out Out) (End, error) {
	d, err := dialectOf(t.Events)
	if err != nil {
		return End{Error: fault(caisson.RunInvalid, err.Error())}, nil
	}
	s := newSpeech(t, out)
	var valid, other int
	done := make(chan struct{})
	var over sync.Once
	end, err := once(ctx, t, out, done, func(r io.Reader) {
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
	end.Agent = s.agent
	end.Error = verdict(s, d, end.Error, valid, other)
	return end, nil
}

// verdict says what became of a turn: what the agent says of it itself comes first, then how its program ended.
func verdict(s *speech, d dialect, exit *caisson.RunError, valid, other int) *caisson.RunError {
	switch {
	case s.err != nil:
		return s.err
	case s.done:
		return nil // what its program did afterwards does not undo the answer
	case exit != nil:
		return exit
	case valid == 0:
		return fault(caisson.RunAgentError, fmt.Sprintf("the agent has ended without a line of JSON that is known (%d others are in its log)", other))
	case d.ends():
		return fault(caisson.RunAgentError, "the agent has ended without saying that it is done")
	case s.answer.Empty():
		return fault(caisson.RunAgentError, "the agent has ended without an answer")
	}
	return nil
}

// dialectOf returns the dialect that an agent's entry in the catalog names, or the one for the paths that it has.
func dialectOf(events map[string]string) (dialect, error) {
	name := events["dialect"]
	known := map[string]dialect{"codex": &codex{}, "claude": &claude{}, "opencode": &opencode{}, "caisson": &plainEvents{}}
	switch {
	case name != "" && known[name] != nil:
		return known[name], nil
	case name != "":
		return nil, fmt.Errorf("there is no dialect %.40q; write codex, claude, opencode or caisson, or the paths text, final, error and usage", name)
	case len(events) > 0:
		return newPaths(events)
	}
	return &guess{}, nil
}

// guess is the dialect of agents that name none: whichever understands the first line.
type guess struct{ is dialect }

func (g *guess) line(raw []byte, s *speech) bool {
	if g.is != nil {
		return g.is.line(raw, s)
	}
	for _, d := range []dialect{&codex{}, &claude{}, &opencode{}, &plainEvents{}} {
		if d.line(raw, s) {
			g.is = d
			return true
		}
	}
	return false
}

func (g *guess) ends() bool { return g.is != nil && g.is.ends() }

// texts joins the text of what may be a string or a list of blocks with text.
func texts(raw json.RawMessage) string {
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

// dollars returns an amount that is a floating point number in JSON.
func dollars(f float64) caisson.USD {
	if !(f > 0 && f < 1e6) {
		return 0
	}
	return caisson.USD(f * float64(caisson.Dollar))
}
