package llm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/go-json-experiment/json/jsontext"
)

// trailerTimeout is the time limit for the rest of an answer after its final event.
const trailerTimeout = 2 * time.Second

// errKeyLeaked ends an answer that contains the provider's key, which a guest must not receive.
var errKeyLeaked = errors.New("the answer contains the provider's key")

// answer forwards a response to the guest.
func (c *call) answer(ctx context.Context, resp *http.Response, idle *time.Timer) error {
	c.recordUpstream(resp.Header)
	encoding := resp.Header.Get("Content-Encoding")
	switch s := resp.StatusCode; {
	case s >= 400:
		return c.forwardError(ctx, resp)
	case s < 200 || s >= 300:
		newFailure(c).record("provider %q of model %q redirects (%d), and its key is not sent to other servers: correct its base URL", c.model.provider.Name, c.model.Alias, s)
		return c.fail(outcome{errorCode: "upstream"}, refuse(http.StatusBadGateway, "upstream",
			"the provider of model %.80q redirects (%d), and its key is not sent to other servers; correct its base URL", c.model.Alias, s))
	case encoding != "" && !strings.EqualFold(encoding, "identity"):
		newFailure(c).record("provider %q encodes the answer of model %q, which cannot be metered", c.model.provider.Name, c.model.Alias)
		return c.fail(c.maxCostOutcome("upstream", 0), refuse(http.StatusBadGateway, "upstream", "the answer of model %.80q is encoded and cannot be metered", c.model.Alias))
	}
	stream := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	buf := chunkBuffers.Get().(*[]byte)
	defer chunkBuffers.Put(buf)
	a := &answer{
		call: c, ctx: ctx, resp: resp, idle: idle, stream: stream, buf: *buf,
		meter: c.api.Dialect.Meter(c.endpoint, stream), keyGuard: newKeyScanner(c.model.provider.key.Reveal()), out: http.NewResponseController(c.w),
	}
	if stream {
		return a.forwardStream()
	}
	return a.forwardPlain()
}

// recordUpstream records the provider's id of the call, and the cost that LiteLLM reports.
func (c *call) recordUpstream(h http.Header) {
	for _, name := range []string{"X-Litellm-Call-Id", "X-Request-Id", "Request-Id"} {
		if v := h[name]; len(v) > 0 && len(v[0]) <= 128 && c.row.UpstreamID == "" {
			c.row.UpstreamID = string(c.setup.secrets.redact([]byte(v[0])))
		}
	}
	if c.model.provider.Kind != caisson.ProviderLiteLLM {
		return
	}
	if f, err := strconv.ParseFloat(h.Get("X-Litellm-Response-Cost"), 64); err == nil && f >= 0 && f < 1e9 {
		cost := caisson.USD(math.Round(f * float64(caisson.Dollar)))
		c.row.UpstreamCost = &cost
	}
}

// forwardError forwards an error of the provider to the guest.
func (c *call) forwardError(ctx context.Context, resp *http.Response) error {
	s := resp.StatusCode
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	whole := err == nil && jsontext.Value(body).Kind() == '{' && jsontext.Value(body).IsValid()
	o := outcome{errorCode: "upstream", status: s}
	if !whole && s >= 500 && s != http.StatusServiceUnavailable {
		o = c.maxCostOutcome("upstream", s) // an intermediary failed; the model may have answered
	}
	wait, _ := retryAfter(resp)
	retry := int(math.Ceil(wait.Seconds()))
	f := newFailure(c)
	if f.rejectsKey(s, body) {
		f.recordRejectedKey(s, body)
		why := finalRefusal(c.api.Dialect, `the provider refused the credential of model %.80q (%d); see "caisson runs show" and use "caisson credential rotate" on the host`, c.model.Alias, s)
		o.status = why.Status
		return c.fail(o, why)
	}
	f.record("provider %q answered %d for model %q%s", c.model.provider.Name, s, c.model.Alias, f.providerMessage(body))
	if !whole {
		code := "upstream"
		if s == http.StatusTooManyRequests {
			code = "rate_limited"
		}
		if ctx.Err() != nil || c.disconnected() {
			o.errorCode, _ = c.endReason(ctx)
		}
		o.status = min(s, 599)
		return c.fail(o, &dialect.Refusal{Status: o.status, Code: code, Message: "the provider of model " + strconv.Quote(c.model.Alias) + " answered " + strconv.Itoa(s) + "; try again later", Retry: retry})
	}
	if err := c.settle(o); err != nil {
		return err
	}
	body = c.setup.secrets.redact(body)
	c.copyHeader(resp.Header)
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(s)
	c.w.Write(body)
	return nil
}

