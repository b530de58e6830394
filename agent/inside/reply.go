package inside

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Bounds of one answer.
const (
	maxCalls     = 64
	maxArguments = 1 << 20
	maxExtra     = 256 << 10
	maxName      = 128
	maxCallID    = 256
)

// raw is JSON that is passed on as it is.
type raw = json.RawMessage

// reply is an answer of the model, as far as it has come.
type reply struct {
	text      strings.Builder
	reasoning strings.Builder
	refusal   strings.Builder
	calls     []call
	finish    string // why it ended; "" if it did not say
	usage     *caisson.TokenCount
	prompt    int64 // tokens that the model has read, cached ones included
}

// chunk is one event of a stream, or a whole answer, which has messages where chunks have deltas.
type chunk struct {
	Error   raw `json:"error"`
	Choices []struct {
		Delta   *delta  `json:"delta"`
		Message *delta  `json:"message"`
		Finish  *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Details    *struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

type delta struct {
	Content   raw         `json:"content"`
	Refusal   string      `json:"refusal"`
	Reasoning string      `json:"reasoning_content"`
	ToolCalls []callDelta `json:"tool_calls"`
}

type callDelta struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments raw    `json:"arguments"`
	} `json:"function"`
	Extra raw `json:"extra_content"`
}

// textOf returns the text of content: a string, or a list of parts of which those with text count.
func textOf(content raw) (string, error) {
	var s string
	if len(content) == 0 || content[0] != '[' {
		if len(content) == 0 {
			return "", nil
		}
		return s, json.Unmarshal(content, &s)
	}
	var parts []struct {
		Type string `json:"type"`
		Text raw    `json:"text"`
	}
	if err := json.Unmarshal(content, &parts); err != nil {
		return "", err
	}
	var all strings.Builder
	for _, p := range parts {
		if p.Type != "text" {
			continue
		}
		if err := json.Unmarshal(p.Text, &s); err != nil {
			return "", err
		}
		all.WriteString(s)
	}
	return all.String(), nil
}

// add takes an event and returns the text in it.
func (r *reply) add(data []byte) (string, error) {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return "", fmt.Errorf("an event is no answer of a model: %w", err)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return "", failureOf(0, data)
	}
	if u := c.Usage; u != nil {
		t := caisson.TokenCount{Input: max(0, u.Prompt), Output: max(0, u.Completion)}
		r.prompt = t.Input
		if u.Details != nil {
			t.CacheRead = min(max(0, u.Details.Cached), t.Input)
			t.Input -= t.CacheRead
		}
		r.usage = &t
	}
	if len(c.Choices) == 0 {
		return "", nil
	}
	choice := c.Choices[0]
	if choice.Finish != nil && *choice.Finish != "" {
		r.finish = *choice.Finish
	}
	d := choice.Delta
	if choice.Message != nil {
		d = choice.Message
	}
	if d == nil {
		return "", nil
	}
	return r.take(d)
}

func (r *reply) take(d *delta) (string, error) {
	text, err := textOf(d.Content)
	if err != nil {
		return "", fmt.Errorf("the content of an answer is no text: %w", err)
	}
	r.text.WriteString(text)
	r.refusal.WriteString(d.Refusal)
	r.reasoning.WriteString(d.Reasoning)
	if r.text.Len() > maxAnswer || r.refusal.Len() > maxAnswer || r.reasoning.Len() > 4*maxAnswer {
		return "", errTooLong
	}
	for i, piece := range d.ToolCalls {
		if err := r.takeCall(i, piece); err != nil {
			return "", err
		}
	}
	return text, nil
}

// takeCall adds a piece of a call. at is the place of the piece, which counts where it says no index.
func (r *reply) takeCall(at int, piece callDelta) error {
	if piece.Index != nil {
		at = *piece.Index
	} else if len(r.calls) > 0 && piece.ID == "" {
		at = len(r.calls) - 1
	}
	// Some servers give each call of an answer the same index: another id begins another call.
	if at >= 0 && at < len(r.calls) && piece.ID != "" && r.calls[at].ID != "" && piece.ID != r.calls[at].ID {
		at = len(r.calls)
	}
	if at < 0 || at >= maxCalls {
		return errTooLong
	}
	// An index may leave some out; what stays without a name is dropped at the end.
	for len(r.calls) <= at {
		r.calls = append(r.calls, call{Type: "function"})
	}
	c := &r.calls[at]
	if piece.ID != "" {
		c.ID = piece.ID
	}
	if c.Function.Name == "" { // a few repeat it in every piece
		c.Function.Name = piece.Function.Name
	}
	if len(piece.Extra) > 0 {
		c.Extra = bytes.ToValidUTF8(piece.Extra, []byte("\uFFFD"))
	}
	arguments := string(piece.Function.Arguments)
	if strings.HasPrefix(arguments, `"`) {
		if err := json.Unmarshal(piece.Function.Arguments, &arguments); err != nil {
			return err
		}
	} else if arguments == "null" {
		arguments = ""
	}
	c.Function.Arguments += strings.ToValidUTF8(arguments, "\uFFFD")
	if len(c.Function.Arguments) > maxArguments || len(c.Extra) > maxExtra || len(c.Function.Name) > maxName {
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
