package coder

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

const (
	maxAnswer = 1 << 20   // maximum number of bytes of the model's text in a task
	maxFinal  = 512 << 10 // maximum number of bytes of the last message in assistant_final; JSON escapes can double its size
)

// line is a RunEvent without the fields that the engine sets: Seq and At shadow those of RunEvent and are never encoded.
type line struct {
	Seq *struct{} `json:"seq,omitempty"` // always nil: hides RunEvent.Seq from encoding/json
	At  *struct{} `json:"at,omitempty"`  // always nil: hides RunEvent.At from encoding/json
	caisson.RunEvent
}

// output writes the events of a task as lines of JSON. It must be used by one goroutine only.
type output struct {
	w         io.Writer        // receives the lines
	err       error            // first error of writing to w
	textSize  int              // number of bytes of text written so far
	current   strings.Builder  // text of the model's current message so far
	truncated bool             // the text was longer than maxAnswer, and its rest is dropped
	usage     caisson.RunUsage // sum of the usage of all model calls
}

// newOutput returns an output that writes lines to w.
func newOutput(w io.Writer) *output { return &output{w: w} }

// writeEvent writes an event. After an error of a write, nothing is written any more.
func (o *output) writeEvent(e caisson.RunEvent) {
	if o.err != nil {
		return
	}
	b, err := encode(line{RunEvent: e})
	if err == nil {
		_, err = o.w.Write(b)
	}
	o.err = err
}

// encode returns v as a line of JSON. Unlike json.Marshal it does not escape <, > and &, which are frequent in code.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// startMessage begins a message of the model. Between two messages with text there is always a tool call.
func (o *output) startMessage() { o.current.Reset() }

// write writes s, the next part of the text of the current message.
func (o *output) write(s string) {
	s = clean(s)
	if s == "" || o.truncated {
		return
	}
	if o.textSize+len(s) > maxAnswer {
		s, o.truncated = clip(s, maxAnswer-o.textSize), true
	}
	o.textSize += len(s)
	o.current.WriteString(s)
	for s != "" {
		piece := clip(s, task.MaxDelta)
		o.writeEvent(caisson.RunEvent{Type: caisson.EventTextDelta, Delta: piece})
		s = s[len(piece):]
	}
	if o.truncated {
		o.status("warning", "The answer is longer than 1 MiB; the rest of it is left out.")
	}
}

// status reports the phase of the task; label is a short text about it.
func (o *output) status(phase, label string) {
	o.writeEvent(caisson.RunEvent{Type: caisson.EventStatus, Phase: phase, Label: clip(label, task.MaxLabel)})
}

// toolStart reports the start of a tool call. Its arguments, as written by the model, may be invalid JSON.
func (o *output) toolStart(c call) {
	args := json.RawMessage(c.Function.Arguments)
	if len(args) > task.MaxArgs || !json.Valid(args) {
		// The limit is divided by six because a character can take six bytes in a JSON string.
		args, _ = json.Marshal(clip(c.Function.Arguments, task.MaxArgs/6)) // marshalling strings cannot fail
	}
	o.writeEvent(caisson.RunEvent{Type: caisson.EventToolStart, CallID: c.ID, Tool: c.Function.Name, Args: args})
}

// toolResult reports the result of a tool call.
func (o *output) toolResult(c call, r result) {
	o.writeEvent(caisson.RunEvent{
		Type: caisson.EventToolResult, CallID: c.ID, Tool: c.Function.Name, Result: clip(r.text, task.MaxResult), IsError: r.failed,
	})
}

// addUsage adds the tokens of a model call to the usage of the task, and reports the sum.
func (o *output) addUsage(t caisson.TokenCount) {
	o.usage.Calls++
	o.usage.Tokens.Input += t.Input
	o.usage.Tokens.Output += t.Output
	o.usage.Tokens.CacheRead += t.CacheRead
	o.usage.Tokens.CacheWrite += t.CacheWrite
	u := o.usage
	o.writeEvent(caisson.RunEvent{Type: caisson.EventUsage, Usage: &u})
}

// final ends the output with assistant_final, whose content is the current message. Returns an error if an event was not written.
func (o *output) final() error {
	o.writeEvent(caisson.RunEvent{Type: caisson.EventFinal, Content: clip(o.current.String(), maxFinal)})
	if o.err != nil {
		return errors.New("the events cannot be written: " + o.err.Error())
	}
	return nil
}

// fail ends the output with an error.
func (o *output) fail(why *caisson.RunError) {
	o.writeEvent(caisson.RunEvent{Type: caisson.EventError, Error: &caisson.RunError{Code: why.Code, Message: clip(clean(why.Message), 4<<10)}})
}

// clip returns at most n bytes from the beginning of s, without splitting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n = max(n, 0)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// clipEnd returns at most n bytes from the end of s, without splitting a character.
func clipEnd(s string, n int) string {
	if len(s) <= n {
		return s
	}
	i := len(s) - max(n, 0)
	for i < len(s) && !utf8.RuneStart(s[i]) {
		i++
	}
	return s[i:]
}

// clean converts any bytes to valid UTF-8 without terminal sequences, and without control characters except newline and tab.
func clean(s string) string {
	if isPlain(s) {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\x1b':
			i += escapeLength(s[i:]) - 1
		case c == '\r' && i+1 < len(s) && s[i+1] == '\n':
		case c < ' ' && c != '\n' && c != '\t', c == 0x7f:
			b = append(b, 0xff) // invalid UTF-8: ToValidUTF8 replaces a run of such bytes by one U+FFFD
		default:
			b = append(b, c)
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// isPlain reports whether s is valid UTF-8 without control characters except newline and tab, so that clean returns it unchanged.
func isPlain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f })
}

// escapeLength returns the length of the terminal sequence at the beginning of s.
func escapeLength(s string) int {
	if len(s) < 2 || s[1] != '[' {
		return 1
	}
	for i := 2; i < min(len(s), 32); i++ {
		if s[i] >= '@' && s[i] <= '~' {
			return i + 1
		}
	}
	return 1
}
