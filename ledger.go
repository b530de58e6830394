package caisson

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A Call is a row of the ledger: one model call, successful or not.
type Call struct {
	ID       ID        `json:"id"`
	At       time.Time `json:"at" doc:"When it was accepted"`
	Guest              // the sandbox or run that made the call; its account is charged
	Provider string    `json:"provider"`
	Model    string    `json:"model" doc:"Alias"`
	Upstream string    `json:"upstream" doc:"The provider's name for the model"`
	API      string    `json:"api" doc:"chat, responses, embeddings, messages, count_tokens, generate"`
	Stream   bool      `json:"stream,omitempty"` // the guest requested the answer as a stream
	// Status is the HTTP status of the response to the guest; 0 if there was no response, because the sandbox was removed or
	// the model gateway stopped.
	Status int    `json:"status"`
	Error  string `json:"error,omitempty" doc:"A word for what went wrong: aborted, upstream, timeout, lost, ..."`
	// Detail is for the account that is charged, and is never shown in a sandbox: it contains names of hosts and credentials.
	Detail string     `json:"detail,omitempty" doc:"The provider's error, or why it could not be reached; one line without secrets, at most 512 bytes"`
	Tokens TokenCount `json:"tokens"`
	Cost   USD        `json:"cost"`
	// Estimated means that Tokens and Cost do not come from the provider, because the answer was cut off or the model
	// gateway stopped before the answer ended.
	Estimated bool `json:"estimated,omitempty"`
	// AtMost is the maximum usage that the call can have had. It is set if Tokens and Cost are an estimate from the request's
	// text, and budgets then count it; see [Call.Amount]. If it is nil, budgets count Tokens and Cost.
	AtMost       *Amount  `json:"atMost,omitempty" doc:"What budgets count of a call that was cut off; absent: tokens and cost"`
	UpstreamID   string   `json:"upstreamId,omitempty" doc:"The provider's id of the call (LiteLLM: x-litellm-call-id)"`
	UpstreamCost *USD     `json:"upstreamCost,omitempty" doc:"Cost as reported by LiteLLM"`
	FirstByte    Duration `json:"firstByte,omitempty" doc:"Until the answer began"`
	Duration     Duration `json:"duration" doc:"Until the answer ended"`
}

// Amount returns the usage of c that is charged to budgets.
func (c *Call) Amount() Amount {
	a := Amount{USD: c.Cost, Tokens: c.Tokens.Total(), Calls: 1}
	if m := c.AtMost; m != nil {
		a.USD, a.Tokens = max(a.USD, m.USD), max(a.Tokens, m.Tokens)
	}
	return a
}

// ChargeSource is the field Source of each [Receipt] for a call that a model gateway metered.
const ChargeSource = "caisson"

// A Demand is the maximum usage of a call. It has two parts: that of the input, which is known when the call begins, and that
// of the output, whose length the model gateway can limit.
type Demand struct {
	Fixed       Amount // maximum cost and tokens of the input, and one call
	OutputPrice USD    // price of a million tokens of output
	MinOutput   int64  // tokens of output below which the call is not useful
	MaxOutput   int64  // tokens of output that the call requests
}

// MaxUsage returns the maximum usage of the call if output is the number of tokens of its answer.
func (d Demand) MaxUsage(output int64) Amount {
	return d.Fixed.Plus(Amount{USD: perMillion(d.OutputPrice, output), Tokens: output})
}

// A Meter keeps calls within budgets, and writes the ledger.
type Meter interface {
	// Reserve reserves the maximum usage of call in all budgets of its guest, and records that the call has begun, so that it will
	// be in the ledger in any case. It grants at most d.MaxOutput tokens of output, and fewer, down to d.MinOutput, if a budget does
	// not cover more. The error is an [*OverBudget], or Unavailable if the budgets cannot be read.
	Reserve(ctx context.Context, call Call, d Demand) (Reservation, error)
}

// A Reservation is the part of budgets that is set aside for a call that has begun.
type Reservation interface {
	// Output returns how many tokens of output may be requested.
	Output() int64
	// Settle writes the call's row and releases the part of the reservation that it did not use. It must be called exactly once,
	// before the guest gets the last byte of the answer; a reservation that is never settled is charged in full after the model
	// gateway has stopped. An error means that the ledger cannot be written: the answer must not be completed.
	Settle(call Call) error
}

