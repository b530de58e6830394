package inside

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/caisson-dev/caisson"
)

const (
	maxEmpty = 2 // empty answers in a row that are asked about
	sayStuck = 3 // equal calls with equal failures, after which the model is told
	endStuck = 6 // and after which the run ends
)

// What the model is told when it does not go on by itself. It is marked so that it is not taken for the words of a person.
const (
	sayEmpty  = "[Your answer was empty. Go on with the task; if it is done, say what you did and what came of it.]"
	sayForgot = "\n\nEarlier steps of this conversation have been left out to make room. Look again at what you need of them."
	sayLimit  = "[All %d steps of this task are used, and tools are off now. Say what you have done, what came of it, and what is left to do.]"
)

// agent works on one task.
type agent struct {
	config  *config
	out     *output
	chat    *chat
	box     *toolbox
	memory  *memory // nil if nothing is to be remembered
	system  message
	talk    []message // all but the system's message
	task    int       // place in talk of what is to be done
	perUnit float64   // bytes of a request per token, as far as is known
	ceiling int64     // bytes of talk that the model has refused as too many, or nearly; 0 if it has not
	forgot  bool      // messages have been dropped from talk, and the model has been told
	stuck   stuck
}

func newAgent(c *config, out *output) (*agent, error) {
	gateway, err := parseServer(c.gateway)
	if err != nil {
		return nil, invalidArg("--gateway", err)
	}
	box, err := newToolbox(c)
	if err != nil {
		return nil, err
	}
	api, err := apiOf(c.api, c.model)
	if err != nil {
		return nil, invalidArg("--api", err)
	}
	a := &agent{
		config: c, out: out, box: box, perUnit: bytesPerToken,
		chat: &chat{gateway: gateway, alias: c.model, api: api, tools: box.definitions(), out: out, wait: pause},
	}
	a.system = message{Role: roleSystem, Content: systemPrompt(c.workspace, box)}
	if c.session != "" {
		if a.memory, a.talk, err = recall(c.state, c.session); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func invalidArg(name string, err error) error {
	return &caisson.RunError{Code: caisson.RunInvalid, Message: name + ": " + err.Error()}
}

// close ends what the tools have left running.
func (a *agent) close() {
	a.box.shell.close()
	if a.memory != nil {
		a.memory.close()
	}
}

// fixed returns the bytes of a request that are always there.
func (a *agent) fixed() int64 {
	n := a.system.size()
	for _, t := range a.chat.tools {
		n += int64(len(t.Name) + len(t.Description) + len(t.Parameters) + 64)
	}
	return n
}

// budget returns how many bytes talk may have.
func (a *agent) budget() int64 {
	n := int64(float64(a.config.context)*a.perUnit) - a.fixed()
	n = max(n, 2*a.talk[a.task].size()) // a long task is there to be read, unless the model refuses it
	if a.ceiling > 0 {
		n = min(n, a.ceiling)
	}
	return n
}

// add appends a message to the conversation, and to what is remembered of it. A task does not fail because its memory does, as on a full
// disk; but that is said.
func (a *agent) add(m message) {
	a.talk = append(a.talk, m)
	if a.memory == nil {
		return
	}
	if err := a.memory.append(m); err != nil {
		a.memory.close()
		a.memory = nil
		a.out.status("warning", "The conversation can no longer be kept, and the next run will not know how this one went on: "+err.Error())
	}
}

// run does the task that r says.
func (a *agent) run(ctx context.Context, r io.Reader) error {
	prompt, err := readPrompt(r)
	if err != nil {
		return err
	}
	a.task = len(a.talk)
	a.add(message{Role: roleUser, Content: prompt})
	for step, empty := 0, 0; ; {
		last := step == a.config.steps
		reply, err := a.ask(ctx, last)
		if err != nil {
			return err
		}
		if err := a.judge(reply); err != nil {
			return err
		}
		text := reply.text.String()
		switch {
		case len(reply.calls) > 0 && !last:
			step, empty = step+1, 0
			if err := a.work(ctx, reply); err != nil {
				return err
			}
			if step == a.config.steps {
				a.out.status("warning", "All steps are used; the agent is asked to sum up.")
				a.add(message{Role: roleUser, Content: fmt.Sprintf(sayLimit, step)})
			}
		case text != "":
			if last {
				a.out.status("warning", fmt.Sprintf("The agent ended because it had used all of its %d steps.", step))
			}
			a.add(message{Role: roleAssistant, Content: text})
			return a.out.final()
		case empty == maxEmpty || last:
			return &caisson.RunError{Code: caisson.RunAgentError, Message: "the model ended without an answer, also when it was asked for one; try again, or take another model"}
		default:
			empty++
			a.add(message{Role: roleUser, Content: sayEmpty})
		}
	}
}

// judge returns an error if an answer is the end of the run and no answer.
func (a *agent) judge(r *reply) error {
	switch {
	case r.refusal.Len() > 0 && len(r.calls) == 0:
		return &caisson.RunError{Code: caisson.RunAgentError, Message: "the model refuses: " + clip(r.refusal.String(), 2<<10)}
	case r.finish == finishFilter:
		return &caisson.RunError{Code: caisson.RunAgentError, Message: "the provider of the model withheld an answer, because of its rules about content; put the task differently"}
	case r.finish == finishLength && len(r.calls) == 0 && r.text.Len() > 0:
		a.out.status("warning", "The model's answer was cut at the limit of its length.")
	}
	return nil
}

// ask asks for the next answer, with a shorter conversation if it is too long for the model.
func (a *agent) ask(ctx context.Context, toolsOff bool) (*reply, error) {
	a.out.status("thinking", "")
	a.out.begin()
	if budget := a.budget(); sizeOf(a.talk) > budget {
		a.compact(budget / 10 * 7) // with room, so that the next messages do not make it necessary again
	}
	for {
		have := sizeOf(a.talk)
		r, err := a.chat.ask(ctx, append([]message{a.system}, a.talk...), toolsOff)
		if f, ok := errors.AsType[*failure](err); ok {
			if f.overflow() && a.compact(have/10*6) {
				a.ceiling = have / 10 * 8
				continue
			}
			return nil, f.runError()
		}
		if err != nil {
			return nil, err
		}
		if r.prompt > 1000 { // of fewer too little can be told
			a.perUnit = min(max(float64(have+a.fixed())/float64(r.prompt), 1), 8)
		}
		r.end(a.called)
		return r, nil
	}
}

// compact shortens the conversation, and reports whether it could.
func (a *agent) compact(budget int64) bool {
	size, length := sizeOf(a.talk), len(a.talk)
	a.talk, a.task = trim(a.talk, a.task, budget)
	if len(a.talk) < length && !a.forgot {
		a.forgot = true
		a.system.Content += sayForgot
	}
	if sizeOf(a.talk) == size {
		return false
	}
	a.out.status("compacting", "")
	return true
}

// called reports whether the conversation has a call with this id.
func (a *agent) called(id string) bool {
	for i := range a.talk {
		for _, c := range a.talk[i].ToolCalls {
			if c.ID == id {
				return true
			}
		}
	}
	return false
}

// work does what the model asks for, one call after the other.
func (a *agent) work(ctx context.Context, r *reply) error {
	text := r.text.String()
	a.add(message{Role: roleAssistant, Content: text, Reasoning: r.reasoning.String(), ToolCalls: r.calls, thoughts: r.thoughts})
	for _, c := range r.calls {
		a.out.status("tool_use", clip(c.Function.Name, maxName))
		a.out.toolStart(c)
		res := a.box.call(ctx, c.Function)
		times := a.stuck.note(c.Function, res)
		if times == sayStuck {
			res.text += "\n\n[This same call has failed in the same way three times. Do not repeat it: find out why it fails, or go another way.]"
		}
		a.out.toolResult(c, res)
		a.add(message{Role: roleTool, Content: res.text, ToolCallID: c.ID})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case a.out.err != nil:
			return a.out.err
		case times >= endStuck:
			return &caisson.RunError{
				Code:    caisson.RunAgentError,
				Message: fmt.Sprintf("the model repeats a call that always fails in the same way (%.40s, %d times); the run ends here", c.Function.Name, times),
			}
		}
	}
	return nil
}

// stuck counts calls that fail again and again in the same way. What changes something begins the count anew, as a test that fails
// between two edits is work, not a loop.
type stuck struct {
	failed map[string]int
	done   map[string]bool
}

// note takes a call and returns how often it has failed in this way.
func (s *stuck) note(f function, r result) int {
	key := f.Name + "\x00" + f.Arguments
	if !r.failed {
		if r.changed && !s.done[key] {
			s.failed = nil
			if s.done == nil {
				s.done = map[string]bool{}
			}
			s.done[key] = true
		}
		return 0
	}
	if s.failed == nil {
		s.failed = map[string]int{}
	}
	key += "\x00" + r.text
	s.failed[key]++
	return s.failed[key]
}
