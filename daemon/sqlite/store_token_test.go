package sqlite_test

import (
	"crypto/sha256"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testTokens(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.TokenStore){
		"Find": testFindToken, "Expiry": testTokenExpiry, "Used": testTokenUsed, "Scopes": testTokenScopes,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).Tokens()) })
	}
}

func insertToken(t *testing.T, s caisson.TokenStore, account, secret string) *caisson.Token {
	t.Helper()
	tok := &caisson.Token{ID: caisson.NewID(caisson.TokenPrefix), Account: account, Name: "for " + secret, CreatedAt: noon()}
	must(t, s.Insert(t.Context(), tok, sha256.Sum256([]byte(secret))))
	return tok
}

func testFindToken(t *testing.T, s caisson.TokenStore) {
	tok := insertToken(t, s, "a", "one")
	insertToken(t, s, "b", "two")
	got := get[*caisson.Token](t)(s.Find(t.Context(), sha256.Sum256([]byte("one")), noon()))
	if diff := cmp.Diff(tok, got); diff != "" {
		t.Errorf("the token came back changed (-want +got):\n%s", diff)
	}
	almost := sha256.Sum256([]byte("one"))
	almost[31] ^= 1
	for _, hash := range [][32]byte{{}, almost, sha256.Sum256([]byte("three"))} {
		_, err := s.Find(t.Context(), hash, noon())
		wantKind(t, err, caisson.Unauthed)
	}
	wantKind(t, s.Insert(t.Context(), tok, sha256.Sum256([]byte("new"))), caisson.Conflict)
	same := &caisson.Token{ID: caisson.NewID(caisson.TokenPrefix), Account: "b"}
	wantKind(t, s.Insert(t.Context(), same, sha256.Sum256([]byte("one"))), caisson.Conflict)
}

func testTokenExpiry(t *testing.T, s caisson.TokenStore) {
	ends, hash := noon().Add(time.Hour), sha256.Sum256([]byte("x"))
	must(t, s.Insert(t.Context(), &caisson.Token{ID: "tk-1", Account: "a", ExpiresAt: &ends}, hash))
	get[*caisson.Token](t)(s.Find(t.Context(), hash, ends.Add(-time.Nanosecond)))
	for _, late := range []time.Duration{0, time.Nanosecond, 1000 * time.Hour} {
		_, err := s.Find(t.Context(), hash, ends.Add(late))
		wantKind(t, err, caisson.Unauthed)
	}
	// The time is too far away for a time.Duration of 64 bits.
	never, hash := noon().AddDate(500, 0, 0), sha256.Sum256([]byte("y"))
	must(t, s.Insert(t.Context(), &caisson.Token{ID: "tk-2", Account: "a", ExpiresAt: &never}, hash))
	get[*caisson.Token](t)(s.Find(t.Context(), hash, noon().AddDate(499, 0, 0)))
}

func testTokenUsed(t *testing.T, s caisson.TokenStore) {
	tok := insertToken(t, s, "a", "one")
	used := noon().Add(time.Hour).Truncate(time.Second)
	must(t, s.RecordUse(t.Context(), tok.ID, used))
	must(t, s.RecordUse(t.Context(), tok.ID, used.Add(-time.Minute))) // An earlier time that is stored late.
	got := get[*caisson.Token](t)(s.Find(t.Context(), sha256.Sum256([]byte("one")), noon()))
	if got.LastUsedAt == nil || !got.LastUsedAt.Equal(used) {
		t.Errorf("last used at %v, want %v", got.LastUsedAt, used)
	}
	wantKind(t, s.RecordUse(t.Context(), "tk-unknown", used), caisson.NotFound)
}

func testTokenScopes(t *testing.T, s caisson.TokenStore) {
	ctx := t.Context()
	first, second := insertToken(t, s, "a", "one"), insertToken(t, s, "a", "two")
	other := insertToken(t, s, "b", "three")
	list := func(in caisson.Scope) (ids []caisson.ID) {
		t.Helper()
		for _, tok := range get[[]*caisson.Token](t)(s.List(ctx, in)) {
			ids = append(ids, tok.ID)
		}
		return ids
	}
	if got := list(caisson.In("a")); !slices.Equal(got, []caisson.ID{second.ID, first.ID}) {
		t.Errorf("tokens of a, newest first: %v", got)
	}
	if got := list(caisson.AllAccounts()); !slices.Equal(got, []caisson.ID{other.ID, second.ID, first.ID}) {
		t.Errorf("tokens of everyone, newest first: %v", got)
	}
	if got := list(caisson.In("")); len(got) != 0 {
		t.Errorf("tokens of nobody: %v", got)
	}
	wantKind(t, s.Delete(ctx, caisson.In("b"), first.ID), caisson.NotFound)
	must(t, s.Delete(ctx, caisson.In("a"), first.ID))
	wantKind(t, s.Delete(ctx, caisson.In("a"), first.ID), caisson.NotFound)
	must(t, s.Delete(ctx, caisson.AllAccounts(), other.ID))
	_, err := s.Find(ctx, sha256.Sum256([]byte("one")), noon())
	wantKind(t, err, caisson.Unauthed)
}
