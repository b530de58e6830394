package coder

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/caisson-dev/caisson"
)

// gemini implements Google's Gemini API.
type gemini struct{}

// geminiRequest is the body of a request to Gemini's API.
type geminiRequest struct {
	System   *geminiContent  `json:"systemInstruction,omitempty"` // the system message
	Contents []geminiContent `json:"contents"`                    // the conversation without the system message
	Tools    []geminiTools   `json:"tools,omitempty"`             // tools that the model may call: at most one list
	Config   *geminiCalling  `json:"toolConfig,omitempty"`        // whether the model may call tools; nil means that it may
	Generate struct {        // parameters for the generation of the answer
		MaxTokens int64 `json:"maxOutputTokens"`
	} `json:"generationConfig"`
}

// geminiTools is a list of descriptions of tools in a request to Gemini's API.
type geminiTools struct {
	Functions []geminiFunction `json:"functionDeclarations"`
}

// geminiFunction is the description of a tool in a geminiRequest.
type geminiFunction struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Schema      raw    `json:"parametersJsonSchema"` // JSON schema of the tool's arguments
}

// geminiCalling sets in a request to Gemini's API whether the model may call tools.
type geminiCalling struct {
	Functions struct { // settings for functions, as the API calls tools
		Mode string `json:"mode"`
	} `json:"functionCallingConfig"`
}

// geminiContent is a message in a request to or an answer of Gemini's API.
type geminiContent struct {
	Role  string       `json:"role,omitempty"` // who the message is from: user or model
	Parts []geminiPart `json:"parts"`          // content of the message
}

// geminiPart is a part of a message, with the fields of all kinds that the agent sends or reads.
type geminiPart struct {
	Text      string            `json:"text,omitempty"`             // text of the answer, or of a thought
	Thought   bool              `json:"thought,omitempty"`          // Text is a thought of the model, not a part of the answer
	Signature string            `json:"thoughtSignature,omitempty"` // signature of the thought before the part
	Call      *geminiCall       `json:"functionCall,omitempty"`     // tool call; nil if the part is none
	Response  *geminiToolResult `json:"functionResponse,omitempty"` // result of a tool call; nil if the part is none
}

// geminiCall is a tool call of the model, in an answer of Gemini's API or in a later request.
type geminiCall struct {
	ID   string `json:"id,omitempty"`   // id of the tool call
	Name string `json:"name"`           // name of the tool
	Args raw    `json:"args,omitempty"` // arguments, a JSON object
}

// geminiToolResult is the result of a tool call, as the agent sends it to Gemini's API.
type geminiToolResult struct {
	ID       string   `json:"id,omitempty"` // id of the tool call
	Name     string   `json:"name"`         // name of the tool
	Response struct { // JSON object with the text of the result
		Output string `json:"output"`
	} `json:"response"`
}

// request implements [api]: it returns the path, the additional headers and the body, a geminiRequest.
func (gemini) request(q *modelRequest) (string, http.Header, any) {
	system, talk := splitSystem(q.talk)
	req := geminiRequest{System: &geminiContent{Parts: []geminiPart{{Text: system}}}}
	req.Generate.MaxTokens = maxOutput
	names := map[string]string{} // names of the called tools, by the id of the call
	for _, m := range talk {
		c := geminiContent{Role: roleUser}
		switch m.Role {
		case roleTool:
			answer := &geminiToolResult{ID: m.ToolCallID, Name: names[m.ToolCallID]}
			answer.Response.Output = m.Content
			c.Parts = []geminiPart{{Response: answer}}
			// The results of all tool calls of one answer go into one message.
			if last := len(req.Contents) - 1; last >= 0 && req.Contents[last].Parts[0].Response != nil {
				req.Contents[last].Parts = append(req.Contents[last].Parts, c.Parts...)
				continue
			}
		case roleAssistant:
			c.Role = "model"
			fallthrough
		default:
			if strings.TrimSpace(m.Content) != "" {
				c.Parts = append(c.Parts, geminiPart{Text: m.Content})
			}
		}
		for _, call := range m.ToolCalls {
			names[call.ID] = sanitizeName(call.Function.Name)
			c.Parts = append(c.Parts, geminiPart{
				Signature: call.signature, Call: &geminiCall{ID: call.ID, Name: names[call.ID], Args: argumentsObject(call.Function.Arguments)},
			})
		}
		req.Contents = append(req.Contents, c)
	}
	if q.tools != nil {
		var t geminiTools
		for _, d := range q.tools {
			t.Functions = append(t.Functions, geminiFunction{d.Name, d.Description, d.Parameters})
		}
		req.Tools = []geminiTools{t}
		if q.toolsOff {
			req.Config = &geminiCalling{}
			req.Config.Functions.Mode = "NONE"
		}
	}
	return "/v1beta/models/" + q.model + ":streamGenerateContent?alt=sse", nil, req
}

