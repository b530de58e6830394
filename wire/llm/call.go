package llm

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

const (
	largeBody = 1 << 20 // bytes; at most maxParses larger bodies are parsed at once
	maxParses = 2       // concurrent parses of large bodies
)

// freeOutput is the default output limit of free models, in tokens.
const freeOutput = 32_768

// A call is one request of a guest from its arrival to its row in the ledger. It is not safe for concurrent use.
type call struct {
	callLifetime
	g        *Gateway
	w        http.ResponseWriter
	r        *http.Request // the guest's request
	api      *API          // the API of the request
	endpoint dialect.Endpoint
	grant    *caisson.ModelGrant // the guest's grant for models when the request arrived
	limiter  *limiter            // limits the calls of the sandbox
	setup    *setup              // configuration of the gateway when the body had been parsed

	req            dialect.Request // the checked body of the request
	model          *model          // the granted model that answers
	maxInput       int64           // upper bound of the request's input tokens; reserved in the budgets
	estimatedInput int64           // estimate of the request's input tokens, at most maxInput
	body           []byte          // body of the request to the provider
	rateTokens     int64           // tokens charged to the sandbox's limit of tokens per minute
	started        time.Time       // when the request arrived

	row           caisson.Call        // the row of the call in the ledger
	reserved      caisson.Reservation // amount reserved in the budgets that the call is charged to
	settled       bool                // the row was written to the ledger, or writing it has failed
	answerStarted bool                // the guest has received a part of an answer
	lastSendErr   error               // why sending the request failed last; nil if it did not fail
	record        *recording          // records the prompt and the answer; nil: they are not recorded
}

// serve handles one request. It does not write the error that it returns to the guest.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, guest caisson.Guest, api *API, e dialect.Endpoint) error {
	if err := checkRequest(r); err != nil {
		return err
	}
	c := &call{callLifetime: callLifetime{config: &g.config, guest: guest, requestCtx: r.Context()}, g: g, w: w, r: r, api: api, endpoint: e, started: time.Now()}
	if c.grant = g.config.Grant(r.Context(), guest); c.grant == nil {
		return refuse(http.StatusForbidden, "model_not_allowed", "this sandbox has no grant for models; ask for one")
	}
	if e.List {
		return c.list()
	}
	if c.limiter = g.limiters.admit(guest, c.started); c.limiter == nil {
		return refuseRetry(time.Second, "this sandbox has %d calls under way, which is the most it may have; wait for one to end", maxCalls)
	}
	defer func() { c.limiter.release(c.settled, time.Now()) }()
	b := g.newBody(c.limiter, guest.Account)
	defer b.free()
	if err := c.read(b); err != nil {
		return err
	}
	return c.serve(b.bytes())
}

// checkRequest rejects requests that no client of a supported API sends.
func checkRequest(r *http.Request) error {
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
		return refuse(http.StatusExpectationFailed, "invalid_request", "this gateway does not support Expect; send the request without it")
	case r.Header["Content-Encoding"] != nil && !strings.EqualFold(r.Header.Get("Content-Encoding"), "identity"):
		return refuse(http.StatusUnsupportedMediaType, "invalid_request", "encoded bodies are not supported; send the body without Content-Encoding")
	}
	return nil
}

