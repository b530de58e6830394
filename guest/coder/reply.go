package coder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Limits on one answer of a model.
const (
	maxStream    = 64 << 20  // maximum size of the response's body, in bytes
	maxEvent     = 4 << 20   // maximum size of the data of one event of a streamed answer, in bytes
	maxCalls     = 64        // maximum number of tool calls in an answer
	maxArguments = 1 << 20   // maximum size of the arguments of one tool call, in bytes
	maxExtra     = 256 << 10 // maximum size of the thought signatures in one tool call, in bytes
	maxName      = 128       // maximum length of the name of a tool, in bytes
	maxCallID    = 256       // maximum length of the id of a tool call, in bytes; longer ids are replaced
)

// errTooLong is the error for an answer of a model that exceeds a limit on its size.
var errTooLong = errors.New("the answer is larger than it may be")

// bounded reads from Reader, and fails with errTooLong once left bytes were read. left is at first one more than the limit in
// bytes, so that input of exactly the limit is no error.
type bounded struct {
	io.Reader
	left int64 // bytes that can still be read
}

// Read implements [io.Reader].
func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errTooLong
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// Reasons for which a model's answer ended, as named by OpenAI's API.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishCalls  = "tool_calls"
	finishFilter = "content_filter"
)

// raw is a JSON value that is not decoded.
type raw = json.RawMessage

// reply is the part of a model's answer that has arrived so far.
type reply struct {
	text         strings.Builder     // text of the answer
	reasoning    strings.Builder     // the model's reasoning before the answer, in OpenAI's API
	refusal      strings.Builder     // text with which the model refuses to answer
	calls        []call              // tool calls that the model requests
	finish       string              // reason for which the answer ended, as in OpenAI's API; "" if not reported yet
	done         bool                // the stream has ended with its end mark, so the answer is complete
	thoughtsSize int                 // size of the model's thoughts, in bytes
	thoughts     []block             // thinking blocks of Anthropic's models
	blocks       map[int]int         // Anthropic's API, by index of a block: 1 + index in calls, or -1 - index in thoughts
	usage        *caisson.TokenCount // numbers of tokens of the call of the model; nil if not reported
	prompt       int64               // number of tokens of the request, including cached tokens
}

// addText adds text to the answer, and returns the text. Returns errTooLong if the answer exceeds its limit.
func (r *reply) addText(text string) (string, error) {
	if r.text.Len()+len(text) > maxAnswer {
		return "", errTooLong
	}
	r.text.WriteString(text)
	return text, nil
}

// addThoughts adds the size of thoughts, in bytes, to their total. Returns errTooLong if the total exceeds its limit.
func (r *reply) addThoughts(size int) error {
	if r.thoughtsSize += size; r.thoughtsSize > 4*maxAnswer {
		return errTooLong
	}
	return nil
}

// call returns the tool call at index at of the answer, and creates it if necessary.
func (r *reply) call(at int) (*call, error) {
	if at < 0 || at >= maxCalls {
		return nil, errTooLong
	}
	// Indexes may be skipped: calls without a name are dropped when the answer is complete.
	for len(r.calls) <= at {
		r.calls = append(r.calls, call{Type: "function"})
	}
	return &r.calls[at], nil
}

// check returns an error if the tool's name, the arguments, or the thought signatures that some models add to calls are too long.
func (c *call) check() error {
	if len(c.Function.Arguments) > maxArguments || len(c.Extra)+len(c.signature) > maxExtra || len(c.Function.Name) > maxName {
		return errTooLong
	}
	return nil
}

// normalizeCalls makes the calls valid for later requests: it drops calls without a name, and gives each call an id that is
// unique in the conversation. taken reports whether an id is in use already.
func (r *reply) normalizeCalls(taken func(id string) bool) {
	calls := r.calls[:0]
	seen := map[string]bool{}
	for _, c := range r.calls {
		if c.Function.Name == "" {
			continue
		}
		if c.Function.Arguments == "" {
			c.Function.Arguments = "{}"
		}
		c.Function.Name = clean(c.Function.Name)
		for n := 1; c.ID == "" || len(c.ID) > maxCallID || !isPlain(c.ID) || seen[c.ID] || taken(c.ID); n++ {
			c.ID = fmt.Sprintf("call_%d_%d", len(calls), n)
		}
		seen[c.ID] = true
		calls = append(calls, c)
	}
	r.calls = calls
}

// checkEmpty returns an error if an answer that has been received is empty, and no reason for its end was reported.
func (r *reply) checkEmpty() error {
	if r.finish == "" && r.text.Len() == 0 && len(r.calls) == 0 && r.refusal.Len() == 0 {
		return errors.New("the answer is empty")
	}
	return nil
}
