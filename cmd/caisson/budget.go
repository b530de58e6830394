package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// budgetCmd contains the commands that manage budgets.
type budgetCmd struct {
	Set budgetSetCmd `cmd:"" help:"Limit the model usage of an account, session, run or sandbox."`
	Ls  budgetLsCmd  `cmd:"" help:"List budgets and their usage."`
	Rm  budgetRmCmd  `cmd:"" help:"Remove budgets."`
}

// budgetSetCmd sets a budget.
type budgetSetCmd struct {
	Budget string `arg:"" optional:"" help:"An account, or session/ID, run/ID or sandbox/ID (or sandbox/NAME); default the account of --account."`
	USD    string `name:"usd" help:"Dollars: 5 or 0.25." placeholder:"N"`
	Tokens string `help:"Tokens of input and output: 200000, 200k or 1M." placeholder:"N"`
	Calls  string `help:"Calls." placeholder:"N"`
	Per    string `help:"Reset usage at the beginning of each UTC day or month; ever (the default) means never: ${enum}." enum:"day,month,ever" default:"ever" placeholder:"PERIOD"`
}

func (c *budgetSetCmd) Help() string {
	return "A number that is not given is not limited, also if an earlier \"budget set\" has limited it: each key has one budget, which is replaced as a whole. " +
		"The budget applies from the next call on, and includes the usage before it in the same period.\n\n" +
		examples("caisson budget set --usd 5", "caisson budget set --usd 100 --per month team-a",
			"caisson budget set --tokens 1M --calls 500 --per day team-b", "caisson budget set --usd 0.50 sandbox/sb-abcdefghijklmnop")
}

// ProvideLimits parses the flags for the limits.
func (c *budgetSetCmd) ProvideLimits() (caisson.Limits, error) {
	limits, err := parseLimits(limitFlag{"--usd", c.USD}, limitFlag{"--tokens", c.Tokens}, limitFlag{"--calls", c.Calls})
	if err == nil && limits.IsZero() {
		err = usagef("budget set", "give a limit: --usd, --tokens or --calls")
	}
	return limits, err
}

func (c *budgetSetCmd) Run(ctx context.Context, a *app, limits caisson.Limits, api api) error {
	b := caisson.Budget{Key: budgetKey(c.Budget), Limits: limits}
	if c.Per != "ever" {
		b.Period = c.Per
	}
	var err error
	if b.Key, err = withSandboxID(ctx, api, b.Key); err != nil {
		return err
	}
	before, err := api.ListBudgets(ctx)
	if err != nil {
		return err
	}
	set, err := api.SetBudget(ctx, b)
	if err == nil {
		i := slices.IndexFunc(before, func(old *caisson.Budget) bool { return old.Key == set.Key })
		if i >= 0 && limitText(before[i]) != limitText(set) {
			a.infof("caisson: %s had %s, and has %s now", set.Key, limitText(before[i]), limitText(set))
		}
	}
	return asDone(a, budgetID)(set, err)
}

// limitText formats the limits of a budget, such as "$5, 500 calls per day".
func limitText(b *caisson.Budget) string {
	var parts []string
	if b.Limits.USD != nil {
		parts = append(parts, "$"+b.Limits.USD.String())
	}
	if b.Limits.Tokens != nil {
		parts = append(parts, formatCount(b.Limits.Tokens)+" tokens")
	}
	if b.Limits.Calls != nil {
		parts = append(parts, formatCount(b.Limits.Calls)+" calls")
	}
	text := cmp.Or(strings.Join(parts, ", "), "no limit")
	if b.Period != "" {
		text += " per " + b.Period
	}
	return text
}

// budgetID returns the key of a budget, such as account/NAME.
func budgetID(b *caisson.Budget) string { return b.Key }

// budgetKey returns the key of a budget; a name without a slash is that of an account.
func budgetKey(s string) string {
	if s == "" || strings.Contains(s, "/") {
		return s
	}
	return "account/" + s
}

