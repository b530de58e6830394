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
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

const (
	maxRetries            = 2               // times that a request is sent again
	maxRetryWait          = 2 * time.Second // the longest Retry-After that the gateway waits for; guests wait for longer ones
	maxError              = 64 << 10        // bytes of a provider's error that are forwarded
	hiddenTokensPerSecond = 500             // tokens per second that a model is assumed to generate at most without showing them
)

// errIdle is the cause when a call is cancelled because Timeouts.Header, Timeouts.Idle or trailerTimeout has passed.
var errIdle = errors.New("the provider was silent for too long")

// forward sends the request to the provider and forwards the answer.
func (c *call) forward(allow dialect.Allow) error {
	ctx, cancel := c.upstreamContext()
	defer cancel(nil)
	idle := time.AfterFunc(c.g.config.Timeouts.Header, func() { cancel(errIdle) })
	defer idle.Stop()
	h := c.api.Dialect.Header(c.r.Header, c.model.provider.key, allow)
	if c.model.provider.Kind == caisson.ProviderLiteLLM {
		c.setLiteLLMHeaders(h)
	}
	resp, err := c.send(ctx, h)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.answer(ctx, resp, idle)
}

// query returns the query string for the provider: that of the endpoint, such as alt=sse, if the guest sent it, otherwise "".
func (c *call) query() string {
	if q := c.endpoint.Query; q != "" && c.r.URL.RawQuery == q {
		return q
	}
	return ""
}

// send sends the request, and retries if the provider cannot have processed it. If it returns an error, the call is settled.
func (c *call) send(ctx context.Context, h http.Header) (*http.Response, error) {
	u := c.model.url(c.endpoint.Path, c.query())
	for attempt := 0; ; attempt++ {
		c.requestWritten.Store(false) // false again, because the provider has not processed earlier requests
		body := c.newBody(c.body)
		req := (&http.Request{
			Method: http.MethodPost, URL: u, Host: u.Host, Header: h, Body: body, ContentLength: int64(len(c.body)),
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}).WithContext(ctx)
		if attempt == 0 {
			// The transport may retry as long as nothing was written.
			req.GetBody = func() (io.ReadCloser, error) { return c.newBody(c.body), nil }
		}
		resp, err := c.model.provider.transport.RoundTrip(req)
		again := attempt < maxRetries && !c.disconnected()
		if err != nil {
			if ctx.Err() != nil || c.requestWritten.Load() || !again || !sleep(c.r.Context(), time.Duration(50<<(2*attempt))*time.Millisecond) {
				return nil, c.settleUnanswered(ctx, c.requestWritten.Load(), err)
			}
			c.lastSendErr = err
			continue
		}
		c.lastSendErr = nil
		wait, ok := retryAfter(resp)
		if !again || !ok || wait > maxRetryWait {
			return resp, nil
		}
		io.CopyN(io.Discard, resp.Body, maxError) // reads the body, so that the connection can be reused
		resp.Body.Close()
		if c.requestWritten.Store(false); !sleep(c.r.Context(), wait) {
			word, status := c.endReason(ctx)
			return nil, c.fail(outcome{errorCode: word, status: status}, refuse(http.StatusGatewayTimeout, "timeout", "the provider took too long"))
		}
		if c.model.provider.Kind == caisson.ProviderOpenAI {
			h.Set("Idempotency-Key", string(c.row.ID))
		}
	}
}

// settleUnanswered settles a call to which the provider sent no answer, because of err. sent reports whether a part of the
// request may have been sent.
func (c *call) settleUnanswered(ctx context.Context, sent bool, err error) error {
	word, status, why := "upstream", http.StatusBadGateway, refuse(http.StatusBadGateway, "upstream", "the provider of model %.80q cannot be reached; try again later", c.model.Alias)
	if sent {
		why = refuse(http.StatusBadGateway, "upstream", "the connection to the provider of model %.80q broke before it answered; the call may have been charged", c.model.Alias)
	}
	if ctx.Err() != nil || c.disconnected() {
		if word, status = c.endReason(ctx); word == "timeout" {
			why = refuse(status, "timeout", "the provider of model %.80q did not answer in time; the call may have been charged", c.model.Alias)
		}
	}
	f := newFailure(c)
	switch {
	case word == "timeout":
		f.record("provider %q of model %q did not answer at %s within %s", c.model.provider.Name, c.model.Alias, c.model.provider.base.Host, c.g.config.Timeouts.Header)
	case word == "aborted" && (sent || c.lastSendErr == nil):
		// The guest disconnected before the provider failed, so no failure of the provider is recorded.
	case word == "aborted":
		f.recordUnreachable(c.lastSendErr)
	case sent:
		f.record("provider %q of model %q broke the connection to %s before it answered: %s", c.model.provider.Name, c.model.Alias, c.model.provider.base.Host, connectionFailure(err))
	default:
		f.recordUnreachable(err)
	}
	o := outcome{errorCode: word, status: status}
	if sent {
		o = c.brokenOffOutcome(word, status, caisson.TokenCount{}, 0)
	}
	return c.fail(o, why)
}

// maxHiddenTokens returns the number of tokens that a model can have generated so far without showing them.
func (c *call) maxHiddenTokens() int64 {
	return int64(math.Ceil(time.Since(c.started).Seconds() * hiddenTokensPerSecond))
}

// retryAfter returns the delay that a provider requests before a retry; false if it requests none.
func retryAfter(resp *http.Response) (time.Duration, bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0, false
	}
	if ms, err := strconv.ParseFloat(resp.Header.Get("Retry-After-Ms"), 64); err == nil && ms >= 0 && ms < 1e6 {
		return time.Duration(ms * float64(time.Millisecond)), true
	}
	if s, err := strconv.ParseFloat(strings.TrimSpace(resp.Header.Get("Retry-After")), 64); err == nil && s >= 0 && s < 1e6 {
		return time.Duration(s * float64(time.Second)), true
	}
	return 0, false
}

// sleep waits for d. It returns false if ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// trackedBody is a request body that records whether any of it may have been sent.
type trackedBody struct {
	bytes.Reader
	read *atomic.Bool // becomes true when the body is read
}

// newBody returns a body with the content b that sets requestWritten when it is read.
func (l *callLifetime) newBody(b []byte) *trackedBody {
	return &trackedBody{*bytes.NewReader(b), &l.requestWritten}
}

func (t *trackedBody) Read(p []byte) (int, error) {
	t.read.Store(true)
	return t.Reader.Read(p)
}

func (t *trackedBody) WriteTo(w io.Writer) (int64, error) {
	t.read.Store(true)
	return t.Reader.WriteTo(w)
}

func (t *trackedBody) Close() error { return nil }
