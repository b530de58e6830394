package coder

// The roles of messages.
const (
	roleSystem    = "system"
	roleUser      = "user"
	roleAssistant = "assistant"
	roleTool      = "tool"
)

// message is one message of a conversation, in the form of OpenAI's chat completions. Unexported fields have data of Anthropic's
// and Gemini's APIs, which is not stored, and is sent back only during the task in which it was received.
type message struct {
	Role    string `json:"role"`    // who the message is from: system, user, assistant or tool
	Content string `json:"content"` // text of the message, or result of a tool call
	// Reasoning is the model's reasoning. It is sent back with tool calls, as some models refuse a conversation without it.
	Reasoning  string  `json:"reasoning_content,omitempty"`
	ToolCalls  []call  `json:"tool_calls,omitempty"`   // tool calls that the model requests in an answer
	ToolCallID string  `json:"tool_call_id,omitempty"` // id of the call whose result the message is
	thoughts   []block // thinking blocks of an answer of Anthropic's models
}

// call is one tool call.
type call struct {
	ID        string   `json:"id"`                      // id of the call, unique in the conversation
	Type      string   `json:"type"`                    // always "function"
	Function  function `json:"function"`                // the called tool and its arguments
	Extra     raw      `json:"extra_content,omitempty"` // signatures of thoughts, which some models require in later requests
	signature string   // signature of the thought before the call, from Gemini's models
}

// function is the function of a tool call: the name of the tool, and the arguments for it.
type function struct {
	Name      string `json:"name"`      // name of the tool
	Arguments string `json:"arguments"` // arguments as written by the model; may be invalid JSON
}

// size returns the approximate size of m in a request, in bytes.
func (m *message) size() int64 {
	n := len(m.Content) + len(m.Reasoning) + len(m.ToolCallID) + 32
	for _, c := range m.ToolCalls {
		n += len(c.ID) + len(c.Function.Name) + len(c.Function.Arguments) + len(c.Extra) + len(c.signature) + 64
	}
	for i := range m.thoughts {
		n += m.thoughts[i].size()
	}
	return int64(n)
}
