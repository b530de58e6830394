package caisson

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A Call is a row of the ledger: one call of a model, whatever became of it.
type Call struct {
	ID       ID        `json:"id"`
	At       time.Time `json:"at" doc:"When it was accepted"`
	Guest              // who made it, and so who is charged
	Provider string    `json:"provider"`
	Model    string    `json:"model" doc:"Alias"`
	Upstream string    `json:"upstream" doc:"The provider's name for the model"`
	API      string    `json:"api" doc:"chat, responses, embeddings, messages, count_tokens, generate"`
	Stream   bool      `json:"stream,omitempty"`
	// Status is the HTTP status that the guest got; 0 if it got none (its sandbox was gone, or the gateway ended).
	Status int    `json:"status"`
	Error  string `json:"error,omitempty" doc:"A word for what went wrong: aborted, upstream, timeout, lost, ..."`
	// Detail is for whoever the call is charged to, and is never shown in a sandbox: it names hosts and credentials.
	Detail string     `json:"detail,omitempty" doc:"What the provider answered, or why it could not be reached; one line without secrets, of at most 512 bytes"`
	Tokens TokenCount `json:"tokens"`
	Cost   USD        `json:"cost"`
	// Estimated says that Tokens and Cost are not the provider's: the answer was cut off, or the gateway ended meanwhile.
	Estimated bool `json:"estimated,omitempty"`
	// AtMost is what the call can have cost and is what budgets count, where Tokens and Cost are an estimate of the request's text; nil: budgets
	// count Tokens and Cost.
	AtMost       *Amount  `json:"atMost,omitempty" doc:"What budgets count of a call that was cut off; absent: tokens and cost"`
	UpstreamID   string   `json:"upstreamId,omitempty" doc:"The provider's id of the call (LiteLLM: x-litellm-call-id)"`
	UpstreamCost *USD     `json:"upstreamCost,omitempty" doc:"What LiteLLM says it cost"`
	FirstByte    Duration `json:"firstByte,omitempty" doc:"Until the answer began"`
	Duration     Duration `json:"duration" doc:"Until the answer ended"`
}

// Amount returns what c takes of a budget.
func (c *Call) Amount() Amount {
	a := Amount{USD: c.Cost, Tokens: c.Tokens.Total(), Calls: 1}
	if m := c.AtMost; m != nil {
		a.USD, a.Tokens = max(a.USD, m.USD), max(a.Tokens, m.Tokens)
	}
	return a
}

// ChargeSource is the source of charges for calls that this gateway metered. Source and reference are unique together.
const ChargeSource = "caisson"

// A Demand is what a call may take at most, told apart into what is known when it begins and the answer, whose length can
// be limited.
type Demand struct {
	Fixed       Amount // cost and tokens of the input at worst, and the call
	OutputPrice USD    // per million tokens
	MinOutput   int64  // tokens of output below which the call makes no sense
	MaxOutput   int64  // tokens of output that the call asks for
}

// At returns what the call takes at most if its answer has that many tokens.
func (d Demand) At(output int64) Amount {
	return d.Fixed.Plus(Amount{USD: perMillion(d.OutputPrice, output), Tokens: output})
}

// A Meter makes sure that calls stay within budgets, and writes the ledger.
type Meter interface {
	// Reserve sets aside what call may take, in every budget of its guest at once, and records that the call has begun,
	// so that it will be in the ledger whatever happens next. It grants at most d.MaxOutput tokens of output, and fewer,
	// down to d.MinOutput, if a budget does not afford more. The error is an [*OverBudget], or Unavailable if
	// budgets cannot be asked for.
	Reserve(ctx context.Context, call Call, d Demand) (Reservation, error)
}

// A Reservation is a call that has begun.
type Reservation interface {
	// Output is how many tokens of output may be asked for.
	Output() int64
	// Settle writes the call's row and frees what it did not take. It is called exactly once, before the guest has the last byte of
	// the answer; a reservation that never is settled is charged in full when the gateway has ended.
	// An error means that the ledger cannot be written: the answer must not be completed.
	Settle(call Call) error
}

