package openai

import (
	"bytes"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/sse"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/jsonscan"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

const (
	maxNesting = 16      // nesting depth to which values are read; a level is read once more for each level above it
	maxEvent   = 8 << 20 // bytes of an event that are kept; the final event of a response contains the whole answer
	maxIDs     = 256     // ids of a response and its items that are kept per answer
)

// Meter returns the meter for an answer that is a stream of events, or one JSON value.
func (Dialect) Meter(e dialect.Endpoint, stream bool) dialect.Meter {
	if stream {
		return &streamMeter{api: e.API, events: sse.Splitter{Max: maxEvent}}
	}
	return &plainMeter{api: e.API, scan: jsonscan.New("usage", "id", "output")}
}

// plainMeter implements [dialect.Meter] for an answer that is one JSON value.
type plainMeter struct {
	api  string            // operation of the request: chat, responses or embeddings
	scan *jsonscan.Scanner // keeps the answer's fields usage, id and output, in this order
}

// Write reads p, the next piece of the answer, and keeps the fields that are needed. It always returns len(p), nil.
func (m *plainMeter) Write(p []byte) (int, error) {
	m.scan.Write(p)
	return len(p), nil
}

// Usage returns the reported usage, and true if that is final.
func (m *plainMeter) Usage() (caisson.TokenCount, bool) {
	t, ok := usage(m.scan.Get(0))
	return t, ok && m.scan.Done()
}

func (m *plainMeter) OutputBytes() int64 { return m.scan.StringBytes() } // bytes of all strings of the answer
func (m *plainMeter) Done() bool         { return m.scan.Done() }        // the whole value was read

// IDs returns the ids of a response and of its items, which the provider stores. It returns none for other operations.
func (m *plainMeter) IDs() []string {
	if m.api != responses || !m.scan.Done() {
		return nil
	}
	var ids []string
	if id, ok := m.scan.Get(1).Text(); ok {
		ids = append(ids, id)
	}
	for i, item := range m.scan.Get(2).Elements() {
		if id, ok := item.Get("id").Text(); ok && i < maxIDs {
			ids = append(ids, id)
		}
	}
	return ids
}

// streamMeter implements [dialect.Meter] for an answer that is a stream of events.
type streamMeter struct {
	api         string             // operation of the request: chat or responses
	events      sse.Splitter       // splits the answer into events
	tokens      caisson.TokenCount // the usage that the provider has reported last
	hasUsage    bool               // the provider has reported its usage
	usageOnly   bool               // no part of the answer came with the reported tokens or after them
	done        bool               // the end of the answer was read
	outputBytes int64              // bytes of the model's output so far
	ids         []string           // ids of the response and of its items, which the provider stores
}

// Write reads p, the next piece of the answer. It always returns len(p), nil.
func (m *streamMeter) Write(p []byte) (int, error) {
	m.events.Write(p, m.event)
	return len(p), nil
}

// Usage returns the usage reported so far, and true if that is final.
func (m *streamMeter) Usage() (caisson.TokenCount, bool) {
	return m.tokens, m.hasUsage && (m.usageOnly || m.done)
}
func (m *streamMeter) OutputBytes() int64 { return m.outputBytes } // bytes of the model's output so far
func (m *streamMeter) IDs() []string      { return m.ids }         // ids of the response and of its items; none for chats
func (m *streamMeter) Done() bool         { return m.done }        // the end of the answer was read

// event reads one event of the answer: usage, ids, the bytes of output, or the end.
func (m *streamMeter) event(e sse.Event) {
	data := strictjson.Value(bytes.TrimSpace(e.Data))
	switch {
	case string(data) == "[DONE]":
		m.done = true
	case m.api == responses:
		m.response(data)
	default:
		m.chunk(data)
	}
}

// chunk reads an event of a chat completion. Some providers report the usage in every chunk; then the last report counts.
func (m *streamMeter) chunk(v strictjson.Value) {
	empty := true
	for name, x := range v.Members() {
		switch string(name) {
		case "usage":
			if t, ok := usage(x); ok {
				m.tokens, m.hasUsage, m.usageOnly = t, true, true
			}
		case "choices":
			for _, choice := range x.Elements() {
				empty = false
				m.outputBytes += textBytes(choice.Get("delta"), maxNesting)
			}
		}
	}
	m.usageOnly = m.usageOnly && empty
}

// textBytes returns the number of bytes of all strings in a delta, and of all JSON that is nested more than levels deep.
func textBytes(v strictjson.Value, levels int) (n int64) {
	if v.Kind() == '"' {
		return int64(len(v.Bytes()))
	}
	if levels == 0 {
		return int64(len(v)) // the length of the JSON is an upper bound
	}
	for _, x := range v.Members() {
		n += textBytes(x, levels-1)
	}
	for _, x := range v.Elements() {
		n += textBytes(x, levels-1)
	}
	return n
}

// response reads an event of an answer of the responses API.
func (m *streamMeter) response(v strictjson.Value) {
	switch kind := string(v.Get("type").Bytes()); kind {
	case "response.created":
		m.id(v.Get("response").Get("id"))
	case "response.output_item.done":
		m.id(v.Get("item").Get("id"))
	case "response.completed", "response.incomplete", "response.failed":
		m.done = true
		if t, ok := usage(v.Get("response").Get("usage")); ok {
			m.tokens, m.hasUsage = t, true
		}
	case "error":
		m.done = true
	default:
		m.outputBytes += textBytes(v.Get("delta"), maxNesting)
	}
}

// id records the id of a response or item.
func (m *streamMeter) id(v strictjson.Value) {
	if id, ok := v.Text(); ok && len(m.ids) < maxIDs {
		m.ids = append(m.ids, id)
	}
}

// usage parses the usage of a chat, a response or an embeddings request. Tokens read from or written to a cache are part of the
// input. Tokens that are in the total count but in no other count are reasoning, which some providers do not report separately.
func usage(v strictjson.Value) (t caisson.TokenCount, ok bool) {
	var total int64
	for name, x := range v.Members() {
		switch string(name) {
		case "prompt_tokens", "input_tokens":
			t.Input, ok = count(x), true
		case "completion_tokens", "output_tokens":
			t.Output, ok = count(x), true
		case "total_tokens":
			total = count(x)
		case "prompt_tokens_details", "input_tokens_details":
			t.CacheRead = max(t.CacheRead, x.Get("cached_tokens").Count())
			t.CacheWrite = max(t.CacheWrite, x.Get("cache_write_tokens").Count(), x.Get("cache_creation_tokens").Count())
		case "prompt_cache_hit_tokens", "cache_read_input_tokens":
			t.CacheRead = max(t.CacheRead, x.Count())
		case "cache_creation_input_tokens":
			t.CacheWrite = max(t.CacheWrite, x.Count())
		}
	}
	if more := total - t.Input - t.Output; more > 0 {
		t.Output += more
	}
	t.CacheRead = min(t.CacheRead, t.Input)
	t.CacheWrite = min(t.CacheWrite, t.Input-t.CacheRead)
	t.Input -= t.CacheRead + t.CacheWrite
	return t, ok
}

// count limits a reported count, so that sums cannot overflow.
func count(v strictjson.Value) int64 { return min(v.Count(), 1<<40) }
