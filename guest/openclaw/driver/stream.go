package driver

import (
	"encoding/json"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/drive"
)

// A stream converts the events of a run. OpenClaw sends each message repeatedly as it grows, may correct it, and repeats it at
// the end.
type stream struct {
	run    string
	out    drive.Out
	answer *drive.Answer
	item   string // id of the message that is growing
	kind   string // OpenClaw's keyword for the reason if the run failed
}

func newStream(run string, limit caisson.Size, out drive.Out) *stream {
	return &stream{run: run, out: out, answer: drive.NewAnswer(out, int(min(max(limit, 0), maxAnswer)))}
}

// runEvent is the payload of an event of a run.
type runEvent struct {
	Run    string          `json:"runId"`
	Stream string          `json:"stream"`
	Data   json.RawMessage `json:"data"`
}

// event handles an event, if it belongs to the run.
func (s *stream) event(f *frame) {
	if f.Event != "agent" {
		return
	}
	var e runEvent
	if json.Unmarshal(f.Payload, &e) != nil || e.Run != s.run {
		return
	}
	switch e.Stream {
	case "assistant":
		var d struct{ Text, ItemID string }
		if json.Unmarshal(e.Data, &d) == nil {
			s.updateMessage(d.ItemID, d.Text)
		}
	case "item":
		s.preamble(e.Data)
	case "tool":
		s.tool(e.Data)
	case "lifecycle":
		s.lifecycle(e.Data)
	case "compaction":
		var d struct{ Phase string }
		if json.Unmarshal(e.Data, &d) == nil && d.Phase == "start" {
			s.out.Status("compacting", "")
		}
	}
}

// updateMessage reports the new part of a message.
func (s *stream) updateMessage(item, text string) {
	if item != s.item {
		s.item = item
		s.answer.EndMessage()
	}
	if strings.TrimSpace(text) != "" { // ignore a message that is still empty
		s.answer.Partial(text)
	}
}

// preamble reports the model's text before a tool call. OpenClaw sends it as a message, as an item, or as both.
func (s *stream) preamble(data json.RawMessage) {
	var d struct{ Kind, Phase, ProgressText string }
	if json.Unmarshal(data, &d) == nil && d.Kind == "preamble" && d.Phase == "end" && strings.TrimSpace(d.ProgressText) != "" {
		s.answer.Message(d.ProgressText)
	}
}

// tool handles the start or the result of a tool call.
func (s *stream) tool(data json.RawMessage) {
	var d struct {
		Phase, Name string
		ID          string `json:"toolCallId"`
		Args        json.RawMessage
		IsError     bool
		Result      json.RawMessage
	}
	if json.Unmarshal(data, &d) != nil {
		return
	}
	switch d.Phase {
	case "start":
		s.out.Status("tool_use", d.Name)
		var args any
		if len(d.Args) > 0 {
			args = d.Args
		}
		s.out.ToolStart(d.ID, d.Name, args)
		s.answer.EndMessage()
	case "result":
		s.out.ToolResult(d.ID, resultText(d.Result), d.IsError)
		s.out.Status("thinking", "")
	}
}

// resultText returns the part of a tool's result that the model gets, or the raw result.
func resultText(raw json.RawMessage) string {
	var r struct {
		Content []struct{ Type, Text string }
	}
	if json.Unmarshal(raw, &r) == nil && len(r.Content) > 0 {
		var parts []string
		for _, c := range r.Content {
			switch c.Type {
			case "text":
				parts = append(parts, c.Text)
			default:
				parts = append(parts, "["+c.Type+"]")
			}
		}
		return strings.Join(parts, "\n")
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

// lifecycle handles the start of the run, and the reasons of its failures.
func (s *stream) lifecycle(data json.RawMessage) {
	var d struct {
		Phase       string
		Observation struct {
			Reason string `json:"failoverReason"`
		} `json:"errorObservation"`
	}
	if json.Unmarshal(data, &d) != nil {
		return
	}
	if d.Observation.Reason != "" {
		s.kind = d.Observation.Reason
	}
	if d.Phase == "start" {
		s.out.Status("thinking", "")
	}
}

// failure returns the error of a run that the gateway reports as failed.
func (s *stream) failure(message string) *caisson.RunError { return classify(s.kind, message) }

// final handles the final answer of a run: it writes the part that was not streamed, and returns an error if the run failed.
func (s *stream) final(raw json.RawMessage) *caisson.RunError {
	e, err := parseEnvelope(raw)
	if err != nil {
		return newError(caisson.RunAgentError, err.Error())
	}
	v := e.interpret()
	if v.usage != nil {
		s.out.Usage(*v.usage)
	}
	if v.err != nil {
		if v.err.Code == caisson.RunAgentError && s.kind != "" {
			return classify(s.kind, v.err.Message)
		}
		return v.err
	}
	s.answer.Final(v.answer)
	for _, w := range v.warnings {
		s.out.Status("warning", firstLine(w))
	}
	return nil
}

// firstLine returns the beginning of a text, for a label.
func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return truncate(s, 180)
}