// geminiAnswer is one event of a streamed answer of Gemini's API, or a whole answer that was not streamed.
type geminiAnswer struct {
	Error      raw        `json:"error"` // the error, if the call has failed
	Candidates []struct { // the answers, of which only the first one is read
		Content geminiContent `json:"content"`
		Finish  string        `json:"finishReason"`
	} `json:"candidates"`
	Feedback struct { // says why the prompt was refused
		Block string `json:"blockReason"`
	} `json:"promptFeedback"`
	Usage *struct { // numbers of tokens of the request and the answer
		Prompt   int64 `json:"promptTokenCount"`
		Cached   int64 `json:"cachedContentTokenCount"`
		Answer   int64 `json:"candidatesTokenCount"`
		Thoughts int64 `json:"thoughtsTokenCount"`
	} `json:"usageMetadata"`
}

// add implements [api]: it adds data, a geminiAnswer as JSON, to r and returns the text in data.
func (gemini) add(r *reply, data []byte) (string, error) {
	var a geminiAnswer
	if err := json.Unmarshal(data, &a); err != nil {
		return "", fmt.Errorf("an event is no answer of a model: %w", err)
	}
	if len(a.Error) > 0 && string(a.Error) != "null" {
		return "", parseFailure(0, data)
	}
	if u := a.Usage; u != nil {
		r.prompt = boundedCount(u.Prompt)
		read := min(boundedCount(u.Cached), r.prompt)
		r.usage = &caisson.TokenCount{Input: r.prompt - read, CacheRead: read, Output: boundedCount(u.Answer) + boundedCount(u.Thoughts)}
	}
	if a.Feedback.Block != "" {
		r.finish = finishFilter
	}
	if len(a.Candidates) == 0 {
		return "", nil
	}
	var all strings.Builder
	for _, p := range a.Candidates[0].Content.Parts {
		text, err := r.addPart(&p)
		if err != nil {
			return "", err
		}
		all.WriteString(text)
	}
	switch a.Candidates[0].Finish {
	case "":
	case "MAX_TOKENS":
		r.finish = finishLength
	case "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII":
		r.finish = finishFilter
	default:
		r.finish = finishStop
	}
	return all.String(), nil
}

// addPart adds a part to the answer, and returns its text; "" for a tool call or a thought.
func (r *reply) addPart(p *geminiPart) (string, error) {
	switch {
	case p.Call != nil:
		c, err := r.call(len(r.calls))
		if err != nil {
			return "", err
		}
		c.ID, c.Function.Name, c.signature = p.Call.ID, p.Call.Name, p.Signature
		if args := string(p.Call.Args); args != "null" {
			c.Function.Arguments = strings.ToValidUTF8(args, "\uFFFD")
		}
		return "", c.check()
	case p.Thought:
		return "", r.addThoughts(len(p.Text) + 1)
	}
	return r.addText(p.Text)
}
