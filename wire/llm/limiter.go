package llm

import (
	"io"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

const (
	maxCalls         = 64        // concurrent calls of one sandbox
	maxSettledCalls  = 64        // additional calls that are settled but whose answer is still being sent
	maxHeader        = 32 << 10  // bytes of request headers
	maxBody          = 32 << 20  // bytes of a request body
	maxSandboxBodies = 64 << 20  // bytes of all request bodies of one sandbox
	maxBodies        = 256 << 20 // bytes of all request bodies
	initialBody      = 16 << 10  // initial bytes of the buffer of a body; not counted against the limits
	maxPooledBody    = 1 << 20   // bytes of a buffer; larger buffers are not returned to the pool
)

// limiters holds the limiters by sandbox.
type limiters struct {
	mu    sync.Mutex
	all   map[string]*limiter // by sandbox, or by account and run for guests on other machines; guarded by mu
	swept time.Time           // when unused limiters were last deleted; guarded by mu
}

// A limiter limits the calls of one sandbox.
type limiter struct {
	mu           sync.Mutex
	calls        int         // calls that are not settled
	settledCalls int         // calls that are settled; their guest may have received the whole answer already
	bytes        int64       // bytes of request bodies in memory
	used         time.Time   // when a call last began or ended
	requestRate  tokenBucket // calls per minute
	tokenRate    tokenBucket // tokens of models per minute
}

func newLimiters() limiters { return limiters{all: map[string]*limiter{}} }

// admit admits a call of a guest. Returns nil if the guest has too many calls.
func (s *limiters) admit(g caisson.Guest, now time.Time) *limiter {
	key := string(g.Sandbox)
	if key == "" {
		key = g.Account + "/" + g.Run
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.swept) > time.Minute {
		s.sweep(now)
	}
	t := s.all[key]
	if t == nil {
		t = &limiter{}
		s.all[key] = t
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls >= maxCalls || t.calls+t.settledCalls >= maxCalls+maxSettledCalls {
		return nil
	}
	t.calls++
	t.used = now
	return t
}

// sweep deletes limiters that are not in use and whose buckets are full again. The caller must hold s.mu.
func (s *limiters) sweep(now time.Time) {
	s.swept = now
	for key, t := range s.all {
		t.mu.Lock()
		idle := t.calls == 0 && t.settledCalls == 0 && now.Sub(t.used) > 2*time.Minute
		t.mu.Unlock()
		if idle {
			delete(s.all, key)
		}
	}
}

// settled moves one call from calls to settledCalls. It is called when the call is settled, before the guest has the whole answer
// and may make its next call.
func (t *limiter) settled() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls--
	t.settledCalls++
}

// release ends a call that admit has counted; settled reports whether the call was settled.
func (t *limiter) release(settled bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if settled {
		t.settledCalls--
	} else {
		t.calls--
	}
	t.used = now
}

// reserveBytes adds n to the bytes of bodies, or subtracts them if n is negative. Returns false if the limit would be exceeded.
func (t *limiter) reserveBytes(n int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > 0 && t.bytes+n > maxSandboxBodies {
		return false
	}
	t.bytes += n
	return true
}

// takeRate charges a call and its maximum tokens to the rate limits. It returns the tokens charged, or the time to wait if a
// limit is exceeded.
func (t *limiter) takeRate(r caisson.Rate, tokens int64, now time.Time) (taken int64, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if wait = t.requestRate.take(1, r.Requests, now); wait > 0 {
		return 0, wait
	}
	// A call with more tokens than the limit per minute is charged only that limit; otherwise it could never be made.
	taken = min(tokens, max(r.Tokens, 0))
	if wait = t.tokenRate.take(taken, r.Tokens, now); wait > 0 {
		t.requestRate.refund(1, r.Requests)
		return 0, wait
	}
	return taken, 0
}

// correctRate replaces taken, the number of tokens that takeRate has charged, by the actual number.
func (t *limiter) correctRate(r caisson.Rate, taken, actual int64) {
	if r.Tokens <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tokenRate.refund(taken-actual, r.Tokens)
}

// A tokenBucket is a token bucket that refills within a minute.
type tokenBucket struct {
	missing float64   // tokens missing from a full bucket
	at      time.Time // when missing was last updated
}

// take takes n tokens and returns 0, or takes none and returns the time after which n are available. A rate of 0 is no limit.
func (b *tokenBucket) take(n, perMinute int64, now time.Time) (wait time.Duration) {
	if perMinute <= 0 {
		return 0
	}
	rate := float64(perMinute) / float64(time.Minute)
	if !b.at.IsZero() {
		b.missing = max(0, b.missing-rate*float64(now.Sub(b.at)))
	}
	b.at = now
	if over := b.missing + float64(n) - float64(perMinute); over > 1e-6 {
		return time.Duration(math.Ceil(over / rate))
	}
	b.missing += float64(n)
	return 0
}

// refund puts n tokens back, or takes more if n is negative.
func (b *tokenBucket) refund(n, perMinute int64) {
	if perMinute > 0 {
		b.missing = max(0, b.missing-float64(n))
	}
}

// Pools of the buffers for request bodies, and for pieces of answers.
var (
	bodyBuffers  = sync.Pool{New: func() any { b := make([]byte, 0, initialBody); return &b }}
	chunkBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}
)

