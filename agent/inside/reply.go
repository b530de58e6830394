package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Bounds of one answer.
const (
	maxStream    = 64 << 20 // bytes
	maxEvent     = 4 << 20  // bytes of the data of one of its events
	maxCalls     = 64
	maxArguments = 1 << 20
	maxExtra     = 256 << 10
	maxName      = 128
	maxCallID    = 256
)

var errTooLong = errors.New("the answer is larger than it may be")

// bounded reads from Reader, and fails with errTooLong once it has returned left bytes, which is one more than are allowed.
type bounded struct {
	io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errTooLong
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// Why an answer ended.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishCalls  = "tool_calls"
	finishFilter = "content_filter"
)

// raw is JSON that is passed on as it is.
type raw = json.RawMessage

// reply is an answer of the model, as far as it has come.
type reply struct {
	text      strings.Builder
	reasoning strings.Builder
	refusal   strings.Builder
	calls     []call
	finish    string      // why it ended, in OpenAI's words; "" if it did not say
	done      bool        // nothing follows
	thinking  int         // bytes of thoughts
	thoughts  []block     // of Anthropic's models
	places    map[int]int // of Anthropic's blocks, by index; see place
	usage     *caisson.TokenCount
	prompt    int64 // tokens that the model has read, cached ones included
}

// say takes text of the answer, and returns it.
func (r *reply) say(text string) (string, error) {
	if r.text.Len()+len(text) > maxAnswer {
		return "", errTooLong
	}
	r.text.WriteString(text)
	return text, nil
}

// thought counts bytes of thoughts, which are no part of the answer.
func (r *reply) thought(size int) error {
	if r.thinking += size; r.thinking > 4*maxAnswer {
		return errTooLong
	}
	return nil
}

// call returns the call at a place, which it makes if need be.
func (r *reply) call(at int) (*call, error) {
	if at < 0 || at >= maxCalls {
		return nil, errTooLong
	}
	// A place may be left out; what stays without a name is dropped at the end.
	for len(r.calls) <= at {
		r.calls = append(r.calls, call{Type: "function"})
	}
	return &r.calls[at], nil
}

// check returns an error if a call has become larger than it may be.
func (c *call) check() error {
	if len(c.Function.Arguments) > maxArguments || len(c.Extra)+len(c.signature) > maxExtra || len(c.Function.Name) > maxName {
		return errTooLong
	}
	return nil
}

// end makes the calls such that they can be sent back: each has a name, and an id of its own in the conversation. taken reports whether an
// id is used already.
func (r *reply) end(taken func(id string) bool) {
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
		for n := 1; c.ID == "" || len(c.ID) > maxCallID || !plain(c.ID) || seen[c.ID] || taken(c.ID); n++ {
			c.ID = fmt.Sprintf("call_%d_%d", len(calls), n)
		}
		seen[c.ID] = true
		calls = append(calls, c)
	}
	r.calls = calls
}

// broken reports whether an answer that came to its end is not one.
func (r *reply) broken() error {
	if r.finish == "" && r.text.Len() == 0 && len(r.calls) == 0 && r.refusal.Len() == 0 {
		return errors.New("the answer has nothing in it")
	}
	return nil
}
