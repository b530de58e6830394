package main

import "github.com/caisson-dev/caisson"

// gatewayFlags are the flags for how a sandbox may use the model gateway, besides its models and their budget.
type gatewayFlags struct {
	// Grant has names of features of model APIs that are otherwise removed or refused, such as tools that the provider executes.
	Grant        []string `help:"Let its calls of models use provider-tools, remote-urls, beta or server-state; may be repeated." group:"new" placeholder:"NAME" sep:"none"`
	MaxRate      string   `help:"Maximum number of its model calls in a minute." group:"new" placeholder:"N"`
	MaxTokenRate string   `help:"Maximum number of tokens of its model calls in a minute: 50000, 50k or 1M." group:"new" placeholder:"N"`
	RecordCalls  bool     `help:"Keep prompts and answers, redacted and bounded, in models.jsonl of the sandbox's directory, which is removed with the sandbox." group:"new"`
}

// anySet reports whether any of the flags was set.
func (f *gatewayFlags) anySet() bool {
	return len(f.Grant) > 0 || f.MaxRate != "" || f.MaxTokenRate != "" || f.RecordCalls
}

// gatewayUse returns what the flags specify: the rate limits of model calls, features to allow, and whether to record the calls.
func (f *gatewayFlags) gatewayUse() (*caisson.GatewayUse, error) {
	use := &caisson.GatewayUse{Allow: f.Grant, Record: f.RecordCalls}
	for _, rate := range []struct {
		flag limitFlag
		to   *int64
	}{{limitFlag{"--max-rate", f.MaxRate}, &use.Rate.Requests}, {limitFlag{"--max-token-rate", f.MaxTokenRate}, &use.Rate.Tokens}} {
		n, err := parseLimit(rate.flag, parseCount)
		if err != nil {
			return nil, err
		}
		if n == nil {
			continue
		}
		if *n == 0 {
			return nil, caisson.Invalidf(rate.flag.flag, "must be greater than 0")
		}
		*rate.to = *n
	}
	return use, nil
}