// An OverBudget is the refusal of a call.
type OverBudget struct {
	Budget string        // which budget, as people read it: "sandbox sb-…", "account alice (month)"
	What   string        // usd, tokens or calls
	Limit  string        // "5 USD", "100000 tokens"
	Left   string        // what is left of it, the same way
	Busy   bool          // enough would be left if calls under way took no more than usual; try again after Retry
	Retry  time.Duration // 0 if not Busy
}

// Error says which budget it is and how much is left.
func (e *OverBudget) Error() string {
	if e.Busy {
		return fmt.Sprintf("the budget of %s (%s) is set aside for calls under way, with %s left; try again in a moment", e.Budget, e.Limit, e.Left)
	}
	return fmt.Sprintf("the budget of %s (%s) does not cover this call: %s left; ask for it to be raised", e.Budget, e.Limit, e.Left)
}

// A Lease is part of a budget that was handed out, durably: whoever holds it may spend it without asking again, and what
// it does not return counts as spent.
type Lease struct {
	Granted   Amount    `json:"granted"`
	Limits    Limits    `json:"limits"`          // of the budget; what it does not bound need not be asked for
	Left      Amount    `json:"left"`            // of the budget, besides Granted and what others hold
	Held      Amount    `json:"held"`            // by all holders, Granted included
	Until     time.Time `json:"until,omitzero"`  // when the budget's period ends and the lease is void; zero: never
	Unlimited bool      `json:"unlimited"`       // there is no such budget
	Title     string    `json:"title,omitempty"` // the budget as people read it
}

// A Lessor hands out budgets.
type Lessor interface {
	// Lease sets aside at least need and at most want of a budget for calls of an account, or nothing if it has less than
	// need left. A budget of another account is none.
	Lease(ctx context.Context, account, budget string, need, want Amount) (Lease, error)
	// Return gives back what of leases was not spent.
	Return(ctx context.Context, budget string, a Amount) error
}

// A Budget bounds what an account, a session, a run or a sandbox may take.
type Budget struct {
	// Key is "account/NAME", "session/ID", "run/ID" or "sandbox/ID".
	Key       string    `json:"key"`
	Account   string    `json:"account"`
	Limits    Limits    `json:"limits"`
	Period    string    `json:"period,omitempty" enum:"day,month," doc:"What is taken counts from the beginning of the UTC day or month; empty: for ever"`
	Used      Amount    `json:"used" doc:"Taken in this period by calls in the ledger"`
	Held      Amount    `json:"held" doc:"Handed out to gateways and not yet in the ledger or given back"`
	CreatedAt time.Time `json:"createdAt"`
}

// Budgets returns the keys of the budgets that calls of g come out of.
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

// A UsageQuery chooses among the calls of the caller's account; a local caller may ask for another, or all with "*".
type UsageQuery struct {
	By      string // run, sandbox, account, model, day, session, agent, user; "" is one sum
	Account string
	Run     string
	Under   string // a run: its calls, and those of all runs that were started from within it
	Agent   string
	Sandbox ID
	Model   string
	Since   time.Time // zero: from the beginning
	Until   time.Time // exclusive; zero: to the end
}

// A UsageRow sums up calls.
type UsageRow struct {
	Key       string     `json:"key" doc:"The run, account, model or day; empty for the sum of everything"`
	Calls     int64      `json:"calls"`
	Failed    int64      `json:"failed" doc:"Calls with a status other than 2xx"`
	Estimated int64      `json:"estimated" doc:"Calls whose tokens and cost are estimates"`
	Tokens    TokenCount `json:"tokens"`
	Cost      USD        `json:"cost"`
}