// An OverBudget is the error of a call that a budget does not cover.
type OverBudget struct {
	Budget string        // the budget, for messages: "sandbox sb-…", "account alice (month)"
	What   string        // quantity that the budget does not cover: usd, tokens or calls
	Limit  string        // limit of the budget, for messages: "5 USD", "100000 tokens"
	Left   string        // rest of the budget, for messages: "1.5 USD", "2000 tokens"
	Busy   bool          // the budget may cover the call once calls in progress have ended, so a retry after Retry may succeed
	Retry  time.Duration // time to wait before a retry; 0 if not Busy
}

// Error returns a message with the budget and its remaining amount.
func (e *OverBudget) Error() string {
	if e.Busy {
		return fmt.Sprintf("the budget of %s (%s) is set aside for calls under way, with %s left; try again in a moment", e.Budget, e.Limit, e.Left)
	}
	return fmt.Sprintf("the budget of %s (%s) does not cover this call: %s left; raise the budget", e.Budget, e.Limit, e.Left)
}

// A Lease is a part of a budget that was durably handed out: its holder may spend it without a further request, and any
// part that it does not return counts as spent.
type Lease struct {
	Granted   Amount    `json:"granted"`         // the leased part of the budget; 0 if less than the needed amount is left
	Limits    Limits    `json:"limits"`          // limits of the budget; no lease is needed of a quantity without a limit
	Left      Amount    `json:"left"`            // rest of the budget, without Granted and the leases of other holders
	Held      Amount    `json:"held"`            // sum of the leases of all holders, Granted included
	Until     time.Time `json:"until,omitzero"`  // end of the budget's period, when the lease becomes void; zero: never
	Unlimited bool      `json:"unlimited"`       // the budget does not exist, so it limits no call
	Title     string    `json:"title,omitempty"` // the budget's name for messages
}

// A Lessor leases parts of budgets to the wire process.
type Lessor interface {
	// Lease reserves at least need and at most want of a budget for calls of an account, or nothing if less than need
	// is left. A budget of another account is treated as missing.
	Lease(ctx context.Context, account, budget string, need, want Amount) (Lease, error)
	// Return gives back the amount a, the unspent part of leases of a budget.
	Return(ctx context.Context, budget string, a Amount) error
}

// A Budget bounds the model calls of an account, a session, a run or a sandbox.
type Budget struct {
	// Key is "account/NAME", "session/ID", "run/ID" or "sandbox/ID".
	Key       string    `json:"key"`
	Account   string    `json:"account"`
	Limits    Limits    `json:"limits"`
	Period    string    `json:"period,omitempty" enum:"day,month," doc:"Usage counts from the beginning of the UTC day or month; empty: usage is never reset"`
	Used      Amount    `json:"used" doc:"Used in this period by calls in the ledger"`
	Held      Amount    `json:"held" doc:"Leased to gateways, and not yet in the ledger or returned"`
	CreatedAt time.Time `json:"createdAt"`
}

// Budgets returns the keys of the budgets that calls of g are charged to.
func (g Guest) Budgets() []string {
	keys := []string{"account/" + g.Account}
	if g.Session != "" {
		keys = append(keys, "session/"+g.Session)
	}
	if g.Run != "" && g.Run != string(g.Sandbox) {
		keys = append(keys, "run/"+g.Run)
	}
	for run := range strings.FieldsSeq(g.Lineage) {
		keys = append(keys, "run/"+run)
	}
	if g.Sandbox != "" {
		keys = append(keys, "sandbox/"+string(g.Sandbox))
	}
	return keys
}

// A UsageQuery selects calls of the caller's account. A local caller may name another account, or all accounts with "*".
type UsageQuery struct {
	By      string // what calls are summed by: run, sandbox, account, model, day, session, agent or user; "" means one sum
	Account string
	Run     string
	Under   string // id of a run: selects its calls, and those of all its sub-runs
	Agent   string
	Sandbox ID
	Model   string
	Since   time.Time // selects calls from this time on; zero: from the first call
	Until   time.Time // selects calls before this time; zero: to the last call
}

// A UsageRow is a sum of calls.
type UsageRow struct {
	Key       string     `json:"key" doc:"The run, account, model or day; empty for the sum of everything"`
	Calls     int64      `json:"calls"`
	Failed    int64      `json:"failed" doc:"Calls with a status other than 2xx"`
	Estimated int64      `json:"estimated" doc:"Calls whose tokens and cost are estimates"`
	Tokens    TokenCount `json:"tokens"`
	Cost      USD        `json:"cost"`
}

