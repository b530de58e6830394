package driver

import (
	"encoding/json"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/drive"
)

// A stream converts the events of a run of OpenClaw to output of the driver. OpenClaw sends a message repeatedly while it grows,
// may correct it, and repeats it at the end of the run.
type stream struct {
	run           string        // id of the run in OpenClaw
	out           drive.Out     // receives the output of the driver
	answer        *drive.Answer // assembles the answer and writes it to out
	item          string        // id of the current message
	failureReason string        // OpenClaw's keyword for the reason of a failure of the run; "" if none was reported
}

// newStream returns the stream for the run with this id. limit is the task's limit on output.
func newStream(run string, limit caisson.Size, out drive.Out) *stream {
	return &stream{run: run, out: out, answer: drive.NewAnswer(out, int(min(max(limit, 0), maxAnswer)))}
}

// runEvent is the payload of an event about a run of OpenClaw.
type runEvent struct {
	Run    string          `json:"runId"`  // id of the run in OpenClaw
	Stream string          `json:"stream"` // kind of the event, such as assistant or tool
	Data   json.RawMessage `json:"data"`   // data of the event, whose form depends on Stream
}

// event handles an event of OpenClaw's gateway. It ignores events of other runs.
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

// updateMessage writes the new part of the message with the id item, whose text so far is text.
func (s *stream) updateMessage(item, text string) {
	if item != s.item {
		s.item = item
		s.answer.EndMessage()
	}
	if strings.TrimSpace(text) != "" { // the message is not empty any more
		s.answer.Partial(text)
	}
}

// preamble writes the model's text before a tool call, if data has one. OpenClaw sends it in a message, an item event, or both.
func (s *stream) preamble(data json.RawMessage) {
	var d struct{ Kind, Phase, ProgressText string }
	if json.Unmarshal(data, &d) == nil && d.Kind == "preamble" && d.Phase == "end" && strings.TrimSpace(d.ProgressText) != "" {
		s.answer.Message(d.ProgressText)
	}
}

// tool reports the start or the result of a tool call. data is that of an event about tool calls.
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

// resultText returns the text of a tool's result that the model gets, or the raw result if it has an unknown form.
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

// lifecycle reports the start of the run, or stores the reason of a failure, if data is that of an event about it.
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
		s.failureReason = d.Observation.Reason
	}
	if d.Phase == "start" {
		s.out.Status("thinking", "")
	}
}

// failure returns the error of a run that OpenClaw's gateway has reported as failed with this message.
func (s *stream) failure(message string) *caisson.RunError { return classify(s.failureReason, message) }

// final handles the result of the run: it writes the part of the answer that was not streamed, or returns the error of the run.
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
		if v.err.Code == caisson.RunAgentError && s.failureReason != "" {
			return classify(s.failureReason, v.err.Message)
		}
		return v.err
	}
	s.answer.Final(v.answer)
	for _, w := range v.warnings {
		s.out.Status("warning", firstLine(w))
	}
	return nil
}

// firstLine returns the first line of a text, truncated so that it can be the label of a status.
func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return truncate(s, 180)
}