// A Receipt charges an account for a call. Source and Reference are unique together: no call is charged twice.
type Receipt struct {
	Source    string    `json:"source"`
	Reference string    `json:"reference" doc:"run/attempt/call"`
	Account   string    `json:"account"`
	Cost      USD       `json:"cost"`
	Estimated bool      `json:"estimated,omitempty"`
	At        time.Time `json:"at"`
}

// A Discrepancy is a difference between the ledger and LiteLLM's spend logs.
type Discrepancy struct {
	Call       ID     `json:"call,omitempty"`
	UpstreamID string `json:"upstreamId,omitempty"`
	Problem    string `json:"problem" doc:"missing upstream, missing here, cost differs"`
	Here       USD    `json:"here"`
	Upstream   USD    `json:"upstream"`
}

// Ledger is the record of spending, and the budgets. Queries see every call that a guest has had the last byte of.
type Ledger interface {
	Usage(ctx context.Context, q UsageQuery) ([]UsageRow, error)
	// Calls returns a page of calls, oldest first, after the one with that id, and whether there are more.
	Calls(ctx context.Context, q UsageQuery, after ID, limit int) (page []Call, more bool, err error)
	// Receipts are the charges for the same calls.
	Receipts(ctx context.Context, q UsageQuery, after string, limit int) (page []Receipt, more bool, err error)
	// SetBudget makes a budget or changes its limits and period; Key "" is the caller's account. Only local callers
	// may set one for an account. It holds for calls that begin after SetBudget returns.
	SetBudget(ctx context.Context, b Budget) (*Budget, error)
	// ListBudgets returns the account's budgets by key.
	ListBudgets(ctx context.Context) ([]*Budget, error)
	RemoveBudget(ctx context.Context, key string) error
	// Reconcile compares the calls of a provider of kind litellm with its spend logs. Denied unless the caller is local;
	// Conflict while another Reconcile is under way.
	Reconcile(ctx context.Context, provider string, since time.Time) ([]Discrepancy, error)
}

// LedgerStore holds the ledger and the budgets.
type LedgerStore interface {
	// Ingest adds what a journal said up to offset to, which was ingested up to offset from before (Conflict if not), in one
	// transaction: new rows, and for each its Amount is moved from held to used in those budgets of its guest that are its
	// account's. Rows
	// that are there already, by source and reference, change nothing. Invalid if a row cannot be stored, whatever is
	// tried. Sums stop at nine billion dollars, and at as many billionths of tokens.
	Ingest(ctx context.Context, journal ID, from, to int64, calls []Call) error
	// Offset returns how far a journal was ingested, 0 for an unknown one.
	Offset(ctx context.Context, journal ID) (int64, error)
	// Lease and Return are those of [Lessor] on behalf of the holder of a journal.
	Lease(ctx context.Context, journal ID, account, budget string, need, want Amount, now time.Time) (Lease, error)
	Return(ctx context.Context, journal ID, budget string, a Amount) error
	// Close ends a journal after its last row was ingested. What it still holds of budgets is free again, or used if
	// lost says that rows may be missing from it.
	Close(ctx context.Context, journal ID, lost bool) error
	// Open returns the journals that hold something and were not closed.
	Open(ctx context.Context) ([]ID, error)

	PutBudget(ctx context.Context, in Scope, b *Budget) (*Budget, error)
	GetBudget(ctx context.Context, in Scope, key string) (*Budget, error)
	ListBudgets(ctx context.Context, in Scope) ([]*Budget, error)
	DeleteBudget(ctx context.Context, in Scope, key string) error

	Usage(ctx context.Context, in Scope, q UsageQuery) ([]UsageRow, error)
	Calls(ctx context.Context, in Scope, q UsageQuery, after ID, limit int) (page []Call, more bool, err error)

	PutPrices(ctx context.Context, source string, prices []ListedPrice) error
	// Price returns the newest imported price of a model, trying "provider/model" first; NotFound.
	Price(ctx context.Context, provider, model string) (*ListedPrice, error)
	Prices(ctx context.Context, match string) ([]ListedPrice, error)
}
