package coder

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/caisson-dev/caisson"
)

const (
	maxEmptyAnswers = 2 // maximum number of requests in a row to continue after an empty answer; the next empty answer fails the run
	warnAfter       = 3 // number of equal tool calls with equal failures after which the model is warned
	failAfter       = 6 // number of equal tool calls with equal failures after which the run fails
)

// Texts that the agent sends to the model. Those that are sent as messages of the user are in brackets, to distinguish them from
// messages that a user wrote.
const (
	msgEmpty   = "[Your answer was empty. Go on with the task; if it is done, say what you did and what came of it.]"
	msgDropped = "\n\nEarlier steps of this conversation have been left out to make room. Look again at what you need of them."
	msgLimit   = "[All %d steps of this task are used, and tools are disabled. Report the completed work, its results and the remaining work.]"
)

// agent does one task: it sends the conversation to the model and executes the tool calls of the answers.
type agent struct {
	config               *config        // configuration of the agent
	out                  *output        // receives the events of the task
	chat                 *chat          // calls the model
	box                  *toolbox       // tools that the model may call
	memory               *memory        // file that stores the conversation; nil if it is not stored
	system               message        // system message, which every request begins with
	messages             []message      // all messages except the system message
	task                 int            // index of the task's prompt in the field messages
	requestBytesPerToken float64        // estimated number of bytes of a request per token
	messagesLimit        int64          // limit on the bytes of messages, set after the model refused more; 0: none
	dropped              bool           // old messages were removed from the conversation, and the system message mentions that
	failureCounts        failureCounter // failures of the tool calls of this task
}

