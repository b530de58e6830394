package engine

import (
	"context"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
)

// as returns the context of a caller.
func as(t *testing.T, account string, local bool) context.Context {
	return caisson.WithCaller(t.Context(), caisson.Caller{Account: account, Local: local})
}

// TestTokensAreRecorded: the record of events contains who created and removed tokens.
func TestTokensAreRecorded(t *testing.T) {
	store := sqlitetest.New(t)
	tokens := &Tokens{store, events.New(store.Events(), nil)}
	local, own := as(t, "local", true), as(t, "a", false)
	token, _, err := tokens.CreateToken(local, "a", "ci", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tokens.CreateToken(own, "a", "more", 0); caisson.KindOf(err) != caisson.Denied {
		t.Error(err)
	}
	if err := tokens.RemoveToken(as(t, "b", false), token.ID); caisson.KindOf(err) != caisson.NotFound {
		t.Error(err)
	}
	if err := tokens.RemoveToken(own, token.ID); err != nil {
		t.Error(err)
	}
	want := []string{
		"a token.created " + string(token.ID) + " ci by " + caisson.ActorOf(local), "a token.removed " + string(token.ID) + "  by " + caisson.ActorOf(own),
	}
	list, err := store.Events().After(t.Context(), caisson.AllAccounts(), "", 0, 10)
	var got []string
	for _, e := range list {
		got = append(got, e.Account+" "+e.Type+" "+e.Subject+" "+e.Data["name"]+" by "+e.Actor)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("events %q, want %q (%v)", got, want, err)
	}
}
