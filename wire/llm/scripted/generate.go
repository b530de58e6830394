package scripted

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// generateFields are the fields of a GenerateContentRequest; others are refused.
var generateFields = []string{"contents", "systemInstruction", "tools", "toolConfig", "safetySettings", "cachedContent", "generationConfig", "model", "serviceTier"}

// generateRequest is the body of a request to Gemini's generateContent, with those of its fields that are read.
type generateRequest struct {
	Contents []generateContent `json:"contents"`          // messages of the conversation, the oldest first
	System   generateContent   `json:"systemInstruction"` // instructions for the model
	Tools    []struct {
		Functions []struct {
			Name        string `json:"name"`
			Description string `json:"description"`
		} `json:"functionDeclarations"`
	} `json:"tools"`
	Config struct { // parameters of the answer
		Limit *int64 `json:"maxOutputTokens"` // maximum number of output tokens; nil: no limit
	} `json:"generationConfig"`
}

// generateContent is one message in a request to Gemini: of the user, of the model, or with instructions or results of tools.
type generateContent struct {
	Role  string `json:"role"` // "model" for messages of the model
	Parts []struct {
		Text string `json:"text"`
		Call *struct {
			ID   string          `json:"id"`
			Name string          `json:"name"`
			Args json.RawMessage `json:"args"`
		} `json:"functionCall"`
		Response *struct {
			ID       string          `json:"id"`
			Name     string          `json:"name"`
			Response json.RawMessage `json:"response"`
		} `json:"functionResponse"`
	} `json:"parts"`
}

// text returns the texts of all parts of c, joined by newlines.
func (c *generateContent) text() string {
	var all []string
	for _, p := range c.Parts {
		if p.Text != "" {
			all = append(all, p.Text)
		}
	}
	return strings.Join(all, "\n")
}

// generatePath returns the model and whether to stream, if path is that of a call of Gemini's API.
func generatePath(path string) (model string, stream, ok bool) {
	rest, ok := strings.CutPrefix(path, "/v1beta/models/")
	if !ok {
		if rest, ok = strings.CutPrefix(path, "/v1/models/"); !ok {
			return "", false, false
		}
	}
	model, verb, _ := strings.Cut(rest, ":")
	return model, verb == "streamGenerateContent", model != "" && (verb == "generateContent" || verb == "streamGenerateContent")
}

// parseGenerate parses a request of Gemini's API, whose path contains the model and whether to stream.
func parseGenerate(r *http.Request, body []byte) (*conversation, error) {
	var req generateRequest
	if err := decode(body, generateFields, &req); err != nil {
		return nil, err
	}
	c := &conversation{tools: map[string]bool{}, textBytes: int64(len(req.System.text()))}
	c.model, c.stream, _ = generatePath(r.URL.Path)
	switch {
	case c.stream && r.URL.RawQuery != "alt=sse":
		return nil, invalid("alt", "a scripted model streams events only; ask for alt=sse")
	case len(req.Contents) == 0:
		return nil, invalid("contents", "contents is not specified")
	case req.Contents[0].Role == "model":
		return nil, invalid("contents[0]", "a conversation begins with a user turn")
	}
	var err error
	if c.limit, err = checkLimit("generationConfig.maxOutputTokens", req.Config.Limit); err != nil {
		return nil, err
	}
	for _, t := range req.Tools {
		for _, f := range t.Functions {
			c.tools[f.Name] = true
			c.textBytes += int64(len(f.Name) + len(f.Description))
		}
	}
	return c, c.generateContents(req.Contents)
}

