package subruns

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// An answer for an agent fits into a message to the wire process, whatever its contents.
func TestGuestAnswersFit(t *testing.T) {
	const room = 119 << 10 // size of a message, less what surrounds the answer
	for _, part := range []string{"a", "<", "\x00", "\"", "\u2028", "\xff", "é", "🦀", "\\"} {
		text := strings.Repeat(part, 200<<10)
		g := describeRun(&caisson.Run{
			ID: caisson.NewID(caisson.RunPrefix), State: caisson.RunFailed,
			Result: &caisson.RunResult{Answer: text, Error: &caisson.RunError{Code: caisson.RunAgentError, Message: text}},
		})
		b, err := json.Marshal(g)
		if err != nil || len(b) > room || !g.Truncated || len(b) < maxAnswer {
			t.Errorf("%q: %d bytes, cut %v, %v", part, len(b), g.Truncated, err)
		}
	}
	g := describeRun(&caisson.Run{State: caisson.RunSucceeded, Result: &caisson.RunResult{Answer: "forty-two <3"}})
	if g.Answer != "forty-two <3" || g.Truncated || g.Error != nil {
		t.Errorf("a short answer is %+v", g)
	}
	g = describeRun(&caisson.Run{State: caisson.RunFailed, Result: &caisson.RunResult{
		Error: &caisson.RunError{Code: caisson.RunProvider, Message: "the provider refused the credential SOME_KEY"}, Provider: "SOME_KEY",
	}})
	if b, err := json.Marshal(g); err != nil || g.Error.Code != caisson.RunProvider || strings.Contains(string(b), "SOME_KEY") {
		t.Errorf("of a provider that failed a sandbox is told %s, %v", b, err)
	}
	if g := describeRun(&caisson.Run{State: caisson.RunRunning, Result: &caisson.RunResult{Answer: "of an attempt before"}}); g.Answer != "" {
		t.Errorf("a run under way has the answer %q", g.Answer)
	}
}

func TestGuestAgentsFit(t *testing.T) {
	var list []*caisson.Agent
	for range 1000 {
		list = append(list, &caisson.Agent{ID: strings.Repeat("a", 63), Name: strings.Repeat("<", 1000), Description: strings.Repeat("\x01", 5000)})
	}
	b, err := json.Marshal(describeAgents(list))
	if err != nil || len(b) > 119<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func FuzzCutJSON(f *testing.F) {
	f.Add("a<b\x00\"\\\u2028\xff🦀", 7)
	f.Fuzz(func(t *testing.T, s string, n int) {
		cut, missing := cutJSON(s, n)
		b, err := json.Marshal(cut)
		if err != nil || !strings.HasPrefix(s, cut) || missing != (len(cut) < len(s)) || n >= 0 && len(b) > n+2 {
			t.Errorf("%q in %d bytes is %q, %v (%v)", s, n, cut, missing, err)
		}
		if utf8.ValidString(s) && !utf8.ValidString(cut) {
			t.Errorf("%q was cut within a character", s)
		}
	})
}

func TestGuestRequestsAreStrict(t *testing.T) {
	for in, ok := range map[string]bool{
		`{"agent":"a","prompt":"p"}`:                                     true,
		`{"agent":"a","prompt":"p","limits":{"time":"1m","cost":"0.5"}}`: true,
		`{"agent":"a","prompt":"p","policy":{}}`:                         false,
		`{"agent":"a","prompt":"p","image":"x"}`:                         false,
		`{"agent":"a","prompt":"p"} `:                                    true,
		`{"agent":"a","prompt":"p"}{}`:                                   false,
		`{"agent":"a","prompt":"p"}]`:                                    false,
		`["a"]`:                                                          false,
		``:                                                               false,
	} {
		var req startRequest
		if err := decode(json.RawMessage(in), true, &req); (err == nil) != ok {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestUsedUp(t *testing.T) {
	usd, n := 5*caisson.Dollar, int64(10)
	for _, row := range []struct {
		b    caisson.Budget
		want string
	}{
		{caisson.Budget{}, ""},
		{caisson.Budget{Limits: caisson.Limits{USD: &usd, Tokens: &n, Calls: &n}, Used: caisson.Amount{USD: usd - 1, Tokens: 9, Calls: 9}}, ""},
		{caisson.Budget{Limits: caisson.Limits{USD: &usd}, Used: caisson.Amount{USD: usd}}, "budget of dollars"},
		{caisson.Budget{Limits: caisson.Limits{Tokens: &n}, Used: caisson.Amount{Tokens: 11}}, "budget of tokens"},
		{caisson.Budget{Limits: caisson.Limits{Calls: &n}, Used: caisson.Amount{Calls: 10}}, "budget of calls"},
	} {
		if got := exhaustedLimit(&row.b); got != row.want {
			t.Errorf("%+v: %q, want %q", row.b, got, row.want)
		}
	}
}
