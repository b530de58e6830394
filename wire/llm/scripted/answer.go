package scripted

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

const (
	maxPlaceholder  = 4 << 10 // bytes of the text that replaces {{last}}, {{model}} or {{result}} in a text of the script
	maxPlaceholders = 16      // number of {{last}}, {{model}} and {{result}} in a text of the script
	bytesPerToken   = 4       // bytes of text that count as one token
)

// answer is the answer of the model to a request, made from a turn of the script.
type answer struct {
	api, id, model string
	turn           *turn // the turn of the script that the answer is made from
	stream, usage  bool  // whether the answer is a stream of events, and whether the stream reports the usage
	limit          int64 // maximum number of output tokens; 0: no limit
	text           string
	calls          []toolCall
	finish         string             // why the answer ends: finishStop, finishLength, finishTool or finishFilter
	tokens         caisson.TokenCount // the tokens that are charged
	delay          delay              // before the answer, and between the pieces of a stream
	chunk          int                // bytes of text or arguments in one event
}

// answer creates the answer of the turn t to the conversation c.
func (m *Model) answer(t *turn, c *conversation, id string) *answer {
	a := &answer{
		api: c.api, id: id, model: c.model, turn: t, stream: c.stream, usage: c.usage, limit: c.limit,
		text: fillPlaceholders(t.Text, c), calls: t.Calls, finish: t.Finish, delay: m.script.Delay, chunk: m.script.Chunk,
	}
	if t.Delay != nil {
		a.delay = *t.Delay
	}
	if t.Chunk > 0 {
		a.chunk = t.Chunk
	}
	switch {
	case a.finish != "":
	case len(a.calls) > 0:
		a.finish = finishTool
	default:
		a.finish = finishStop
	}
	a.tokens = caisson.TokenCount{Input: estimateTokens(c.textBytes)}
	if k := t.Tokens; k != nil {
		a.tokens.CacheRead, a.tokens.CacheWrite = k.CacheRead, k.CacheWrite
		if k.Input != nil {
			a.tokens.Input = *k.Input
		}
	}
	if t.Tokens != nil && t.Tokens.Output != nil {
		a.tokens.Output = *t.Tokens.Output
	} else {
		a.fit()
		a.tokens.Output = estimateTokens(a.size())
	}
	if a.limit > 0 && a.tokens.Output > a.limit {
		a.tokens.Output, a.finish = a.limit, finishLength
	}
	return a
}

// fit truncates the answer to the limit of output tokens of the request.
func (a *answer) fit() {
	if a.limit <= 0 || estimateTokens(a.size()) <= a.limit {
		return
	}
	a.finish = finishLength
	for len(a.calls) > 0 && estimateTokens(a.size()) > a.limit {
		a.calls = a.calls[:len(a.calls)-1]
	}
	if estimateTokens(a.size()) > a.limit {
		a.text = clip(a.text, int(a.limit)*bytesPerToken)
	}
}

// size returns the number of bytes of the text and the calls.
func (a *answer) size() int64 {
	n := len(a.text)
	for _, c := range a.calls {
		n += len(c.Name) + len(c.Arguments)
	}
	return int64(n)
}

// estimateTokens estimates the number of tokens of a text of size bytes.
func estimateTokens(size int64) int64 { return max(1, (size+bytesPerToken-1)/bytesPerToken) }

// fillPlaceholders replaces {{last}}, {{model}} and {{result}} in text.
func fillPlaceholders(text string, c *conversation) string {
	if !strings.Contains(text, "{{") {
		return text
	}
	results := []string{}
	for _, r := range c.last() {
		results = append(results, clip(r.text, maxPlaceholder))
	}
	return strings.NewReplacer(
		"{{last}}", clip(c.user, maxPlaceholder), "{{model}}", clip(c.model, maxPlaceholder), "{{result}}", clip(strings.Join(results, "\n"), maxPlaceholder),
	).Replace(text)
}

// clip returns at most n bytes from the beginning of s, without splitting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// pieces splits s into pieces of at most n bytes, or of one character if that is longer.
func pieces(s string, n int) []string {
	var out []string
	for s != "" {
		p := clip(s, n)
		if p == "" {
			_, size := utf8.DecodeRuneInString(s)
			p = s[:size]
		}
		out = append(out, p)
		s = s[len(p):]
	}
	return out
}

// callID returns the id of the i-th call of a tool.
func (a *answer) callID(prefix string, i int) string {
	return fmt.Sprintf("%s_%s%02d", prefix, a.id, i)
}