// copyHeader copies the response headers that guests may receive.
func (c *call) copyHeader(from http.Header) {
	h := c.w.Header()
	for name, values := range from {
		switch name {
		case "Content-Type", "Retry-After", "Retry-After-Ms", "X-Request-Id", "Request-Id", "Openai-Processing-Ms", "X-Should-Retry":
		default:
			if !strings.HasPrefix(name, "X-Ratelimit-") && !strings.HasPrefix(name, "Anthropic-Ratelimit-") {
				continue
			}
		}
		if len(values) == 1 && len(values[0]) <= 256 {
			h[name] = []string{string(c.setup.secrets.redact([]byte(values[0])))}
		}
	}
	h["X-Caisson-Call-Id"] = []string{string(c.row.ID)}
}

// answer is a response with status 2xx that is being forwarded to the guest.
type answer struct {
	*call
	ctx           context.Context
	resp          *http.Response
	idle          *time.Timer // cancels the call if the provider is silent for too long; reset by each read
	stream        bool        // the answer is a stream of events
	buf           []byte      // buffer for pieces of the answer, from the pool chunkBuffers
	meter         dialect.Meter
	keyGuard      keyScanner               // searches the answer for the provider's key
	out           *http.ResponseController // controls the connection to the guest
	writeDeadline time.Time                // deadline for writes to the guest; the zero time if none was set yet
	drained       bool                     // the end of the answer was read
	lingerBytes   int64                    // bytes read after the guest disconnected
}

// read reads the next piece of the answer into buf[have:] and returns its length.
func (a *answer) read(have int) (int, error) {
	n, err := a.resp.Body.Read(a.buf[have:])
	if n == 0 {
		return 0, err
	}
	if a.row.FirstByte == 0 {
		a.row.FirstByte = caisson.Duration(time.Since(a.started))
	}
	p := a.buf[have : have+n]
	a.meter.Write(p)
	a.record.Write(p)
	switch {
	case !a.meter.Done():
		a.idle.Reset(a.g.config.Timeouts.Idle)
	case !a.drained:
		a.drained = true
		a.idle.Reset(trailerTimeout)
	}
	if a.disconnected() {
		if a.lingerBytes += int64(n); a.lingerBytes > maxLinger {
			return n, errLinger
		}
	}
	return n, err
}

// forwardStream forwards each piece of a stream at once, but the last one only after the row of the call is in the ledger.
func (a *answer) forwardStream() error {
	for {
		n, err := a.read(0)
		p, ok := a.keyGuard.next(a.buf[:n])
		if !ok {
			return a.abortAnswer(errKeyLeaked)
		}
		if err == io.EOF {
			p = append(p[:len(p):len(p)], a.keyGuard.rest()...)
		}
		if (err == io.EOF || a.meter.Done()) && !a.settled {
			if err := a.settleComplete(); err != nil {
				return err
			}
		}
		if len(p) > 0 || err == io.EOF && !a.answerStarted {
			a.write(p)
		}
		if err != nil {
			return a.end(err)
		}
	}
}

// forwardPlain forwards an answer in large pieces. The last byte, or all of a short answer, is sent only after the row of the
// call is in the ledger.
func (a *answer) forwardPlain() error {
	have := 0
	for {
		n, err := a.read(have)
		have += n
		if (err == io.EOF || a.meter.Done()) && !a.settled {
			if len(a.keyGuard.key) > 0 && bytes.Contains(a.buf[:have], a.keyGuard.key) {
				return a.abortAnswer(errKeyLeaked)
			}
			if err := a.settleComplete(); err != nil {
				return err
			}
		}
		end := err != nil && a.settled
		if end || have == len(a.buf) {
			keep := 0
			if !a.settled {
				keep = 1
			}
			p, ok := a.keyGuard.next(a.buf[:have-keep])
			if !ok {
				return a.abortAnswer(errKeyLeaked)
			}
			if end {
				p = append(p[:len(p):len(p)], a.keyGuard.rest()...)
			}
			a.write(p)
			have = copy(a.buf, a.buf[have-keep:have])
		}
		if err != nil {
			return a.end(err)
		}
	}
}

