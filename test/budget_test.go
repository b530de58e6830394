package test_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
)

// billedScript bills 500 tokens for every call: half a dollar at [price].
const billedScript = `
fallback: {text: "Paid.", tokens: {input: 460, output: 40}}
`

// billed is the amount of a call with [billedScript].
var billed = caisson.Amount{USD: caisson.Dollar / 2, Tokens: 500, Calls: 1}

// tally counts the results of calls.
type tally struct{ paid, refused int }

// spend makes n concurrent calls from each of some sandboxes, repeatedly, until no call of a round is answered. Every
// other response must be an API error that indicates whether to retry.
func (h *modelHost) spend(n int, sandboxes ...string) (sum tally) {
	h.t.Helper()
	for range 30 {
		var round tally
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, s := range sandboxes {
			wg.Go(func() {
				replies := h.calls(s, many(n, chat("", "m", "Pay for this."))...)
				mu.Lock()
				defer mu.Unlock()
				if len(replies) != n {
					h.t.Errorf("%d of %d calls were answered", len(replies), n)
				}
				for _, a := range replies {
					if a.Status == http.StatusOK {
						round.paid++
						continue
					}
					round.refused++
					h.wantOver(a)
				}
			})
		}
		wg.Wait()
		sum.paid += round.paid
		sum.refused += round.refused
		if round.paid == 0 {
			return sum
		}
		n = min(n, 20)
	}
	h.t.Error("there is no end to the budget")
	return sum
}

// wantOver checks that a reply is a refusal because of the budget, final or for now, in the form that clients expect.
func (h *modelHost) wantOver(a reply) {
	h.t.Helper()
	e := h.refusal(a)
	switch {
	case a.Status == http.StatusPaymentRequired && e.Error.Code == "over_budget" && e.Error.Type == "insufficient_quota" && strings.Contains(e.Error.Message, "budget"):
	case a.Status == http.StatusTooManyRequests && e.Error.Code == "rate_limited" && a.Header.Get("Retry-After") != "":
	default:
		h.t.Errorf("a call over the budget is answered %d %v %s", a.Status, a.Header, a.Body)
	}
}

// TestPromise5CallsAtOnce tests that 200 concurrent calls cannot exceed a budget of dollars, tokens or calls, of a
// sandbox or of an account that two sandboxes share, that the ledger equals the provider's bill, and that the budget is
// used up.
func TestPromise5CallsAtOnce(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, caisson.ProviderOpenAI, billedScript, false, nil)
	h := newModelHost(t, []*upstream{u}, priced("m", "openai", "gpt-test-1"))
	// A call reserves its worst case, which is up to the amount of two calls.
	for _, c := range []struct {
		name, limit string
		least, most int // Number of paid calls.
	}{
		{"usd", "--budget=25", 48, 50},
		{"tokens", "--max-tokens=25000", 48, 50},
		{"calls", "--max-calls=20", 20, 20},
	} {
		u.Reset()
		id := h.client(c.name, "--model", "m", c.limit)
		got := h.spend(200, c.name)
		bills, tokens := u.Billed()
		sum := h.total("--sandbox", string(id))
		if got.paid < c.least || got.paid > c.most || got.refused < 150 {
			t.Errorf("%s: %d calls were paid and %d refused", c.name, got.paid, got.refused)
		}
		if bills != got.paid || sum.Calls != int64(bills) || sum.Tokens != tokens || sum.Cost != u.Cost(price) || sum.Estimated != 0 || sum.Failed != 0 {
			t.Errorf("%s: %d calls were answered; the provider billed %d with %+v; the ledger has %+v", c.name, got.paid, bills, tokens, sum)
		}
		if sum.Cost > 50*billed.USD || sum.Tokens.Total() > 50*billed.Tokens {
			t.Errorf("%s: the budget was for %+v fifty times, and the ledger has %+v", c.name, billed, sum)
		}
		// Later calls are refused, too.
		if a := h.call(c.name, chat("late", "m", "Pay.")); a.Status != http.StatusPaymentRequired {
			t.Errorf("%s: a call after that is answered %d %s", c.name, a.Status, a.Body)
		}
	}
	h.sharedBudget(u)
	h.balance()
}

