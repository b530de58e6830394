package drive

import (
	"encoding/json"

	"github.com/caisson-dev/caisson"
)

// caissonEvents parses lines in Caisson's own format: [caisson.RunEvent] without the fields that the engine sets. Events of type
// text_delta contain the answer; an assistant_final may repeat it, or contain an answer that was not streamed. Of several errors
// the first is reported. An event done ends the turn, and so does an assistant_final if there was no error before.
type caissonEvents struct{}

// reportsEnd implements [dialect]: some agents write no line that ends the turn.
func (*caissonEvents) reportsEnd() bool { return false }

// line implements [dialect]: it updates s with one line, and reports whether the line is an event of a known type.
func (*caissonEvents) line(raw []byte, s *turnState) bool {
	var e caisson.RunEvent
	if json.Unmarshal(raw, &e) != nil {
		return false
	}
	switch e.Type {
	case caisson.EventStatus:
		s.out.Status(e.Phase, e.Label)
	case caisson.EventTextDelta:
		s.answer.Delta(e.Delta)
	case caisson.EventToolStart:
		s.toolStart(e.CallID, e.Tool, e.Args)
	case caisson.EventToolResult:
		s.toolResult(e.CallID, e.Result, e.IsError)
	case caisson.EventUsage:
		if e.Usage != nil {
			s.report(*e.Usage)
		}
	case caisson.EventFinal:
		s.answer.Final(e.Content)
		s.done = s.err == nil
	case caisson.EventError:
		if s.err == nil && e.Error != nil {
			s.err = newError(e.Error.Code, e.Error.Message)
		}
	case caisson.EventDone:
		s.done = true
	default:
		return false
	}
	return true
}
