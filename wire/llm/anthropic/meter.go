package anthropic

import (
	"bytes"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/sse"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/jsonscan"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// maxEvent is the maximum number of bytes that are kept of an event. Only results of tools that the provider runs are longer.
const maxEvent = 1 << 20

const maxIDs = 64 // maximum number of ids of files and containers at the provider that are kept for an answer

// Meter implements [dialect.Dialect]. The first byte of an answer shows whether it is a stream; errors never are.
func (Dialect) Meter(e dialect.Endpoint, _ bool) dialect.Meter {
	return &meter{free: e.Free, events: sse.Splitter{Max: maxEvent}}
}

// meter implements [dialect.Meter] for the Messages API.
type meter struct {
	free          bool               // the call costs nothing
	started       bool               // the first byte of the answer was read
	events        sse.Splitter       // splits an answer that is a stream into events
	plain         *jsonscan.Scanner  // reads an answer that is one JSON value; nil if the answer is a stream of events
	tokens        caisson.TokenCount // the usage that the provider has reported so far
	outputBytes   int64              // bytes of the model's output so far
	usageComplete bool               // the usage in the field tokens is final
	done          bool               // the end of the answer was read
	ids           []string           // ids of the files and containers at the provider that the answer has created
}

// Indexes, in the scanner, of the paths whose values are read from an answer that is one JSON value.
const (
	pathType      = iota // type, which is "error" if the call has failed
	pathUsage            // usage, the counts of tokens
	pathContainer        // container.id, the id of the provider's container in which its tools have run
)

// Write reads a piece of the answer. It always returns len(p), nil.
func (m *meter) Write(p []byte) (int, error) {
	rest := p
	if !m.started {
		if rest = bytes.TrimLeft(p, " \t\r\n"); len(rest) == 0 {
			return len(p), nil
		}
		m.started = true
		if rest[0] == '{' {
			m.plain = jsonscan.New("type", "usage", "container.id")
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
	if m.done {
		return
	}
	m.plain.Write(p)
	m.outputBytes = m.plain.Size()
	if m.done = m.plain.Done(); !m.done {
		return
	}
	usage := m.plain.Get(pathUsage)
	m.count(usage)
	// An error costs nothing.
	m.usageComplete = usage != nil || m.free || m.plain.Get(pathType).Is("error")
	m.addID(m.plain.Get(pathContainer))
}

// event handles one event of a stream.
func (m *meter) event(e sse.Event) {
	if m.done {
		return
	}
	if e.Lost > 0 {
		// The event was longer than maxEvent, and its end was dropped. The model's output in it has at most the bytes of the event.
		m.outputBytes += e.Lost + int64(len(e.Data))
		return
	}
	v := strictjson.Value(bytes.TrimSpace(e.Data))
	switch string(v.Get("type").Bytes()) {
	case "message_start":
		msg := v.Get("message")
		m.count(msg.Get("usage"))
		m.addID(msg.Get("container").Get("id"))
	case "content_block_start":
		m.text(v.Get("content_block"))
	case "content_block_delta":
		m.text(v.Get("delta"))
	case "message_delta":
		usage, delta := v.Get("usage"), v.Get("delta")
		m.count(usage)
		m.addID(delta.Get("container").Get("id"))
		m.usageComplete = m.usageComplete || usage != nil && delta.Get("stop_reason").Kind() == '"'
	case "message_stop":
		m.done = true
	case "error":
		// The provider does not report the cost of an answer that ends with an error.
		m.done, m.usageComplete = true, false
	}
}

// text adds the bytes of a content block or delta to outputBytes, and records the ids of files in it. The signature of thinking
// counts too, because it contains the thinking that is not shown.
func (m *meter) text(v strictjson.Value) {
	for name, x := range v.Members() {
		switch string(name) {
		case "type", "id":
		case "file_id":
			m.addID(x)
		default:
			if x.Kind() == '"' {
				m.outputBytes += int64(len(x) - 2)
				continue
			}
			m.outputBytes += int64(len(x))
			m.fileIDs(x, 0)
		}
	}
}

// fileIDs records the ids of files that a tool run by the provider has created. depth is the nesting depth of v.
func (m *meter) fileIDs(v strictjson.Value, depth int) {
	if depth > maxDepth || !bytes.Contains(v, []byte(`"file_id"`)) {
		return
	}
	for name, x := range v.Members() {
		if string(name) == "file_id" {
			m.addID(x)
		}
		m.fileIDs(x, depth+1)
	}
	for _, x := range v.Elements() {
		m.fileIDs(x, depth+1)
	}
}

// addID records v, the id of a file or container at the provider.
func (m *meter) addID(v strictjson.Value) {
	if id, ok := v.Text(); ok && id != "" && len(id) <= 256 && len(m.ids) < maxIDs {
		m.ids = append(m.ids, id)
	}
}

// count raises the usage to the reported one. The numbers only increase during an answer, and the last event may omit some.
func (m *meter) count(usage strictjson.Value) {
	if usage == nil || m.free {
		return
	}
	t := tokens(usage)
	// If the provider called the model several times (compaction), only the list of iterations contains all the tokens.
	var sum caisson.TokenCount
	for _, part := range usage.Get("iterations").Elements() {
		p := tokens(part)
		sum.Input += p.Input
		sum.Output += p.Output
		sum.CacheRead += p.CacheRead
		sum.CacheWrite += p.CacheWrite
	}
	m.tokens.Input = max(m.tokens.Input, t.Input, sum.Input)
	m.tokens.Output = max(m.tokens.Output, t.Output, sum.Output)
	m.tokens.CacheRead = max(m.tokens.CacheRead, t.CacheRead, sum.CacheRead)
	m.tokens.CacheWrite = max(m.tokens.CacheWrite, t.CacheWrite, sum.CacheWrite)
}

// tokens parses a usage object. Tokens written to the cache for an hour count 1.6 times, which is their price relative to the
// price of writing for five minutes.
func tokens(usage strictjson.Value) (t caisson.TokenCount) {
	for name, v := range usage.Members() {
		switch string(name) {
		case "input_tokens":
			t.Input = v.Count()
		case "output_tokens":
			t.Output = v.Count()
		case "cache_read_input_tokens":
			t.CacheRead = v.Count()
		case "cache_creation_input_tokens":
			t.CacheWrite += v.Count()
		case "cache_creation":
			hour := v.Get("ephemeral_1h_input_tokens").Count()
			t.CacheWrite += fromHourly(hour) - hour
		}
	}
	return t
}

// Usage returns the usage reported so far, and true if that is final.
func (m *meter) Usage() (caisson.TokenCount, bool) {
	return m.tokens, m.usageComplete
}

// OutputBytes returns the number of bytes of output so far.
func (m *meter) OutputBytes() int64 { return m.outputBytes }

// IDs returns the ids of files and containers that the answer has created at the provider.
func (m *meter) IDs() []string { return m.ids }

// Done reports whether the end of the answer was read.
func (m *meter) Done() bool { return m.done }
