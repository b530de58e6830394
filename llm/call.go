package llm

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/llm/dialect"
)

const (
	largeBody = 1 << 20 // bytes
	maxParses = 2       // concurrent parses of large bodies
)

// freeOutput is the default output limit of free models, in tokens.
const freeOutput = 32_768

// A call is one request of a guest from its arrival to its row in the ledger. It is not safe for concurrent use.
type call struct {
	life
	g     *Gateway
	w     http.ResponseWriter
	r     *http.Request
	api   *API
	e     dialect.Endpoint
	grant *caisson.ModelGrant
	seat  *seat
	setup *setup

	req     dialect.Request
	model   *model
	input   int64 // maximum number of input tokens
	likely  int64 // estimated number of input tokens
	body    []byte
	taken   int64 // tokens charged to the rate limit
	started time.Time

	row      caisson.Call
	reserved caisson.Reservation
	settled  bool
	sent     bool  // the guest has received a part of an answer
	tried    error // why the last attempt to send the request failed; nil if there was none
	record   *recording
}

// serve handles one request. The caller writes the error, if any, to the guest.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, guest caisson.Guest, api *API, e dialect.Endpoint) error {
	if err := check(r); err != nil {
		return err
	}
	c := &call{life: life{config: &g.config, guest: guest, asked: r.Context()}, g: g, w: w, r: r, api: api, e: e, started: time.Now()}
	if c.grant = g.config.Grant(r.Context(), guest); c.grant == nil {
		return refuse(http.StatusForbidden, "model_not_allowed", "this sandbox has no grant for models; ask for one")
	}
	if e.List {
		return c.list()
	}
	if c.seat = g.seats.take(guest, c.started); c.seat == nil {
		return later(time.Second, "this sandbox has %d calls under way, which is the most it may have; wait for one to end", maxCalls)
	}
	defer func() { c.seat.leave(c.settled, time.Now()) }()
	b := g.newBody(c.seat, guest.Account)
	defer b.free()
	if err := c.read(b); err != nil {
		return err
	}
	return c.serve(b.bytes())
}

// check rejects requests that no client of a supported API sends.
func check(r *http.Request) error {
	size := 0
	for name, values := range r.Header {
		for _, v := range values {
			size += len(name) + len(v) + 4
		}
	}
	switch {
	case size > maxHeader:
		return refuse(http.StatusRequestHeaderFieldsTooLarge, "too_large", "the headers have more than %d KiB; send fewer", maxHeader>>10)
	case r.Header["Upgrade"] != nil:
		return refuse(http.StatusBadRequest, "invalid_request", "this gateway has no protocol to upgrade to; use plain HTTP")
	case r.Header["Expect"] != nil:
		return refuse(http.StatusExpectationFailed, "invalid_request", "this gateway expects nothing; send the request without Expect")
	case r.Header["Content-Encoding"] != nil && !strings.EqualFold(r.Header.Get("Content-Encoding"), "identity"):
		return refuse(http.StatusUnsupportedMediaType, "invalid_request", "the body is encoded; send it plain")
	}
	return nil
}

func (c *call) list() error {
	body := c.api.Dialect.List(c.g.setup.Load().list(c.grant, c.api))
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Write(body)
	return nil
}

// read reads the body within its timeout.
func (c *call) read(b *body) error {
	rc := http.NewResponseController(c.w)
	rc.SetReadDeadline(c.started.Add(c.g.config.Timeouts.Body)) // fails only for test writers without deadlines
	if err := b.read(c.r); err != nil {
		return err
	}
	rc.SetReadDeadline(time.Time{})
	return nil
}