// withSandboxID returns key, the key of a budget. If it contains the name of a sandbox, the result contains the id of the sandbox
// instead.
func withSandboxID(ctx context.Context, api api, key string) (string, error) {
	name, ok := strings.CutPrefix(key, "sandbox/")
	if !ok || name == "" {
		return key, nil
	}
	if _, err := caisson.ParseID(caisson.SandboxPrefix, name); err == nil {
		return key, nil // the sandbox is not looked up, because a budget can outlive its sandbox
	}
	sb, err := api.Get(ctx, name)
	if err != nil {
		return "", err
	}
	return "sandbox/" + string(sb.ID), nil
}

// A limitFlag is a flag that sets a limit, and its value; "" means that there is no limit.
type limitFlag struct{ flag, value string }

// parseLimits parses limits of dollars, tokens and calls. An error names the flag.
func parseLimits(usd, tokens, calls limitFlag) (l caisson.Limits, err error) {
	if l.USD, err = parseLimit(usd, caisson.ParseUSD); err != nil {
		return l, err
	}
	if l.Tokens, err = parseLimit(tokens, parseCount); err != nil {
		return l, err
	}
	l.Calls, err = parseLimit(calls, parseCount)
	return l, err
}

// parseLimit parses the value of the flag f. It returns nil, which means no limit, if the value is "".
func parseLimit[T any](f limitFlag, parse func(string) (T, error)) (*T, error) {
	if f.value == "" {
		return nil, nil //nolint:nilnil // a limit that is not set is not an error
	}
	v, err := parse(f.value)
	if err != nil {
		return nil, caisson.Invalidf(f.flag, "%s", caisson.MessageOf(err))
	}
	return &v, nil
}

// parseCount parses a whole number, with k or M for thousands and millions.
func parseCount(s string) (int64, error) {
	digits, unit := s, int64(1)
	for suffix, n := range map[string]int64{"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6} {
		if t, ok := strings.CutSuffix(s, suffix); ok {
			digits, unit = t, n
		}
	}
	n, err := strconv.ParseUint(digits, 10, 43) // 43 bits: multiplied by a million, the number still fits in an int64
	if err != nil {
		return 0, caisson.Errorf(caisson.Invalid, "%.40q is not a number; write for example 200000, 200k or 1M", s)
	}
	return int64(n) * unit, nil
}

// formatCount returns a limit of tokens or calls as text; "" if n is nil, which means no limit.
func formatCount(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

// budgetLsCmd lists budgets.
type budgetLsCmd struct{}

func (c *budgetLsCmd) Help() string {
	return "HELD is the part of a budget that is leased to the process which serves model calls, for calls in progress and the next ones. The unused part of a lease " +
		"is returned after 30 seconds; it is not spent.\n\n" + examples("caisson budget ls", "caisson budget ls --account team-a")
}

func (c *budgetLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[*caisson.Budget]{
		{name: "BUDGET", value: budgetID},
		{name: "PER", value: func(b *caisson.Budget) string { return b.Period }},
		{name: "USD", value: func(b *caisson.Budget) string { return textOrEmpty(b.Limits.USD) }},
		{name: "USED", value: func(b *caisson.Budget) string { return b.Used.USD.String() }},
		{name: "HELD", value: func(b *caisson.Budget) string { return b.Held.USD.String() }},
		{name: "TOKENS", value: func(b *caisson.Budget) string { return formatCount(b.Limits.Tokens) }},
		{name: "USED", value: func(b *caisson.Budget) string { return formatCount(&b.Used.Tokens) }},
		{name: "CALLS", value: func(b *caisson.Budget) string { return formatCount(b.Limits.Calls) }},
		{name: "USED", value: func(b *caisson.Budget) string { return formatCount(&b.Used.Calls) }},
	})(api.ListBudgets(ctx))
}

// budgetRmCmd removes budgets.
type budgetRmCmd struct {
	Budget []string `arg:"" help:"Accounts, or keys from budget ls."`
}

func (c *budgetRmCmd) Help() string {
	return examples("caisson budget rm team-a", "caisson budget rm sandbox/sb-abcdefghijklmnop")
}

func (c *budgetRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Budget, func(ctx context.Context, ref string) error {
		key, err := withSandboxID(ctx, api, budgetKey(ref))
		if err != nil {
			return err
		}
		return api.RemoveBudget(ctx, key)
	})
}
