package coder

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/caisson-dev/caisson"
)

// maxOutput is the maximum number of tokens of an answer, for APIs that require one. The model gateway may lower it.
const maxOutput = 32_000

// api is one of the APIs with which models are called. A conversation is kept in the form of OpenAI's API, whichever API is used.
type api interface {
	// request returns the path, the additional headers and the body of the HTTP request for q; the body is to be encoded as JSON.
	request(q *modelRequest) (path string, header http.Header, body any)
	// add adds data, an event of a streamed answer or a whole answer that was not streamed, to r. It returns the text in data.
	add(r *reply, data []byte) (string, error)
}

// modelRequest is a request to a model, independent of the API.
type modelRequest struct {
	model    string       // alias of the model
	talk     []message    // the conversation; its first message is the system message
	tools    []definition // tools that the model may call
	toolsOff bool         // the model must not call tools, although the conversation has calls
}

// definition is the description of a tool that is sent to models.
type definition struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Parameters  raw    `json:"parameters"` // JSON schema of the tool's arguments
}

// findAPI returns the API with this name; "" means OpenAI's. For Gemini, alias must be valid in the path of a URL.
func findAPI(name, alias string) (api, error) {
	switch name {
	case "", caisson.APIOpenAI:
		return openAI{}, nil
	case caisson.APIAnthropic:
		return anthropic{}, nil
	case caisson.APIGemini:
		if sanitizeName(alias) != strings.ReplaceAll(alias, ".", "_") || strings.HasPrefix(alias, ".") {
			return nil, fmt.Errorf("the model %.80q cannot be called in the Gemini API, where its alias is part of a path: give it one of letters, digits and . _ -", alias)
		}
		return gemini{}, nil
	}
	return nil, fmt.Errorf("%.40q is not openai, anthropic or gemini", name)
}

// omittedNotice replaces the omitted beginning of a conversation, for APIs in which the first message must be the user's.
const omittedNotice = "[Earlier messages of this conversation have been left out.]"

// splitSystem returns the text of the system message, and the other messages without those that have no content. If the first of
// the other messages is not the user's, omittedNotice is put before it.
func splitSystem(talk []message) (system string, rest []message) {
	for _, m := range talk {
		switch {
		case m.Role == roleSystem:
			system = m.Content
			continue
		case m.Role != roleTool && len(m.ToolCalls) == 0 && strings.TrimSpace(m.Content) == "":
			continue
		case len(rest) == 0 && m.Role != roleUser:
			rest = append(rest, message{Role: roleUser, Content: omittedNotice})
		}
		rest = append(rest, m)
	}
	return system, rest
}

// argumentsObject returns the arguments of a call as a JSON object. Arguments that are not a JSON object, which the tool has
// rejected, become a string in the field "arguments" of an object.
func argumentsObject(arguments string) raw {
	var fields map[string]raw
	if json.Unmarshal([]byte(arguments), &fields) == nil && fields != nil {
		return raw(arguments)
	}
	b, _ := json.Marshal(map[string]string{"arguments": arguments}) // marshalling strings cannot fail
	return b
}

// sanitizeName returns a name in which characters that an API could reject are replaced by "_".
func sanitizeName(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, clip(name, maxName))
}

// boundedCount returns n, a number of tokens that the provider has reported, limited to a plausible range.
func boundedCount(n int64) int64 { return min(max(n, 0), 1<<40) }