// newAgent returns the agent for a task with configuration c, and loads the conversation if it is stored.
func newAgent(c *config, out *output) (*agent, error) {
	gateway, err := parseServer(c.gateway)
	if err != nil {
		return nil, invalidArg("--gateway", err)
	}
	box, err := newToolbox(c)
	if err != nil {
		return nil, err
	}
	api, err := findAPI(c.api, c.model)
	if err != nil {
		return nil, invalidArg("--api", err)
	}
	a := &agent{
		config: c, out: out, box: box, requestBytesPerToken: bytesPerToken,
		chat: &chat{gateway: gateway, alias: c.model, api: api, tools: box.definitions(), out: out, wait: pause},
	}
	a.system = message{Role: roleSystem, Content: systemPrompt(c.workspace, box)}
	if c.session != "" {
		if a.memory, a.messages, err = loadMemory(c.state, c.session); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// invalidArg returns the error for an invalid command-line argument.
func invalidArg(name string, err error) error {
	return &caisson.RunError{Code: caisson.RunInvalid, Message: name + ": " + err.Error()}
}

// close kills the processes that the tools have left running, and closes the file that stores the conversation.
func (a *agent) close() {
	a.box.shell.close()
	if a.memory != nil {
		a.memory.close()
	}
}

// fixedSize returns the size of the part of a request that every request has, the system message and the tools, in bytes.
func (a *agent) fixedSize() int64 {
	n := a.system.size()
	for _, t := range a.chat.tools {
		n += int64(len(t.Name) + len(t.Description) + len(t.Parameters) + 64)
	}
	return n
}

// maxMessagesSize returns the maximum size of the conversation without the system message, in bytes.
func (a *agent) maxMessagesSize() int64 {
	n := int64(float64(a.config.maxTokens)*a.requestBytesPerToken) - a.fixedSize()
	// Twice the size of the task's prompt is permitted, unless the model has refused a conversation of that size as too long.
	n = max(n, 2*a.messages[a.task].size())
	if a.messagesLimit > 0 {
		n = min(n, a.messagesLimit)
	}
	return n
}

// add appends a message to the conversation and to the file that stores it. If writing the file fails, as on a full disk, the
// task continues without the file and a warning is reported.
func (a *agent) add(m message) {
	a.messages = append(a.messages, m)
	if a.memory == nil {
		return
	}
	if err := a.memory.append(m); err != nil {
		a.memory.close()
		a.memory = nil
		a.out.status("warning", "The conversation can no longer be kept, and the next run will not know how this one went on: "+err.Error())
	}
}

// run does the task whose prompt r contains.
func (a *agent) run(ctx context.Context, r io.Reader) error {
	prompt, err := readPrompt(r)
	if err != nil {
		return err
	}
	a.task = len(a.messages)
	a.add(message{Role: roleUser, Content: prompt})
	for step, empty := 0, 0; ; {
		last := step == a.config.maxSteps
		reply, err := a.nextReply(ctx, last)
		if err != nil {
			return err
		}
		if err := a.checkReply(reply); err != nil {
			return err
		}
		text := reply.text.String()
		switch {
		case len(reply.calls) > 0 && !last:
			step, empty = step+1, 0
			if err := a.runCalls(ctx, reply); err != nil {
				return err
			}
			if step == a.config.maxSteps {
				a.out.status("warning", "The step limit is reached; the agent is asked to sum up.")
				a.add(message{Role: roleUser, Content: fmt.Sprintf(msgLimit, step)})
			}
		case text != "":
			if last {
				a.out.status("warning", fmt.Sprintf("The agent ended because it had used all of its %d steps.", step))
			}
			a.add(message{Role: roleAssistant, Content: text})
			return a.out.final()
		case empty == maxEmptyAnswers || last:
			return &caisson.RunError{Code: caisson.RunAgentError, Message: "the model ended without an answer, also when it was asked for one; try again, or take another model"}
		default:
			empty++
			a.add(message{Role: roleUser, Content: msgEmpty})
		}
	}
}

// checkReply returns an error if the model refused to answer, or if its provider withheld the answer.
func (a *agent) checkReply(r *reply) error {
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

// nextReply requests the next answer. If the conversation is too long for the model, it is shortened first.
func (a *agent) nextReply(ctx context.Context, toolsOff bool) (*reply, error) {
	a.out.status("thinking", "")
	a.out.startMessage()
	if budget := a.maxMessagesSize(); messagesSize(a.messages) > budget {
		a.compact(budget / 10 * 7) // only 70 % of the limit, so that the next few messages do not exceed it
	}
	for {
		have := messagesSize(a.messages)
		r, err := a.chat.ask(ctx, append([]message{a.system}, a.messages...), toolsOff)
		if f, ok := errors.AsType[*failure](err); ok {
			if f.contextTooLong() && a.compact(have/10*6) {
				a.messagesLimit = have / 10 * 8
				continue
			}
			return nil, f.runError()
		}
		if err != nil {
			return nil, err
		}
		if r.prompt > 1000 { // estimate the bytes per token; a smaller request would make this too inaccurate
			a.requestBytesPerToken = min(max(float64(have+a.fixedSize())/float64(r.prompt), 1), 8)
		}
		r.normalizeCalls(a.hasCall)
		return r, nil
	}
}

// compact shortens the conversation to budget bytes, as far as possible, and reports whether it became shorter.
func (a *agent) compact(budget int64) bool {
	size, length := messagesSize(a.messages), len(a.messages)
	a.messages, a.task = trim(a.messages, a.task, budget)
	if len(a.messages) < length && !a.dropped {
		a.dropped = true
		a.system.Content += msgDropped
	}
	if messagesSize(a.messages) == size {
		return false
	}
	a.out.status("compacting", "")
	return true
}

// hasCall reports whether the conversation has a call with this id.
func (a *agent) hasCall(id string) bool {
	for i := range a.messages {
		for _, c := range a.messages[i].ToolCalls {
			if c.ID == id {
				return true
			}
		}
	}
	return false
}

// runCalls executes the tool calls of an answer, in order, and adds the answer and the results to the conversation.
func (a *agent) runCalls(ctx context.Context, r *reply) error {
	text := r.text.String()
	a.add(message{Role: roleAssistant, Content: text, Reasoning: r.reasoning.String(), ToolCalls: r.calls, thoughts: r.thoughts})
	for _, c := range r.calls {
		a.out.status("tool_use", clip(c.Function.Name, maxName))
		a.out.toolStart(c)
		res := a.box.call(ctx, c.Function)
		times := a.failureCounts.record(c.Function, res)
		if times == warnAfter {
			res.text += "\n\n[This same call has failed in the same way three times. Do not repeat it: find out why it fails, or go another way.]"
		}
		a.out.toolResult(c, res)
		a.add(message{Role: roleTool, Content: res.text, ToolCallID: c.ID})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case a.out.err != nil:
			return a.out.err
		case times >= failAfter:
			return &caisson.RunError{
				Code:    caisson.RunAgentError,
				Message: fmt.Sprintf("the model repeats a call that always fails in the same way (%.40s, %d times); the run ends here", c.Function.Name, times),
			}
		}
	}
	return nil
}

// failureCounter counts calls that fail repeatedly in the same way. The first success of a call that changes something resets the
// counts, because a test that fails between two edits is progress, not a loop.
type failureCounter struct {
	failed map[string]int  // number of failures, by the name, the arguments and the result of the call
	resets map[string]bool // calls that have succeeded and reset the counts, by name and arguments
}

// record records a call with its result, and returns how often the same call has failed with the same result; 0 if it succeeded.
func (s *failureCounter) record(f function, r result) int {
	key := f.Name + "\x00" + f.Arguments
	if !r.failed {
		if r.changed && !s.resets[key] {
			s.failed = nil
			if s.resets == nil {
				s.resets = map[string]bool{}
			}
			s.resets[key] = true
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