// serve handles a request whose body has been read.
func (c *call) serve(body []byte) (err error) {
	if _, wait := c.seat.admit(caisson.Rate{Requests: c.grant.Rate.Requests}, 0, c.started); wait > 0 {
		return tooFast(wait, c.grant.Rate)
	}
	allow := c.allow()
	if c.req, err = c.g.parse(c.asked, c.api.Dialect, c.e, body, allow); err != nil {
		return err
	}
	c.setup = c.g.setup.Load()
	asked := c.req.Model()
	if c.e.Model != "" {
		asked = c.e.Model
	}
	if c.model, err = c.setup.choose(asked, c.grant, c.api); err != nil {
		return err
	}
	if err := c.states(allow); err != nil {
		return err
	}
	demand, err := c.demand()
	if err != nil {
		return err
	}
	if c.model.from.Credential != "" && c.model.from.key.IsZero() {
		return refuseKeyless(c)
	}
	var wait time.Duration
	if c.taken, wait = c.seat.admit(caisson.Rate{Tokens: c.grant.Rate.Tokens}, demand.At(demand.MaxOutput).Tokens, c.started); wait > 0 {
		return tooFast(wait, c.grant.Rate)
	}
	c.describe()
	if c.reserved, err = c.g.config.Meter.Reserve(c.r.Context(), c.row, demand); err != nil {
		c.seat.correct(c.grant.Rate, c.taken, 0)
		return c.g.refuseBudget(c.r.Context(), err)
	}
	defer c.settleAnyway()
	if c.body, err = c.req.Encode(dialect.Target{Model: c.model.name, User: c.user(), Output: c.reserved.Output(), Limit: c.model.from.MaxTokens}); err != nil {
		return c.fail(outcome{word: "internal"}, dialect.Refused(err))
	}
	if c.grant.Record && c.g.config.Record != nil {
		c.record = newRecording(c.g.config.Record(c.guest), c.setup.secrets, c.body)
	}
	return c.forward(allow)
}

// parse parses a body. Only maxParses large bodies are parsed at once, because the cost grows with their size.
func (g *Gateway) parse(ctx context.Context, d dialect.Dialect, e dialect.Endpoint, body []byte, allow dialect.Allow) (dialect.Request, error) {
	if len(body) > largeBody {
		select {
		case g.parses <- struct{}{}:
			defer func() { <-g.parses }()
		case <-ctx.Done():
			return nil, refuse(http.StatusRequestTimeout, "timeout", "the connection ended before the body was read; send it again")
		}
	}
	return d.Parse(e, body, allow)
}

func (c *call) allow() (a dialect.Allow) {
	for _, name := range c.grant.Allow {
		switch name {
		case caisson.GrantProviderTools:
			a.ProviderTools = true
		case caisson.GrantRemoteURLs:
			a.RemoteURLs = true
		case caisson.GrantBeta:
			a.Beta = true
		case caisson.GrantServerState:
			a.ServerState = true
		}
	}
	return a
}

// states rejects ids of server-side state that the guest's account did not create.
func (c *call) states(allow dialect.Allow) error {
	for _, id := range c.req.ServerIDs() {
		if !allow.ServerState || !c.g.states.has(c.guest.Account, c.model.from.Name, id) {
			return refuse(http.StatusNotFound, "not_found", "%.80q is nothing that was made through this gateway lately; send all of the input instead", id)
		}
	}
	return nil
}

