package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// Limits of a chat request.
const (
	maxMessage  = 16000 // maximum number of characters of one message of the user
	maxMessages = 1000  // maximum number of messages of one request
	maxStateKey = 512   // maximum number of characters of a state key, the key of a conversation
	maxParts    = 1000  // maximum number of parts of one message
)

// chatRequest is a validated chat request.
type chatRequest struct {
	prompt   string            // the user's new message
	history  []caisson.Message // the messages before the prompt, oldest first
	model    string            // alias of a model; "" for the default model of the agent
	agent    string            // id of the agent; "" for the default agent
	stateKey string            // key of the conversation; parseChat sets "" if the body has none
}

// chatErrors contains all errors that were found in a chat request.
type chatErrors []protocol.Detail

func (e chatErrors) Error() string { return e.Unwrap().Error() }

// Unwrap returns the first error of e as a [caisson.Error] of kind Invalid.
func (e chatErrors) Unwrap() error {
	if e[0].Path == "" {
		return caisson.Errorf(caisson.Invalid, "%s", e[0].Message)
	}
	return caisson.Invalidf(e[0].Path, "%s", e[0].Message)
}

// chatParser collects the errors that are found while a chat request is parsed, at most 20 of them.
type chatParser struct{ errs chatErrors } // the errors found so far

// addError adds an error in the field at path, "" for the whole body.
func (c *chatParser) addError(path, format string, args ...any) {
	if len(c.errs) < 20 {
		c.errs = append(c.errs, protocol.Detail{Path: path, Message: fmt.Sprintf(format, args...)})
	}
}

// chatBody is the JSON object of a chat request. Besides the documented fields, it has fields that common client libraries always
// send. Of these undocumented fields, only those that would change the answer are checked.
type chatBody struct {
	Message  *string         `json:"message"`   // the user's new message; without it, Messages is required
	Messages json.RawMessage `json:"messages"`  // list of chatMessage, the user's new message last
	Model    *string         `json:"model"`     // alias of a model
	ModelRef json.RawMessage `json:"modelRef"`  // alias of a model, or an object with modelId
	Graph    *string         `json:"graphName"` // id of the agent, with or without protocol.GraphPrefix
	StateKey *string         `json:"stateKey"`  // key of the conversation
	System   json.RawMessage `json:"system"`    // instructions for the agent; must be empty
	Tools    json.RawMessage `json:"tools"`     // tools for the agent; must be empty

	ID        json.RawMessage `json:"id"`        // sent by client libraries, and ignored
	Trigger   json.RawMessage `json:"trigger"`   // sent by client libraries, and ignored
	MessageID json.RawMessage `json:"messageId"` // sent by client libraries, and ignored
	Stream    json.RawMessage `json:"stream"`    // sent by client libraries, and ignored
}

// parseChat parses the body of a chat request. Its errors are of type [chatErrors].
func parseChat(data []byte) (*chatRequest, error) {
	var c chatParser
	var b chatBody
	if !utf8.Valid(data) {
		c.addError("", "the body is not UTF-8")
		return nil, c.errs
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		c.addError(chatDecodeError(err))
		return nil, c.errs
	}
	if d.More() {
		c.addError("", "the body has more than one JSON value")
		return nil, c.errs
	}
	req := &chatRequest{agent: strings.TrimPrefix(deref(b.Graph), protocol.GraphPrefix), stateKey: deref(b.StateKey)}
	c.parseModel(req, &b)
	c.parseConversation(req, &b)
	if msg := checkStateKey(req.stateKey); msg != "" {
		c.addError("stateKey", "%s", msg)
	}
	if b.Graph != nil && req.agent == "" {
		c.addError("graphName", "contains no agent; omit it for the default agent")
	}
	if !isEmptyJSON(b.System) {
		c.addError("system", "an agent's instructions cannot be changed by a chat; write them into the message")
	}
	if !isEmptyJSON(b.Tools) {
		c.addError("tools", "an agent's tools cannot be changed by a chat")
	}
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	return req, nil
}

// chatDecodeError returns the field and the message for an error of the JSON decoder, without the names of Go types.
func chatDecodeError(err error) (path, message string) {
	if e, ok := err.(*json.UnmarshalTypeError); ok { //nolint:errorlint // the decoder does not wrap this error
		return e.Field, "cannot hold " + e.Value
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return strings.Trim(name, `"`), "there is no such field"
	}
	return "", "the body is not a valid JSON object: " + strings.TrimPrefix(err.Error(), "json: ")
}

// deref returns *s, "" if s is nil.
func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// isEmptyJSON reports whether v has no content: clients send null, or an empty list, for fields that they do not use.
func isEmptyJSON(v json.RawMessage) bool {
	if len(v) > 64 {
		return false
	}
	switch string(bytes.Join(bytes.Fields(v), nil)) {
	case "", "null", "[]", "{}", `""`:
		return true
	}
	return false
}

