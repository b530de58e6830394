package scripted

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// decode decodes a body whose fields must all be in known.
func decode(body []byte, known []string, into any) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return invalid("", "the body is not a JSON object")
	}
	for name := range fields {
		if !slices.Contains(known, name) {
			return invalid(clip(name, 80), "unrecognized request argument")
		}
	}
	err := json.Unmarshal(body, into)
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return invalid(e.Field, "cannot be %s", e.Value)
	}
	if err != nil {
		return invalid("", "the body has a value of the wrong type")
	}
	return nil
}

// content is a text, or a list of parts, some of which are text.
type content struct {
	parts []part
	null  bool // the JSON value was null
	plain bool // the JSON value was a string
}

// part is a part of OpenAI's content or a block of Anthropic's.
type part struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// Fields of tool_use.
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
	// Fields of tool_result.
	ToolUseID string   `json:"tool_use_id"`
	Content   *content `json:"content"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (c *content) UnmarshalJSON(b []byte) error {
	switch {
	case string(b) == "null":
		c.null = true
		return nil
	case b[0] == '"':
		c.plain = true
		c.parts = []part{{Type: "text"}}
		return json.Unmarshal(b, &c.parts[0].Text)
	case b[0] != '[':
		return invalid("content", "is neither text nor a list")
	}
	if err := json.Unmarshal(b, &c.parts); err != nil {
		return err
	}
	for _, p := range c.parts {
		if p.Type == "" {
			return invalid("content", "has a part without a type")
		}
	}
	return nil
}

// text returns all text in c.
func (c *content) text() string {
	if c == nil {
		return ""
	}
	var all []string
	for _, p := range c.parts {
		if p.Type == "text" || p.Type == "input_text" || p.Type == "output_text" {
			all = append(all, p.Text)
		}
	}
	return strings.Join(all, "\n")
}

// checkLimit checks the field param of a request, a limit of output tokens, and returns its value; 0 if n is nil, which means no
// limit.
func checkLimit(param string, n *int64) (int64, error) {
	if n == nil {
		return 0, nil
	}
	if *n < 1 {
		return 0, invalid(param, "must be at least 1")
	}
	return *n, nil
}
