package inside

// The roles of messages.
const (
	roleSystem    = "system"
	roleUser      = "user"
	roleAssistant = "assistant"
	roleTool      = "tool"
)

// message is one message of a conversation, as OpenAI's chat completions have it. What is not exported belongs to the other APIs, is not
// remembered, and is wanted back only within the task in which it came.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	// Reasoning is given back with calls of tools, because some models refuse a conversation without it.
	Reasoning  string  `json:"reasoning_content,omitempty"`
	ToolCalls  []call  `json:"tool_calls,omitempty"`
	ToolCallID string  `json:"tool_call_id,omitempty"`
	thoughts   []block // of Anthropic's models
}

// call is one call of a tool.
type call struct {
	ID        string   `json:"id"`
	Type      string   `json:"type"`
	Function  function `json:"function"`
	Extra     raw      `json:"extra_content,omitempty"` // signatures of thoughts, which some models want back
	signature string   // of the thought before it, of Gemini's models
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // as the model wrote them; JSON, if all is well
}

// size returns roughly how many bytes m takes in a request.
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
