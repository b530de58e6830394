package engine

import (
	"reflect"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestMostOverToken: the daemon's budget bounds the limits of agents that are stored over a token.
func TestMostOverToken(t *testing.T) {
	want := caisson.DefaultAgentLimits()
	if got := maxTokenAgentLimits(caisson.Limits{}); !reflect.DeepEqual(got, want) {
		t.Errorf("without a budget %+v", got)
	}
	usd, tokens, calls := 3*caisson.Dollar, int64(1000), int64(7)
	want.Cost, want.Tokens, want.Calls = &usd, &tokens, &calls
	if got := maxTokenAgentLimits(caisson.Limits{USD: &usd, Tokens: &tokens, Calls: &calls}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