// bodyMemory limits how many bytes of request bodies of one account are in memory. The zero value is ready to use.
type bodyMemory struct {
	mu    sync.Mutex
	total int64            // bytes of all accounts; guarded by mu
	held  map[string]int64 // bytes by account; guarded by mu
}

// reserve adds n to the bytes of an account. Returns false if the limit would be exceeded. An account may use at most half of the
// memory that the other accounts leave, so that some always remains for one more account.
func (m *bodyMemory) reserve(account string, n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	mine := m.held[account]
	if others := m.total - mine; n > 0 && mine+n > (maxBodies-others)/2 {
		return false
	}
	if m.held == nil {
		m.held = map[string]int64{}
	}
	m.total += n
	if m.held[account] = mine + n; mine+n == 0 {
		delete(m.held, account)
	}
	return true
}

// A body is the body of a request, in a buffer. The bytes of the buffer, except the first initialBody, count towards two limits of
// the bytes of request bodies that are in memory at the same time: that of the sandbox and that of the account.
type body struct {
	g       *Gateway
	limiter *limiter // has the limit of the sandbox
	buf     *[]byte  // buffer with the bytes read so far
	held    int64    // bytes of the buffer that were counted towards both limits

	account string // account of the request
}

// newBody returns an empty body for a request of an account. Its bytes count towards the limits of t and of the account, also those
// of a large buffer from the pool; if these exceed a limit, the body begins with a small buffer.
func (g *Gateway) newBody(t *limiter, account string) *body {
	b := &body{g: g, limiter: t, buf: bodyBuffers.Get().(*[]byte), account: account}
	if b.reserve(int64(cap(*b.buf)-initialBody)) != nil {
		bodyBuffers.Put(b.buf)
		b.buf = new(make([]byte, 0, initialBody))
	}
	return b
}

func (b *body) bytes() []byte { return *b.buf }

// reserve counts n bytes towards the limits of the sandbox and of the account. It returns a refusal, and counts nothing, if that
// exceeds a limit.
func (b *body) reserve(n int64) error {
	if !b.limiter.reserveBytes(n) {
		return refuseRetry(time.Second, "the bodies of the calls under way are too large together; wait for them")
	}
	if !b.g.bodyMemory.reserve(b.account, n) {
		b.limiter.reserveBytes(-n)
		return refuseRetry(time.Second, "the gateway has too many large bodies to handle; try again")
	}
	b.held += n
	return nil
}

// grow enlarges the buffer to n bytes. It returns a refusal if that exceeds the limit of the sandbox or of the account.
func (b *body) grow(n int) error {
	if err := b.reserve(int64(n - cap(*b.buf))); err != nil {
		return err
	}
	*b.buf = append(make([]byte, 0, n), *b.buf...)
	return nil
}

// read reads the body of r.
func (b *body) read(r *http.Request) error {
	if r.ContentLength > maxBody {
		return tooLarge()
	}
	if n := int(r.ContentLength) + 1; n > cap(*b.buf) && n <= maxPooledBody {
		if err := b.grow(n); err != nil {
			return err
		}
	}
	for {
		if len(*b.buf) == cap(*b.buf) {
			if err := b.grow(min(2*cap(*b.buf), maxBody+1)); err != nil {
				return err
			}
		}
		n, err := r.Body.Read((*b.buf)[len(*b.buf):cap(*b.buf)])
		*b.buf = (*b.buf)[:len(*b.buf)+n]
		switch {
		case len(*b.buf) > maxBody:
			return tooLarge()
		case err == io.EOF:
			return nil
		case err != nil:
			return refuse(http.StatusBadRequest, "invalid_request", "the body did not arrive whole; send it again")
		}
	}
}

// tooLarge returns the refusal of a body of more than maxBody.
func tooLarge() error {
	return refuse(http.StatusRequestEntityTooLarge, "too_large", "the body has more than %d MiB; send less", maxBody>>20)
}

// free returns the buffer to its pool, and stops counting its bytes. The body must not be used afterwards.
func (b *body) free() {
	b.limiter.reserveBytes(-b.held)
	b.g.bodyMemory.reserve(b.account, -b.held)
	if cap(*b.buf) <= maxPooledBody {
		*b.buf = (*b.buf)[:0]
		bodyBuffers.Put(b.buf)
	}
}
