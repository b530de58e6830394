package scripted

import (
	"strings"
	"sync/atomic"
)

const (
	maxMatch  = 64 << 10 // bytes at the beginning of a message, or of a tool's result, that conditions are matched against
	maxRounds = 1000     // maximum number of rounds of tool calls after the last message of the user
)

// conversation is the contents of a request, independent of its API.
type conversation struct {
	api       string          // operation of the request: apiChat, apiResponses, apiMessages or apiGenerate
	model     string          // the requested model
	user      string          // the last message of the user
	rounds    []round         // rounds of tool calls after the last message of the user, oldest first
	tools     map[string]bool // names of the tools that the request offers
	textBytes int64           // bytes of text in the request
	limit     int64           // limit of output tokens; 0: none
	stream    bool            // the client requests a stream of events
	usage     bool            // the client requests that the stream reports the usage
}

// A round contains the results of the tools that the model has called in one of its answers.
type round []result

// A result is what a called tool has returned, as the request contains it: the name of the tool, and the text of the result.
type result struct{ tool, text string }

// addResult adds the result of a tool to the last round: to the results of the calls in the model's last answer.
func (c *conversation) addResult(r result) {
	if len(c.rounds) == 0 {
		c.rounds = append(c.rounds, nil)
	}
	c.rounds[len(c.rounds)-1] = append(c.rounds[len(c.rounds)-1], r)
}

// startMessage sets the last message of the user and removes the rounds of tool calls, which belong to an earlier message.
func (c *conversation) startMessage(text string) { c.user, c.rounds = text, nil }

// last returns the results of the last round of tool calls after the last message of the user; nil if there is none.
func (c *conversation) last() round {
	if len(c.rounds) == 0 {
		return nil
	}
	return c.rounds[len(c.rounds)-1]
}

// matchPrefix returns the first maxMatch bytes of s, which conditions are matched against.
func matchPrefix(s string) string { return s[:min(len(s), maxMatch)] }

// matches reports whether the conditions of t hold, except those on results, and c offers the tools that t calls.
func (t *turn) matches(c *conversation) bool {
	w := t.When
	prefix, open := strings.CutSuffix(w.Model, "*")
	switch {
	case w.API != "" && w.API != c.api,
		w.Model != "" && w.Model != c.model && !(open && strings.HasPrefix(c.model, prefix)),
		!strings.Contains(matchPrefix(c.user), w.Last),
		t.pattern != nil && !t.pattern.MatchString(matchPrefix(c.user)):
		return false
	}
	for _, call := range t.Calls {
		if !c.tools[call.Name] {
			return false
		}
	}
	return true
}

// matchesResults reports whether one of the results meets all conditions of t on results.
func (t *turn) matchesResults(r round) bool {
	w := t.When
	if w.Tool == "" && w.Result == "" && t.result == nil {
		return true
	}
	for _, res := range r {
		if (w.Tool == "" || w.Tool == res.tool) && strings.Contains(matchPrefix(res.text), w.Result) &&
			(t.result == nil || t.result.MatchString(matchPrefix(res.text))) {
			return true
		}
	}
	return false
}

// choose returns the index in s.Turns of the turn that answers c, or -1 for the fallback. used counts the answers of each turn.
//
// A turn answers once after a message of the user, unless it repeats. The turns that have answered are derived from the rounds of
// tool calls; the counters are the only state between requests.
func (s *script) choose(c *conversation, used []atomic.Int64) int {
	fitting := make([]int, 0, len(s.Turns))
	for i := range s.Turns {
		if s.Turns[i].matches(c) {
			fitting = append(fitting, i)
		}
	}
	answered := map[int]bool{}
	for i := range c.rounds {
		var before round
		if i > 0 {
			before = c.rounds[i-1]
		}
		for _, t := range fitting {
			if !answered[t] && s.Turns[t].matchesResults(before) {
				answered[t] = !s.Turns[t].Repeat
				break
			}
		}
	}
	for _, t := range fitting {
		if !answered[t] && s.Turns[t].matchesResults(c.last()) && useTurn(&used[t], s.Turns[t].Times) {
			return t
		}
	}
	return -1
}

// useTurn increments used. Returns false if it has reached times; 0 means no limit.
func useTurn(used *atomic.Int64, times int) bool {
	for {
		n := used.Load()
		if times > 0 && n >= int64(times) {
			return false
		}
		if used.CompareAndSwap(n, n+1) {
			return true
		}
	}
}
