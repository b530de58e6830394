package gemini

import (
	"bytes"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/sse"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/jsonscan"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// maxEvent is the maximum number of bytes of an event that the meter keeps.
const maxEvent = 1 << 20

// Meter implements [dialect.Dialect]. The first byte of an answer shows its format: a stream is a JSON array unless events were
// requested, and errors are objects.
func (Dialect) Meter(e dialect.Endpoint, _ bool) dialect.Meter {
	return &meter{free: e.Free, events: sse.Splitter{Max: maxEvent}}
}

// meter implements [dialect.Meter] for the Gemini API.
type meter struct {
	free          bool               // the call costs nothing
	started       bool               // the first byte of the answer was read
	events        sse.Splitter       // splits an answer that is a stream of events
	plain         *jsonscan.Scanner  // reads an answer that is one JSON value; nil if the answer is a stream of events
	tokens        caisson.TokenCount // the usage that the provider has reported so far
	outputBytes   int64              // bytes of the model's output so far
	finished      bool               // the reason why the output ended, or why the prompt was blocked, was read
	usageComplete bool               // the usage in the field tokens is final
	failed        bool               // the stream has ended with an error
	done          bool               // the end of the answer was read
}

// Indexes, in the scanner, of the paths whose values are read from an answer that is one JSON value.
const (
	pathUsage  = iota // usageMetadata, the counts of tokens
	pathFinish        // finishReason of a candidate: why the model's output has ended
	pathBlock         // promptFeedback.blockReason: why the provider has blocked the prompt, so that there is no output
	pathError         // error, if the call has failed
)

// Write reads a piece of the answer. It always returns len(p), nil.
func (m *meter) Write(p []byte) (int, error) {
	rest := p
	if !m.started {
		if rest = bytes.TrimLeft(p, " \t\r\n"); len(rest) == 0 {
			return len(p), nil
		}
		m.started = true
		switch rest[0] {
		case '{':
			m.plain = jsonscan.New("usageMetadata", "candidates.*.finishReason", "promptFeedback.blockReason", "error")
		case '[':
			m.plain = jsonscan.New("*.usageMetadata", "*.candidates.*.finishReason", "*.promptFeedback.blockReason", "*.error")
		}
	}
	if m.plain != nil {
		m.writePlain(rest)
	} else {
		m.events.Write(rest, m.event)
	}
	return len(p), nil
}

// writePlain reads a piece of an answer that is one JSON value.
func (m *meter) writePlain(p []byte) {
	m.plain.Write(p)
	m.outputBytes, m.done = m.plain.Size(), m.plain.Done()
	usage := m.plain.Get(pathUsage)
	m.count(usage)
	switch {
	case !m.done:
	case m.plain.Get(pathError) != nil:
		m.usageComplete = usage == nil // an error costs nothing unless an answer had begun
	case m.free:
		m.usageComplete = true
	default:
		m.usageComplete = usage != nil && (m.plain.Get(pathFinish) != nil || m.plain.Get(pathBlock) != nil)
	}
}

// event handles one event of a stream. The stream has no final event: the last event contains a finish reason and the final
// usage.
func (m *meter) event(e sse.Event) {
	if m.failed {
		return
	}
	if e.Lost > 0 {
		// The event was longer than maxEvent, and its end was dropped. The model's output in it has at most the bytes of the event.
		m.outputBytes += e.Lost + int64(len(e.Data))
	}
	v := strictjson.Value(bytes.TrimSpace(e.Data))
	if v.Get("error") != nil {
		m.failed, m.done, m.usageComplete = true, true, false
		return
	}
	for _, candidate := range v.Get("candidates").Elements() {
		for name, x := range candidate.Members() {
			switch string(name) {
			case "content":
				if e.Lost == 0 {
					m.text(x)
				}
			case "finishReason":
				m.finished = m.finished || x.Kind() == '"'
			}
		}
	}
	m.finished = m.finished || v.Get("promptFeedback").Get("blockReason").Kind() == '"'
	usage := v.Get("usageMetadata")
	m.count(usage)
	m.done = m.done || m.finished
	m.usageComplete = m.usageComplete || m.finished && usage != nil
}

// text adds the bytes of a content to outputBytes, including the signatures of thoughts that are not shown.
func (m *meter) text(content strictjson.Value) {
	for _, part := range content.Get("parts").Elements() {
		for _, x := range part.Members() {
			if x.Kind() == '"' {
				m.outputBytes += int64(len(x) - 2)
			} else {
				m.outputBytes += int64(len(x))
			}
		}
	}
}

// count replaces the usage by the reported one.
func (m *meter) count(usage strictjson.Value) {
	if usage == nil || m.free {
		return
	}
	var prompt, cached, tools, output, total int64
	for name, v := range usage.Members() {
		switch string(name) {
		case "promptTokenCount":
			prompt = v.Count()
		case "cachedContentTokenCount":
			cached = v.Count()
		case "toolUsePromptTokenCount":
			tools = v.Count()
		case "candidatesTokenCount", "thoughtsTokenCount":
			output += v.Count()
		case "totalTokenCount":
			total = v.Count()
		}
	}
	// Cached tokens are part of the prompt. Tokens that are in the total count but in no other count are counted as output.
	m.tokens = caisson.TokenCount{
		Input:     max(0, prompt-cached) + tools,
		Output:    max(output, total-prompt-tools),
		CacheRead: cached,
	}
}

// Usage returns the usage reported so far, and true if that is final.
func (m *meter) Usage() (caisson.TokenCount, bool) { return m.tokens, m.usageComplete }

// OutputBytes returns the number of bytes of output so far.
func (m *meter) OutputBytes() int64 { return m.outputBytes }

// IDs returns no ids, because answers create no objects that the provider stores.
func (m *meter) IDs() []string { return nil }

// Done reports whether the end of the answer was read.
func (m *meter) Done() bool { return m.done }