// sharedBudget spends the rest of an account's budget in two sandboxes.
func (h *modelHost) sharedBudget(u *upstream) {
	h.t.Helper()
	const left = 40
	before := h.total().Calls
	h.ok("budget", "set", "--calls", fmt.Sprint(before+left))
	u.Reset()
	ids := []caisson.ID{h.client("one", "--model", "m", "--budget=1000"), h.client("two", "--model", "m", "--budget=1000")}
	got := h.spend(100, "one", "two")
	bills, _ := u.Billed()
	if got.paid != left || bills != left || h.total().Calls != before+left {
		h.t.Errorf("of %d calls that the account had left, %d were answered, %d billed, and the ledger has %d", left, got.paid, bills, h.total().Calls-before)
	}
	var sum int64
	for _, id := range ids {
		sum += h.total("--sandbox", string(id)).Calls
	}
	if sum != left {
		h.t.Errorf("the two sandboxes made %d calls", sum)
	}
	// The budget limits one account only.
	h.ok("token", "create", "-q", "ci", "--account", "team-b") // makes the account
	h.ok("--account", "team-b", "sandbox", "create", "--name", "other", "--model", "m", "host")
	h.ok("--account", "team-b", "cp", h.caller, "other:/caller")
	r := h.runWith(strings.NewReader(`{"id":"x","url":"`+chatURL+`","body":"{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"}`+"\n"),
		"--account", "team-b", "exec", "-i", "other", "--", "/caller")
	if !strings.Contains(r.stdout, `"status":200`) {
		h.t.Errorf("another account cannot call: %v", r)
	}
	h.ok("--account", "team-b", "sandbox", "rm", "other")
	h.ok("budget", "set", "--calls", fmt.Sprint(before+left+1))
	if a := h.call("one", chat("raised", "m", "Once more.")); a.Status != http.StatusOK {
		h.t.Errorf("with a budget that was raised: %d %s", a.Status, a.Body)
	}
}

// balance checks that budgets, ledger and receipts agree for every account: no limit is exceeded, and no call is
// recorded twice.
func (h *modelHost) balance() {
	h.t.Helper()
	for _, b := range shows[[]caisson.Budget](h.host, "budget", "ls") {
		if left := b.Limits.Left(b.Used); !left.Covers(caisson.Amount{}) || b.Limits.USD != nil && b.Used.USD+b.Held.USD > *b.Limits.USD ||
			b.Limits.Tokens != nil && b.Used.Tokens+b.Held.Tokens > *b.Limits.Tokens || b.Limits.Calls != nil && b.Used.Calls+b.Held.Calls > *b.Limits.Calls {
			h.t.Errorf("the budget %s of %+v has %+v used and %+v held", b.Key, b.Limits, b.Used, b.Held)
		}
	}
	calls := h.ledger("--all")
	receipts := shows[[]caisson.Receipt](h.host, "usage", "--receipts", "--all")
	seen, references := map[caisson.ID]bool{}, []string{}
	var cost, charged caisson.USD
	for _, c := range calls {
		if seen[c.ID] {
			h.t.Errorf("call %s occurs twice", c.ID)
		}
		seen[c.ID] = true
		cost += c.Cost
	}
	for _, r := range receipts {
		references = append(references, r.Source+" "+r.Reference)
		charged += r.Cost
	}
	slices.Sort(references)
	if n := len(slices.Compact(references)); n != len(receipts) || n != len(calls) || charged != cost {
		h.t.Errorf("%d calls for %s USD have %d receipts, %d of them different, for %s USD", len(calls), cost, len(receipts), n, charged)
	}
	if sum := h.total("--all"); sum.Calls != int64(len(calls)) || sum.Cost != cost {
		h.t.Errorf("the sum is %+v, of %d calls for %s USD", sum, len(calls), cost)
	}
}