// checkStateKey returns an error message if key is not a valid key of a conversation, "" if it is valid.
func checkStateKey(key string) string {
	if len(key) > maxStateKey {
		return fmt.Sprintf("has %d characters, more than %d", len(key), maxStateKey)
	}
	if strings.ContainsFunc(key, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._:-", r)
	}) {
		return "may contain only letters, digits and . _ : -"
	}
	return ""
}

// parseModel parses the fields model and modelRef of b.
func (c *chatParser) parseModel(req *chatRequest, b *chatBody) {
	req.model = deref(b.Model)
	if isEmptyJSON(b.ModelRef) {
		return
	}
	var name string
	if json.Unmarshal(b.ModelRef, &name) != nil {
		var ref struct {
			ModelID string `json:"modelId"`
		}
		if json.Unmarshal(b.ModelRef, &ref) != nil || ref.ModelID == "" {
			c.addError("modelRef", "must be an alias, or an object with modelId")
			return
		}
		name = ref.ModelID
	}
	if req.model != "" && req.model != name {
		c.addError("modelRef", "names another model than model does")
	}
	req.model = name
}

// parseConversation parses the fields message and messages of b.
func (c *chatParser) parseConversation(req *chatRequest, b *chatBody) {
	switch {
	case b.Message != nil && !isEmptyJSON(b.Messages):
		c.addError("messages", "give either message or messages")
	case b.Message != nil:
		req.prompt = *b.Message
		c.checkText("message", req.prompt)
	case isEmptyJSON(b.Messages):
		c.addError("message", "is required")
	default:
		c.parseMessages(req, b.Messages)
	}
}

// checkText validates the text of a user's message.
func (c *chatParser) checkText(path, text string) {
	switch n := utf8.RuneCountInString(text); {
	case strings.TrimSpace(text) == "":
		c.addError(path, "has no text")
	case n > maxMessage:
		c.addError(path, "has %d characters, more than %d", n, maxMessage)
	}
}

// chatMessage is a message in any of the formats that clients send.
type chatMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"` // a string or a list of parts
	Parts   json.RawMessage `json:"parts"`   // list of parts that is used if Content is empty
}

// parseMessages parses the field messages: the last message is the prompt, and the messages before it are the history.
func (c *chatParser) parseMessages(req *chatRequest, raw json.RawMessage) {
	var list []chatMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		c.addError("messages", "must be a list of objects with role and content")
		return
	}
	if len(list) > maxMessages {
		c.addError("messages", "has %d messages, more than %d", len(list), maxMessages)
		return
	}
	for i, m := range list {
		path := fmt.Sprintf("messages[%d]", i)
		switch m.Role {
		case "user", "assistant":
		case "system", "developer":
			c.addError(path+".role", "an agent's instructions are its own; messages of %s are not taken", m.Role)
			continue
		default:
			c.addError(path+".role", "must be user or assistant")
			continue
		}
		text, ok := c.messageText(path, m)
		if !ok {
			continue
		}
		if m.Role == "user" {
			c.checkText(path+".content", text)
		} else if strings.TrimSpace(text) == "" {
			continue // skip an answer that has only tool calls
		}
		req.history = append(req.history, caisson.Message{Role: m.Role, Content: text})
	}
	switch last := len(req.history) - 1; {
	case len(c.errs) > 0:
	case last < 0 || req.history[last].Role != "user" || list[len(list)-1].Role != "user":
		c.addError("messages", "must end with a message of the user")
	default:
		req.prompt, req.history = req.history[last].Content, slices.Clip(req.history[:last])
	}
}

// messageText returns the text of a message, or adds an error and returns false. It skips parts of an agent's answer other than
// text, such as tool calls, which are not passed to the agent. Such parts are an error in a message of the user.
func (c *chatParser) messageText(path string, m chatMessage) (text string, ok bool) {
	content, path := m.Content, path+".content"
	if isEmptyJSON(content) && !isEmptyJSON(m.Parts) {
		content, path = m.Parts, strings.TrimSuffix(path, ".content")+".parts"
	}
	if isEmptyJSON(content) {
		return "", true
	}
	if json.Unmarshal(content, &text) == nil {
		return text, true
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(content, &parts) != nil || len(parts) > maxParts {
		c.addError(path, "must be a string, or a list of at most %d parts", maxParts)
		return "", false
	}
	var b strings.Builder
	for i, p := range parts {
		switch {
		case p.Type == "text" && p.Text != nil:
			b.WriteString(*p.Text)
		case m.Role == "user":
			c.addError(fmt.Sprintf("%s[%d]", path, i), "only parts of type text are accepted")
			return "", false
		}
	}
	return b.String(), true
}
