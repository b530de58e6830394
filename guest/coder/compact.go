package coder

import "fmt"

const (
	bytesPerToken = 3.5 // estimated bytes of a request per token, until the model has reported a number of tokens
	shortResult   = 400 // bytes that are left of a shortened tool result
	keptUnits     = 4   // number of the most recent units, which are shortened last; a unit is a message with its tool results
)

// messagesSize returns the approximate size of messages in a request, in bytes.
func messagesSize(talk []message) int64 {
	var n int64
	for i := range talk {
		n += talk[i].size()
	}
	return n
}

// trim shortens a conversation to budget bytes, as far as possible, and returns it. task is the index of the task's prompt, which
// is kept whole, and its new index is returned. Old tool results are shortened first; then the oldest messages are dropped, calls
// always together with their results; the most recent messages are shortened last. talk itself is not modified.
func trim(talk []message, task int, budget int64) ([]message, int) {
	t := &trimmer{talk: append([]message(nil), talk...), task: task, excess: messagesSize(talk) - budget}
	recent := t.unitStart(keptUnits)
	t.shorten(0, recent)
	t.drop(recent)
	t.shorten(0, len(t.talk))
	t.drop(t.unitStart(1))
	return t.talk, t.task
}

// trimmer is the state of the function trim, which shortens a conversation.
type trimmer struct {
	talk   []message // the conversation
	task   int       // index in talk of the task's prompt
	excess int64     // number of bytes by which talk is too long; at most 0 once it is short enough
}

// unitStart returns the index of the message at which the last n units begin. A unit is a message with the results of its calls.
func (t *trimmer) unitStart(n int) int {
	i := len(t.talk)
	for i > 0 && n > 0 {
		i--
		if t.talk[i].Role != roleTool {
			n--
		}
	}
	return i
}

// shorten shortens the tool results in talk[from:to], the oldest first, until excess is at most 0.
func (t *trimmer) shorten(from, to int) {
	for i := from; i < to && t.excess > 0; i++ {
		m := &t.talk[i]
		if m.Role != roleTool || len(m.Content) <= 2*shortResult {
			continue
		}
		before := m.size()
		m.Content = fmt.Sprintf("%s\n[shortened: %d bytes are left out; call the tool again if you need them]\n%s",
			clip(m.Content, shortResult/2), len(m.Content)-shortResult, clipEnd(m.Content, shortResult/2))
		t.excess -= before - m.size()
	}
}

// drop removes messages in talk[:to] and the results of their calls, the oldest first, until excess is at most 0. It keeps the
// task's prompt.
func (t *trimmer) drop(to int) {
	kept := make([]message, 0, len(t.talk))
	task := t.task
	for i := 0; i < len(t.talk); {
		end := i + 1
		for end < len(t.talk) && t.talk[end].Role == roleTool {
			end++
		}
		if i == t.task {
			task = len(kept)
		}
		if t.excess > 0 && i < to && i != t.task {
			t.excess -= messagesSize(t.talk[i:end])
		} else {
			kept = append(kept, t.talk[i:end]...)
		}
		i = end
	}
	t.talk, t.task = kept, task
}

// repair makes a conversation that was read from a file valid for requests: every call has exactly one result, right after it.
func repair(talk []message) []message {
	out := make([]message, 0, len(talk))
	seen := map[string]bool{"": true}
	for i := 0; i < len(talk); i++ {
		m := message{Role: talk[i].Role, Content: talk[i].Content}
		switch m.Role {
		case roleUser:
		case roleAssistant:
			m.Reasoning = talk[i].Reasoning
			for _, c := range talk[i].ToolCalls {
				if c.Function.Name != "" && !seen[c.ID] {
					seen[c.ID], c.Type = true, "function"
					m.ToolCalls = append(m.ToolCalls, c)
				}
			}
		default:
			continue
		}
		if m.Content == "" && len(m.ToolCalls) == 0 {
			continue
		}
		out = append(out, m)
		results := map[string]string{}
		for i+1 < len(talk) && talk[i+1].Role == roleTool {
			i++
			results[talk[i].ToolCallID] = talk[i].Content
		}
		for _, c := range m.ToolCalls {
			text, ok := results[c.ID]
			if !ok {
				text = "[interrupted: the result is not known]"
			}
			out = append(out, message{Role: roleTool, Content: text, ToolCallID: c.ID})
		}
	}
	return out
}
