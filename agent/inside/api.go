package inside

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/caisson-dev/caisson"
)

// maxOutput is how many tokens an answer may have, where an API wants to know. The gateway lowers it to what model and budget allow.
const maxOutput = 32_000

// api is one of the APIs in which models are called. A conversation is kept in the form of OpenAI's, whichever it is.
type api interface {
	// request returns the path to send a question to, the additional headers of the API, and the body.
	request(q *question) (path string, header http.Header, body any)
	// add takes an event of a stream, or a whole answer that was not streamed, and returns the text in it.
	add(r *reply, data []byte) (string, error)
}

// question is what a model is asked.
type question struct {
	model    string
	talk     []message // the system's message first
	tools    []definition
	toolsOff bool // no tool may be called, though the conversation has calls
}

// definition is a tool as models are told of it.
type definition struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Parameters  raw    `json:"parameters"`
}

// apiOf returns the API of that name, in which a model is called by its alias.
func apiOf(name, alias string) (api, error) {
	switch name {
	case "", caisson.APIOpenAI:
		return openAI{}, nil
	case caisson.APIAnthropic:
		return anthropic{}, nil
	case caisson.APIGemini:
		if word(alias) != strings.ReplaceAll(alias, ".", "_") || strings.HasPrefix(alias, ".") {
			return nil, fmt.Errorf("the model %.80q cannot be called in the Gemini API, where its alias is part of a path: give it one of letters, digits and . _ -", alias)
		}
		return gemini{}, nil
	}
	return nil, fmt.Errorf("%.40q is not openai, anthropic or gemini", name)
}

// forgotten stands for the beginning of a conversation that has been left out, in APIs that want one to begin with the user.
const forgotten = "[Earlier messages of this conversation have been left out.]"

// split returns the text of the system's message and the rest, which begins with the user and has no message without content.
func split(talk []message) (system string, rest []message) {
	for _, m := range talk {
		switch {
		case m.Role == roleSystem:
			system = m.Content
			continue
		case m.Role != roleTool && len(m.ToolCalls) == 0 && strings.TrimSpace(m.Content) == "":
			continue
		case len(rest) == 0 && m.Role != roleUser:
			rest = append(rest, message{Role: roleUser, Content: forgotten})
		}
		rest = append(rest, m)
	}
	return system, rest
}

// object returns the arguments of a call as an object. Models write others as well, of which the tool has told them.
func object(arguments string) raw {
	var fields map[string]raw
	if json.Unmarshal([]byte(arguments), &fields) == nil && fields != nil {
		return raw(arguments)
	}
	b, _ := json.Marshal(map[string]string{"arguments": arguments}) // strings marshal
	return b
}

// word returns a name with the characters that every API takes in names.
func word(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, clip(name, maxName))
}

// tokens returns a count of the provider's, within bounds.
func tokens(n int64) int64 { return min(max(n, 0), 1<<40) }