// write sends p to the guest. If the guest has disconnected, write drops p or, if the call is settled, aborts the handler.
func (a *answer) write(p []byte) {
	if a.disconnected() {
		if a.settled {
			panic(http.ErrAbortHandler)
		}
		return
	}
	if !a.answerStarted {
		a.answerStarted = true
		a.row.Status = a.resp.StatusCode
		a.copyHeader(a.resp.Header)
		if n := a.resp.ContentLength; n >= 0 && !a.stream {
			a.w.Header()["Content-Length"] = []string{strconv.FormatInt(n, 10)}
		}
		a.w.WriteHeader(a.resp.StatusCode)
	}
	if now := time.Now(); a.writeDeadline.Sub(now) < a.g.config.Timeouts.Idle/2 {
		a.writeDeadline = now.Add(a.g.config.Timeouts.Idle)
		a.out.SetWriteDeadline(a.writeDeadline) // fails only for test writers without deadlines
	}
	_, err := a.w.Write(p)
	if err == nil && a.stream {
		err = a.out.Flush()
	}
	if err != nil {
		a.writeFailed = true
		a.onWriteFailed()
	}
}

// end finishes the answer after the read that failed with err, or returned io.EOF because the answer ended.
func (a *answer) end(err error) error {
	if err != io.EOF && !a.settled {
		return a.abortAnswer(err)
	}
	if a.writeFailed {
		panic(http.ErrAbortHandler)
	}
	a.out.SetWriteDeadline(time.Time{}) // the connection may be reused
	return nil
}

// abortAnswer settles a call whose answer is incomplete because of err. If the guest has received a part of the answer,
// abortAnswer aborts the connection, otherwise it returns the error for the guest.
func (a *answer) abortAnswer(err error) error {
	word, status := "upstream", http.StatusBadGateway
	if a.ctx.Err() != nil || a.disconnected() {
		word, status = a.endReason(a.ctx)
	}
	why := refuse(http.StatusBadGateway, "upstream", "the answer of model %.80q broke off; try again", a.model.Alias)
	switch {
	case err == errKeyLeaked:
		newFailure(a.call).record("the answer of model %q contained the key of provider %q and was withheld", a.model.Alias, a.model.provider.Name)
	case word == "timeout":
		newFailure(a.call).record("the answer of model %q stopped: provider %q was silent for too long", a.model.Alias, a.model.provider.Name)
	case word == "upstream":
		newFailure(a.call).record("the answer of model %q broke off: the connection to provider %q at %s failed: %s", a.model.Alias, a.model.provider.Name, a.model.provider.base.Host, connectionFailure(err))
	}
	switch {
	case err == errKeyLeaked:
		a.g.config.Log.Error("an answer contained the provider's key and was withheld", "provider", a.model.provider.Name, "call", string(a.row.ID))
		word, why = "leak", refuse(http.StatusBadGateway, "upstream", "the answer of model %.80q is withheld, as it has what no sandbox may see in it", a.model.Alias)
	case word == "timeout":
		why = refuse(status, "timeout", "the answer of model %.80q stopped; try again", a.model.Alias)
	}
	o := a.currentOutcome(word)
	if a.answerStarted {
		return a.abort(o)
	}
	return a.fail(o, why)
}

// settleComplete settles the call when its answer is complete.
func (a *answer) settleComplete() error {
	o := a.currentOutcome("")
	if a.disconnected() {
		o.errorCode = "aborted"
	} else if o.status = a.resp.StatusCode; o.estimated {
		o.errorCode = "unmetered"
	}
	err := a.settle(o)
	if err == nil && a.meter.Done() && a.allow().ServerState {
		a.g.serverStates.add(a.guest.Account, a.model.provider.Name, a.meter.IDs())
	}
	if err != nil && a.answerStarted {
		panic(http.ErrAbortHandler)
	}
	return err
}

// currentOutcome returns the outcome of the call if its answer ends at this point. word is the error code for the row, "" if the
// answer is complete. The outcome has the usage that the provider has reported if that is final, otherwise an estimate.
func (a *answer) currentOutcome(word string) outcome {
	said, complete := a.meter.Usage()
	switch {
	case a.endpoint.Free:
		return outcome{errorCode: word}
	case complete && (said.Total() > 0 || a.meter.OutputBytes() == 0):
		return outcome{errorCode: word, tokens: said, cost: a.model.prices.Cost(said)}
	case a.stream && a.meter.Done():
		return a.estimate(word, 0, said, a.maxInput, a.meter.OutputBytes()+a.maxHiddenTokens())
	case word != "":
		return a.brokenOffOutcome(word, 0, said, a.meter.OutputBytes())
	}
	return a.estimate(word, 0, said, a.maxInput, math.MaxInt64)
}