// generateContents reads the messages of a request. A message with calls of tools must be followed by one with as many results.
func (c *conversation) generateContents(contents []generateContent) error {
	open := 0 // number of calls that must be answered
	for i, m := range contents {
		at := fmt.Sprintf("contents[%d]", i)
		text := m.text()
		c.textBytes += int64(len(text))
		if len(m.Parts) == 0 {
			return invalid(at+".parts", "must not be empty")
		}
		calls, responses := 0, 0
		for _, p := range m.Parts {
			switch {
			case p.Text == "" && p.Call == nil && p.Response == nil:
				return invalid(at+".parts", "required oneof field 'data' must have one initialized field")
			case p.Call != nil && m.Role == "model":
				if calls++; calls == 1 {
					c.rounds = append(c.rounds, nil)
				}
				c.textBytes += int64(len(p.Call.Name) + len(p.Call.Args))
			case p.Response != nil && m.Role != "model":
				responses++
				var fields map[string]any
				if p.Response.Name == "" || json.Unmarshal(p.Response.Response, &fields) != nil {
					return invalid(at+".parts", "a function response needs a name and a response that is an object")
				}
				output, _ := fields["output"].(string)
				c.textBytes += int64(len(p.Response.Response))
				c.addResult(result{p.Response.Name, output})
			case p.Call != nil || p.Response != nil:
				return invalid(at+".parts", "this part is not one of role %.40q", m.Role)
			}
		}
		if open != responses {
			return invalid(at, "the number of function response parts must be equal to the number of function call parts of the function call turn")
		}
		if open = calls; responses == 0 && m.Role != "model" {
			c.startMessage(text)
		}
	}
	if open > 0 {
		return invalid("contents", "a function call turn must be followed by a function response turn")
	}
	return nil
}

// generateFormatter formats answers for Gemini's generateContent.
type generateFormatter struct{ *answer }

// finishReason returns Gemini's name of the finish reason.
func (f generateFormatter) finishReason() string {
	return map[string]string{finishStop: "STOP", finishLength: "MAX_TOKENS", finishTool: "STOP", finishFilter: "SAFETY"}[f.finish]
}

// part returns an answer, or a chunk of one, with the given parts. If last is set, it contains the finish reason and the final
// usage.
func (f generateFormatter) part(last bool, parts ...any) object {
	candidate := object{"content": object{"role": "model", "parts": parts}, "index": 0}
	out := object{"candidates": []any{candidate}, "modelVersion": f.model, "responseId": f.id}
	t := f.tokens
	prompt := t.Input + t.CacheRead + t.CacheWrite
	usage := object{"promptTokenCount": prompt, "totalTokenCount": prompt}
	if last {
		candidate["finishReason"] = f.finishReason()
		usage = object{
			"promptTokenCount": prompt, "cachedContentTokenCount": t.CacheRead, "candidatesTokenCount": t.Output, "totalTokenCount": prompt + t.Output,
		}
	}
	if !f.turn.Silent {
		out["usageMetadata"] = usage
	}
	return out
}

// call returns the part for the i-th call.
func (f generateFormatter) call(i int) object {
	return object{"functionCall": object{"name": f.calls[i].Name, "args": json.RawMessage(f.calls[i].Arguments)}}
}

// whole returns the answer as one GenerateContentResponse.
func (f generateFormatter) whole() any {
	parts := []any{}
	if f.text != "" {
		parts = append(parts, object{"text": f.text})
	}
	for i := range f.calls {
		parts = append(parts, f.call(i))
	}
	return f.part(true, parts...)
}

// stream sends the answer as several GenerateContentResponses.
func (f generateFormatter) stream(s *sender) {
	s.send(f.text, func(piece string) event { return event{data: f.part(false, object{"text": piece})} })
	for i, c := range f.calls {
		s.emit(event{data: f.part(false, f.call(i))}) // the call is sent whole, because this API does not split calls
		s.send(c.Arguments, nil)
	}
	s.settle()
	s.emit(event{data: f.part(true, object{"text": ""})})
}

// failed returns the event of an error within a stream.
func (f generateFormatter) failed() event {
	return event{data: (&apiError{status: 503, message: "The model is overloaded. Please try again later."}).format(styleGemini)}
}