// demand returns the maximum cost of the call.
func (c *call) demand() (d caisson.Demand, err error) {
	m := c.model
	if m.Prices == nil && !m.Free {
		return d, refuseParam(http.StatusForbidden, "model_unpriced", "model", "the price of model %.80q is not known, so it cannot be kept within a budget; configure its prices, import a price list, or mark it as free", m.Alias)
	}
	d.Fixed.Calls = 1
	if c.e.Free {
		return d, nil
	}
	bound, known := c.req.Input()
	want, least := c.req.Output()
	answers := want > 0 || least > 0
	switch {
	case known && m.Context > 0 && answers:
		bound = min(bound, m.Context)
	case known: // each input of an embeddings request has its own context
	case m.Context > 0:
		bound = m.Context
	case !m.Free:
		return d, refuseParam(http.StatusBadRequest, "invalid_request", "model", "what the model will read cannot be bounded from this body; configure the context limit of model %.80q, or send text only", m.Alias)
	}
	c.input, c.likely = bound, bound
	if known {
		c.likely = min(bound, likely(c.req))
	}
	d.Fixed.Tokens = bound
	d.Fixed.USD = inputAtWorst(m.prices, bound)
	if !answers {
		return d, nil
	}
	limit := m.Output
	if limit == 0 {
		limit = m.Context
	}
	if limit == 0 && m.Free {
		limit = freeOutput
	}
	switch {
	case want == 0 && limit == 0:
		return d, refuseParam(http.StatusBadRequest, "invalid_request", "max_tokens", "the answer has no limit; limit its tokens (max_tokens, max_completion_tokens or max_output_tokens), or configure the output limit of model %.80q", m.Alias)
	case want == 0:
		d.MaxOutput = limit
	case limit == 0:
		d.MaxOutput = want
	default:
		d.MaxOutput = min(want, limit)
	}
	d.MinOutput = min(least, d.MaxOutput)
	d.OutputPrice = m.prices.Output
	return d, nil
}

// inputAtWorst returns the cost of tokens of input at the highest input price.
func inputAtWorst(p caisson.Prices, tokens int64) caisson.USD {
	return caisson.Prices{Input: p.MaxInput()}.Cost(caisson.TokenCount{Input: tokens})
}

// describe fills in the fields of the row that are known before the call.
func (c *call) describe() {
	c.row = caisson.Call{
		ID: caisson.NewID(caisson.CallPrefix), At: c.started.UTC(), Guest: c.guest,
		Provider: c.model.from.Name, Model: c.model.Alias, Upstream: c.model.name,
		API: c.e.API, Stream: c.e.Stream || c.req.Stream(),
	}
}

// Estimate of the input tokens: one token per likelyBytes bytes of text, rounded up, and likelyImage tokens per image. Source
// code and text in most languages have more bytes per token.
const (
	likelyBytes = 3
	likelyImage = 1600
)

// likely estimates the input tokens of a request from its text, without images and their encoding.
func likely(r dialect.Request) int64 {
	text, _ := r.Input()
	n, tokens := r.Images()
	return (max(0, text-tokens)+likelyBytes-1)/likelyBytes + n*likelyImage
}

// An outcome is the result of a call, as recorded in its row.
type outcome struct {
	word      string // Error of the row
	status    int    // Status of the row; 0 keeps the status that the guest received, if any
	tokens    caisson.TokenCount
	cost      caisson.USD
	estimated bool
	most      *caisson.Amount // amount that budgets count instead of an estimate; nil: tokens and cost
}

// worst returns the outcome of a call with the maximum cost, for calls without any information about their cost.
func (c *call) worst(word string, status int) outcome {
	if c.e.Free {
		return outcome{word: word, status: status}
	}
	return c.estimate(word, status, caisson.TokenCount{}, c.input, math.MaxInt64)
}

// cut returns the outcome of a call whose answer broke off after seen bytes of text and the reported usage said.
func (c *call) cut(word string, status int, said caisson.TokenCount, seen int64) outcome {
	if c.e.Free {
		return outcome{word: word, status: status}
	}
	output := int64(math.MaxInt64) // providers complete answers that are not streamed
	if c.row.Stream {
		output = seen + c.hidden()
	}
	o := c.estimate(word, status, said, c.likely, output)
	// The provider may have read more tokens and may have continued after the break. If it adds to the input itself, as with
	// tools that it runs, the usage that it reports before the end is incomplete.
	stated := said
	if _, known := c.req.Input(); !known {
		stated = caisson.TokenCount{Output: said.Output}
	}
	most := c.estimate(word, status, stated, c.input, math.MaxInt64)
	o.most = &caisson.Amount{USD: most.cost, Tokens: most.tokens.Total(), Calls: 1}
	return o
}

