package engine

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/sqlite/sqlitetest"
)

// TestTokensAreRecorded: who gave and took access to an account is in the record.
func TestTokensAreRecorded(t *testing.T) {
	var events []string
	tokens := &Tokens{store: sqlitetest.New(t), log: slog.New(slog.DiscardHandler), record: func(_ context.Context, e *caisson.Event) error {
		events = append(events, e.Account+" "+e.Type+" "+e.Subject+" "+e.Data["name"]+" by "+e.Actor)
		return nil
	}}
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
	if !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
}