// list writes the list of the models that the grant allows.
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
	if _, wait := c.limiter.takeRate(caisson.Rate{Requests: c.grant.Rate.Requests}, 0, c.started); wait > 0 {
		return refuseRate(wait, c.grant.Rate)
	}
	allow := c.allow()
	if c.req, err = c.g.parse(c.requestCtx, c.api.Dialect, c.endpoint, body, allow); err != nil {
		return err
	}
	c.setup = c.g.setup.Load()
	asked := c.req.Model()
	if c.endpoint.Model != "" {
		asked = c.endpoint.Model
	}
	if c.model, err = c.setup.resolveModel(asked, c.grant, c.api); err != nil {
		return err
	}
	if err := c.checkServerIDs(allow); err != nil {
		return err
	}
	demand, err := c.demand()
	if err != nil {
		return err
	}
	if c.model.provider.Credential != "" && c.model.provider.key.IsZero() {
		return refuseKeyless(c)
	}
	var wait time.Duration
	if c.rateTokens, wait = c.limiter.takeRate(caisson.Rate{Tokens: c.grant.Rate.Tokens}, demand.MaxUsage(demand.MaxOutput).Tokens, c.started); wait > 0 {
		return refuseRate(wait, c.grant.Rate)
	}
	c.fillRow()
	if c.reserved, err = c.g.config.Meter.Reserve(c.r.Context(), c.row, demand); err != nil {
		c.limiter.correctRate(c.grant.Rate, c.rateTokens, 0)
		return c.g.refuseBudget(c.r.Context(), err)
	}
	defer c.settleDeferred()
	if c.body, err = c.req.Encode(dialect.Target{Model: c.model.upstreamName, User: c.endUser(), Output: c.reserved.Output(), LimitField: c.model.provider.MaxTokens}); err != nil {
		return c.fail(outcome{errorCode: "internal"}, dialect.AsRefusal(err))
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
		case g.parseSlots <- struct{}{}:
			defer func() { <-g.parseSlots }()
		case <-ctx.Done():
			return nil, refuse(http.StatusRequestTimeout, "timeout", "the connection ended before the body was read; send it again")
		}
	}
	return d.Parse(e, body, allow)
}

// allow returns the optional features that the grant allows.
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

