package coder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Limits on one answer.
const (
	maxStream    = 64 << 20  // bytes
	maxEvent     = 4 << 20   // data of one event, in bytes
	maxCalls     = 64        // tool calls
	maxArguments = 1 << 20   // arguments of one call, in bytes
	maxExtra     = 256 << 10 // signatures of one call, in bytes
	maxName      = 128       // name of a tool, in bytes
	maxCallID    = 256       // id of a call, in bytes; longer ids are replaced
)

// errTooLong is the error for an answer that exceeds one of the limits above.
var errTooLong = errors.New("the answer is larger than it may be")

// bounded reads from Reader, and fails with errTooLong after left bytes. left must be one more than the limit.
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

// Reasons for which an answer ended.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishCalls  = "tool_calls"
	finishFilter = "content_filter"
)

// raw is JSON that is passed on unchanged.
type raw = json.RawMessage

// reply is the part of a model's answer that has arrived.
type reply struct {
	text      strings.Builder
	reasoning strings.Builder
	refusal   strings.Builder
	calls     []call
	finish    string      // reason for which it ended, as in OpenAI's API; "" if not reported
	done      bool        // the stream is complete
	thinking  int         // size of thoughts, in bytes
	thoughts  []block     // thinking blocks of Anthropic's models
	blocks    map[int]int // Anthropic's blocks by index; see setBlock
	usage     *caisson.TokenCount
	prompt    int64 // number of tokens of the request, including cached ones
}

// addText adds text to the answer, and returns it.
func (r *reply) addText(text string) (string, error) {
	if r.text.Len()+len(text) > maxAnswer {
		return "", errTooLong
	}
	r.text.WriteString(text)
	return text, nil
}

// addThoughts counts the size of thoughts, which are not part of the answer, in bytes.
func (r *reply) addThoughts(size int) error {
	if r.thinking += size; r.thinking > 4*maxAnswer {
		return errTooLong
	}
	return nil
}

// call returns the call at a position, and creates it if necessary.
func (r *reply) call(at int) (*call, error) {
	if at < 0 || at >= maxCalls {
		return nil, errTooLong
	}
	// Positions may be skipped; calls without a name are dropped at the end.
	for len(r.calls) <= at {
		r.calls = append(r.calls, call{Type: "function"})
	}
	return &r.calls[at], nil
}

// check returns an error if a call exceeds the limits.
func (c *call) check() error {
	if len(c.Function.Arguments) > maxArguments || len(c.Extra)+len(c.signature) > maxExtra || len(c.Function.Name) > maxName {
		return errTooLong
	}
	return nil
}

// normalizeCalls makes the calls valid for later requests: each gets a name, and an id that is unique in the conversation. taken reports
// whether an id is in use already.
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

// checkEmpty returns an error if a completed answer is empty.
func (r *reply) checkEmpty() error {
	if r.finish == "" && r.text.Len() == 0 && len(r.calls) == 0 && r.refusal.Len() == 0 {
		return errors.New("the answer is empty")
	}
	return nil
}