// estimate completes the reported usage: it adds the given input if none was reported, and the given output up to what was
// granted.
func (c *call) estimate(word string, status int, said caisson.TokenCount, input, output int64) outcome {
	o := outcome{word: word, status: status, tokens: said, estimated: true}
	fresh := said.Input == 0 && said.CacheRead == 0 && said.CacheWrite == 0
	if fresh {
		o.tokens.Input = input
	}
	o.tokens.Output = max(said.Output, min(output, c.reserved.Output()))
	o.cost = c.model.prices.Cost(o.tokens)
	if fresh {
		output := caisson.Amount{USD: c.model.prices.Cost(caisson.TokenCount{Output: o.tokens.Output})}
		o.cost = caisson.Amount{USD: inputAtWorst(c.model.prices, input)}.Plus(output).USD
	}
	return o
}

// settle writes the row. It has no effect if the call is settled already.
func (c *call) settle(o outcome) error {
	if c.settled {
		return nil
	}
	c.settled = true
	c.seat.settled()
	c.row.Error, c.row.Tokens, c.row.Cost, c.row.Estimated, c.row.AtMost = o.word, o.tokens, o.cost, o.estimated, o.most
	if o.status != 0 {
		c.row.Status = o.status
	}
	c.row.Duration = caisson.Duration(time.Since(c.started))
	c.seat.correct(c.grant.Rate, c.taken, c.row.Amount().Tokens)
	err := c.reserved.Settle(c.row)
	c.record.end(c.row)
	log := c.g.config.Log
	ctx := c.r.Context()
	if c.row.Detail != "" {
		log.LogAttrs(ctx, slog.LevelWarn, "a provider failed", slog.String("provider", c.row.Provider), slog.String("model", c.row.Model),
			slog.String("call", string(c.row.ID)), slog.String("run", c.guest.Run), slog.String("detail", c.row.Detail))
	}
	if err != nil {
		log.LogAttrs(ctx, slog.LevelError, "the ledger cannot be written", slog.String("call", string(c.row.ID)), slog.Any("err", err))
		return refuse(http.StatusServiceUnavailable, "internal", "the ledger cannot be written, so the answer is withheld; tell the operator")
	}
	if log.Enabled(ctx, slog.LevelDebug) {
		log.LogAttrs(ctx, slog.LevelDebug, "call", slog.String("call", string(c.row.ID)), slog.String("sandbox", string(c.guest.Sandbox)),
			slog.String("account", c.guest.Account), slog.String("run", c.guest.Run), slog.String("model", c.row.Model), slog.String("api", c.row.API),
			slog.Int("status", c.row.Status), slog.String("error", o.word), slog.Int64("input", o.tokens.Input), slog.Int64("output", o.tokens.Output),
			slog.String("cost", o.cost.String()), slog.Bool("estimated", o.estimated), slog.Duration("duration", time.Duration(c.row.Duration)))
	}
	return nil
}

// settleAnyway settles the call after a panic or on a path that did not settle it. Call it with defer.
func (c *call) settleAnyway() {
	p := recover()
	c.settle(c.worst("internal", 0)) // no effect if the call is settled
	if p == nil {
		return
	}
	if p != http.ErrAbortHandler {
		c.g.config.Log.Error("a call panicked", "call", string(c.row.ID), "panic", p)
	}
	panic(http.ErrAbortHandler)
}

// fail settles a call of which the guest has received nothing yet, and returns the error to write.
func (c *call) fail(o outcome, why error) error {
	if o.status == 0 && c.r.Context().Err() == nil {
		o.status = dialect.Refused(why).Status
	}
	if err := c.settle(o); err != nil {
		return err
	}
	return why
}

// abort settles a call and cuts off its answer, of which the guest has received a part.
func (c *call) abort(o outcome) error {
	c.settle(o)
	panic(http.ErrAbortHandler)
}