// write answers a request. If it returns an error, the caller responds with that instead.
func (a *answer) write(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	if !wait(ctx, a.delay.First) {
		panic(http.ErrAbortHandler)
	}
	if e := a.turn.Error; e != nil {
		return &apiError{status: e.Status, message: e.Message, body: e.Body, retryAfter: e.RetryAfter}
	}
	if b := a.turn.Break; b != nil && b.After == 0 {
		if b.How == breakError {
			return newError(http.StatusInternalServerError, "")
		}
		breakConnection(ctx, b.How)
	}
	w.Header().Set("X-Request-Id", "req_"+a.id)
	w.Header().Set("Request-Id", "req_"+a.id)
	var f formatter
	switch a.api {
	case apiChat:
		f = chatFormatter{a}
	case apiResponses:
		f = &responsesFormatter{answer: a}
	case apiGenerate:
		f = generateFormatter{a}
	default:
		f = messagesFormatter{a}
	}
	s := &sender{w: w, rc: http.NewResponseController(w), ctx: ctx, a: a, f: f}
	if !a.stream {
		return s.whole()
	}
	return s.streamed()
}

// wait sleeps for d. Returns false if the client has disconnected.
func wait(ctx context.Context, d caisson.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(time.Duration(d)):
		return true
	case <-ctx.Done():
		return false
	}
}

// breakConnection aborts the handler, which closes the connection. If how is hang, it first waits until the client disconnects.
func breakConnection(ctx context.Context, how string) {
	if how == breakHang {
		<-ctx.Done()
	}
	panic(http.ErrAbortHandler)
}

// event is one server-sent event.
type event struct {
	name string // "" for an event without a name
	data any    // nil stands for OpenAI's [DONE]
}

// formatter formats answers for one API.
type formatter interface {
	// whole returns an answer that is not streamed.
	whole() any
	// stream sends a streamed answer: its text, its calls and, after a call of s.settle, its end.
	stream(s *sender)
	// failed returns the event of an error within a stream.
	failed() event
}

// sender sends an answer and counts the bytes of its text and arguments.
type sender struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	ctx  context.Context // context of the request; a sender does not outlive it
	a    *answer
	f    formatter
	sent int64 // bytes of text and arguments sent so far

	billed bool // the tokens of the whole answer were reported as charged
}

// reportBill calls the function set by WithBill, if any, with the tokens that are charged.
func (s *sender) reportBill(t caisson.TokenCount) {
	if bill, ok := s.ctx.Value(billFuncKey{}).(func(caisson.TokenCount)); ok {
		bill(t)
	}
}

// sentUsage returns the tokens that are charged for an answer that was broken off: its output tokens are those of the part that
// was sent.
func (s *sender) sentUsage() caisson.TokenCount {
	t := s.a.tokens
	t.Output = min(t.Output, estimateTokens(s.sent))
	return t
}

// whole sends an answer that is not streamed.
func (s *sender) whole() error {
	body := append(encode(s.f.whole()), '\n')
	s.w.Header().Set("Content-Type", "application/json")
	s.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	s.reportBill(s.a.tokens)
	if b := s.a.turn.Break; b != nil {
		s.w.Write(body[:min(b.After, len(body)-2)]) // never a complete JSON value
		_ = s.rc.Flush()
		breakConnection(s.ctx, b.How)
	}
	s.w.Write(body)
	return nil
}

// streamed sends an answer as a stream of events.
func (s *sender) streamed() error {
	s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s.w.Header().Set("Cache-Control", "no-cache")
	defer func() {
		if !s.billed {
			s.reportBill(s.sentUsage())
		}
	}()
	s.f.stream(s)
	return nil
}

// settle must be called before the end of a stream is sent. It reports the tokens that are charged, or breaks the answer off if
// the script says so.
func (s *sender) settle() {
	if b := s.a.turn.Break; b != nil {
		s.breakOff(b.How)
	}
	s.billed = true
	s.reportBill(s.a.tokens)
}

// send sends text in pieces, each in an event unless format is nil, up to the point where the answer breaks off.
func (s *sender) send(text string, format func(piece string) event) {
	for _, piece := range pieces(text, s.a.chunk) {
		if s.sent > 0 && !wait(s.ctx, s.a.delay.Chunk) {
			panic(http.ErrAbortHandler)
		}
		b := s.a.turn.Break
		whole := b == nil || s.sent+int64(len(piece)) <= int64(b.After)
		if !whole {
			piece = clip(piece, b.After-int(s.sent))
		}
		s.sent += int64(len(piece))
		if piece != "" && format != nil {
			s.emit(format(piece))
		}
		if !whole {
			s.breakOff(b.How)
		}
	}
}

// breakOff ends a stream before it is complete, in the way how (breakCut, breakHang or breakError). It does not return.
func (s *sender) breakOff(how string) {
	if how == breakError {
		s.emit(s.f.failed())
		how = breakCut
	}
	breakConnection(s.ctx, how)
}

// emit sends events and flushes them.
func (s *sender) emit(events ...event) {
	var b []byte
	for _, e := range events {
		if e.name != "" {
			b = append(append(append(b, "event: "...), e.name...), '\n')
		}
		b = append(b, "data: "...)
		if e.data == nil {
			b = append(b, "[DONE]"...)
		} else {
			b = append(b, encode(e.data)...)
		}
		b = append(b, "\n\n"...)
	}
	if _, err := s.w.Write(b); err != nil || s.ctx.Err() != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	_ = s.rc.Flush() // fails if the writer has no Flush; it then sends when its buffer is full
}