// A Receipt charges an account for a call. Source and Reference together are unique: no call is charged twice.
type Receipt struct {
	Source    string    `json:"source"` // component that metered the call: ChargeSource for a model gateway
	Reference string    `json:"reference" doc:"run/attempt/call"`
	Account   string    `json:"account"`
	Cost      USD       `json:"cost"`
	Estimated bool      `json:"estimated,omitempty"` // Cost is an estimate
	At        time.Time `json:"at"`
}

// A Discrepancy is a difference between the ledger and LiteLLM's spend logs.
type Discrepancy struct {
	Call       ID     `json:"call,omitempty"`       // id of the call in the ledger; "" if it is missing there
	UpstreamID string `json:"upstreamId,omitempty"` // LiteLLM's id of the call
	Problem    string `json:"problem" doc:"missing upstream, missing here, cost differs"`
	Here       USD    `json:"here"`     // the call's cost in the ledger
	Upstream   USD    `json:"upstream"` // the call's cost in the spend logs
}

// Ledger is the service for the record of calls and the budgets. Queries include every call whose answer a guest has
// got completely.
type Ledger interface {
	Usage(ctx context.Context, q UsageQuery) ([]UsageRow, error)
	// Calls returns a page of calls, oldest first, after the one with the id after, and whether more follow.
	Calls(ctx context.Context, q UsageQuery, after ID, limit int) (page []Call, more bool, err error)
	// Receipts returns a page of the calls' charges, oldest first, after the one with the reference after, and whether more follow.
	Receipts(ctx context.Context, q UsageQuery, after string, limit int) (page []Receipt, more bool, err error)
	// SetBudget creates a budget or changes its limits and period. An empty Key means the budget of the caller's account. Only
	// local callers may set the budget of an account. The limits apply to calls that begin after SetBudget returns.
	SetBudget(ctx context.Context, b Budget) (*Budget, error)
	// ListBudgets returns the account's budgets, sorted by key.
	ListBudgets(ctx context.Context) ([]*Budget, error)
	RemoveBudget(ctx context.Context, key string) error
	// Reconcile compares the calls of a provider of kind litellm with its spend logs. Denied unless the caller is
	// local; Conflict while another Reconcile is in progress.
	Reconcile(ctx context.Context, provider string, since time.Time) ([]Discrepancy, error)
}

// LedgerStore holds the ledger and the budgets.
type LedgerStore interface {
	// Ingest adds calls, the rows of a journal between the offsets from and to, in one transaction. For each row that is new by
	// its source and reference, it moves the call's Amount from Held to Used in each Budget of the guest, except those of other
	// accounts. Rows that exist already change nothing. from must be the offset up to which the journal was ingested before;
	// otherwise Ingest returns Conflict. Returns Invalid if a row can never be stored. Sums saturate at 9e18, which is nine billion
	// dollars (in nanodollars), or 9e18 tokens.
	Ingest(ctx context.Context, journal ID, from, to int64, calls []Call) error
	// Offset returns the offset up to which a journal was ingested; 0 for an unknown journal.
	Offset(ctx context.Context, journal ID) (int64, error)
	// Lease and Return implement [Lessor] for one holder of leases, the wire process that writes the journal.
	Lease(ctx context.Context, journal ID, account, budget string, need, want Amount, now time.Time) (Lease, error)
	Return(ctx context.Context, journal ID, budget string, a Amount) error
	// Close ends a journal after its last row was ingested, and releases the leases that its holder still has. If lost is
	// set, rows may be missing from the journal, and these leases count as used instead.
	Close(ctx context.Context, journal ID, lost bool) error
	// Open returns the ids of the journals that were not closed; their wire processes may hold leases.
	Open(ctx context.Context) ([]ID, error)

	PutBudget(ctx context.Context, in Scope, b *Budget) (*Budget, error)
	GetBudget(ctx context.Context, in Scope, key string) (*Budget, error)
	ListBudgets(ctx context.Context, in Scope) ([]*Budget, error)
	DeleteBudget(ctx context.Context, in Scope, key string) error

	Usage(ctx context.Context, in Scope, q UsageQuery) ([]UsageRow, error)
	Calls(ctx context.Context, in Scope, q UsageQuery, after ID, limit int) (page []Call, more bool, err error)

	// PutPrices replaces the price list that was imported from source.
	PutPrices(ctx context.Context, source string, prices []ListedPrice) error
	// Price returns the most recently imported price of a model; NotFound if no price list has it. A price for
	// "provider/model" takes precedence over one for model alone.
	Price(ctx context.Context, provider, model string) (*ListedPrice, error)
	// Prices returns the imported prices of models whose names contain match.
	Prices(ctx context.Context, match string) ([]ListedPrice, error)
}
