package llm

import (
	"bytes"
	"io"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
)

const maxRecord = 1 << 20 // bytes of the prompt, and of the answer, in a recording

// A recording collects the prompt and the answer of one call. The methods of a nil recording do nothing.
type recording struct {
	to        io.Writer // receives one line when the call ends
	secrets   *secrets  // finds the keys to redact
	prompt    []byte
	answer    bytes.Buffer
	truncated bool // the prompt or the answer has more than maxRecord bytes
}

// newRecording returns a recording of prompt that is written to the writer to, or nil if to is nil. The keys in s are redacted.
func newRecording(to io.Writer, s *secrets, prompt []byte) *recording {
	if to == nil {
		return nil
	}
	r := &recording{to: to, secrets: s, prompt: prompt}
	if r.truncated = len(prompt) > maxRecord; r.truncated {
		r.prompt = prompt[:maxRecord]
	}
	return r
}

// Write adds a piece of the answer.
func (r *recording) Write(p []byte) (int, error) {
	if r == nil {
		return len(p), nil
	}
	room := maxRecord - r.answer.Len()
	r.truncated = r.truncated || len(p) > room
	r.answer.Write(p[:min(len(p), room)])
	return len(p), nil
}

// end writes the line with the prompt and the answer. Errors are ignored, because they are no reason to withhold an answer.
func (r *recording) end(row caisson.Call) {
	if r == nil {
		return
	}
	b := appendQuoted(nil, `{"call":`, string(row.ID))
	b = appendQuoted(b, `,"at":`, row.At.Format(time.RFC3339Nano))
	b = appendQuoted(b, `,"sandbox":`, string(row.Sandbox))
	b = appendQuoted(b, `,"model":`, row.Model)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(row.Status), 10)
	b = strconv.AppendBool(append(b, `,"cut":`...), r.truncated)
	b = appendQuoted(b, `,"request":`, string(r.secrets.redactAll(r.prompt)))
	b = appendQuoted(b, `,"response":`, string(r.secrets.redactAll(r.answer.Bytes())))
	r.to.Write(append(b, "}\n"...))
}