// checkServerIDs rejects ids of objects that the provider stores, if the guest's account is not recorded as their creator.
func (c *call) checkServerIDs(allow dialect.Allow) error {
	for _, id := range c.req.ServerIDs() {
		if !allow.ServerState || !c.g.serverStates.has(c.guest.Account, c.model.provider.Name, id) {
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
	if c.endpoint.Free {
		return d, nil
	}
	bound, known := c.req.Input()
	want, least := c.req.Output()
	answers := want > 0 || least > 0
	switch {
	case known && m.Context > 0 && answers:
		bound = min(bound, m.Context)
	case known: // the model's context limits each input of an embeddings request, not the sum of the inputs
	case m.Context > 0:
		bound = m.Context
	case !m.Free:
		return d, refuseParam(http.StatusBadRequest, "invalid_request", "model", "the input tokens of this request cannot be bounded; configure the context limit of model %.80q, or send text only", m.Alias)
	}
	c.maxInput, c.estimatedInput = bound, bound
	if known {
		c.estimatedInput = min(bound, estimateInput(c.req))
	}
	d.Fixed.Tokens = bound
	d.Fixed.USD = maxInputCost(m.prices, bound)
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

// maxInputCost returns the cost of tokens of input at the highest input price.
func maxInputCost(p caisson.Prices, tokens int64) caisson.USD {
	return caisson.Prices{Input: p.MaxInput()}.Cost(caisson.TokenCount{Input: tokens})
}

// fillRow fills in the fields of the row that are known before the call.
func (c *call) fillRow() {
	c.row = caisson.Call{
		ID: caisson.NewID(caisson.CallPrefix), At: c.started.UTC(), Guest: c.guest,
		Provider: c.model.provider.Name, Model: c.model.Alias, Upstream: c.model.upstreamName,
		API: c.endpoint.API, Stream: c.endpoint.Stream || c.req.Stream(),
	}
}

// Estimate of the input tokens: one token per bytesPerToken bytes of text, rounded up, and tokensPerImage tokens per image.
// Source code and text in most languages have more bytes per token.
const (
	bytesPerToken  = 3
	tokensPerImage = 1600
)

// estimateInput estimates the input tokens of a request from its text, without images and their encoding.
func estimateInput(r dialect.Request) int64 {
	text, _ := r.Input()
	n, tokens := r.Images()
	return (max(0, text-tokens)+bytesPerToken-1)/bytesPerToken + n*tokensPerImage
}

// An outcome is the result of a call, as recorded in its row.
type outcome struct {
	errorCode string // error code of the row
	status    int    // HTTP status of the row; 0 keeps the status that the guest received, if any
	tokens    caisson.TokenCount
	cost      caisson.USD
	estimated bool            // tokens and cost are estimates, not what the provider reported
	atMost    *caisson.Amount // what budgets count, because tokens and cost may be too low; nil: they count tokens and cost
}

// maxCostOutcome returns the outcome with the maximum cost of the call, for a call whose cost is unknown. word is the error code
// for the row, status the HTTP status for it.
func (c *call) maxCostOutcome(word string, status int) outcome {
	if c.endpoint.Free {
		return outcome{errorCode: word, status: status}
	}
	return c.estimate(word, status, caisson.TokenCount{}, c.maxInput, math.MaxInt64)
}

// brokenOffOutcome returns the outcome of a call whose answer broke off after seen bytes of text. said is the usage that the
// provider had reported by then, word the error code for the row.
func (c *call) brokenOffOutcome(word string, status int, said caisson.TokenCount, seen int64) outcome {
	if c.endpoint.Free {
		return outcome{errorCode: word, status: status}
	}
	output := int64(math.MaxInt64) // the maximum that was reserved is charged: providers complete answers that are not streamed
	if c.row.Stream {
		output = seen + c.maxHiddenTokens()
	}
	o := c.estimate(word, status, said, c.estimatedInput, output)
	// The provider may have read more tokens and may have continued after the break. If the provider adds to the input itself, as
	// with tools that it runs, the usage that it reports before the end is incomplete.
	stated := said
	if _, known := c.req.Input(); !known {
		stated = caisson.TokenCount{Output: said.Output}
	}
	most := c.estimate(word, status, stated, c.maxInput, math.MaxInt64)
	o.atMost = &caisson.Amount{USD: most.cost, Tokens: most.tokens.Total(), Calls: 1}
	return o
}

// estimate returns an outcome with the usage said, which the provider has reported, completed by estimates: input is the number
// of input tokens if said has none; output is the number of output tokens, unless said has more or fewer were reserved.
func (c *call) estimate(word string, status int, said caisson.TokenCount, input, output int64) outcome {
	o := outcome{errorCode: word, status: status, tokens: said, estimated: true}
	fresh := said.Input == 0 && said.CacheRead == 0 && said.CacheWrite == 0
	if fresh {
		o.tokens.Input = input
	}
	o.tokens.Output = max(said.Output, min(output, c.reserved.Output()))
	o.cost = c.model.prices.Cost(o.tokens)
	if fresh {
		output := caisson.Amount{USD: c.model.prices.Cost(caisson.TokenCount{Output: o.tokens.Output})}
		o.cost = caisson.Amount{USD: maxInputCost(c.model.prices, input)}.Plus(output).USD
	}
	return o
}

// settle writes the row of the call to the ledger. It has no effect if the call is settled already.
func (c *call) settle(o outcome) error {
	if c.settled {
		return nil
	}
	c.settled = true
	c.limiter.settled()
	c.row.Error, c.row.Tokens, c.row.Cost, c.row.Estimated, c.row.AtMost = o.errorCode, o.tokens, o.cost, o.estimated, o.atMost
	if o.status != 0 {
		c.row.Status = o.status
	}
	c.row.Duration = caisson.Duration(time.Since(c.started))
	c.limiter.correctRate(c.grant.Rate, c.rateTokens, c.row.Amount().Tokens)
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
			slog.Int("status", c.row.Status), slog.String("error", o.errorCode), slog.Int64("input", o.tokens.Input), slog.Int64("output", o.tokens.Output),
			slog.String("cost", o.cost.String()), slog.Bool("estimated", o.estimated), slog.Duration("duration", time.Duration(c.row.Duration)))
	}
	return nil
}

// settleDeferred settles the call after a panic or on a path that did not settle it. Call it with defer.
func (c *call) settleDeferred() {
	p := recover()
	c.settle(c.maxCostOutcome("internal", 0)) // no effect if the call is settled
	if p == nil {
		return
	}
	if p != http.ErrAbortHandler {
		c.g.config.Log.Error("a call panicked", "call", string(c.row.ID), "panic", p)
	}
	panic(http.ErrAbortHandler)
}

// fail settles a call of whose answer the guest has received nothing yet, and returns the error for the guest.
func (c *call) fail(o outcome, why error) error {
	if o.status == 0 && c.r.Context().Err() == nil {
		o.status = dialect.AsRefusal(why).Status
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
