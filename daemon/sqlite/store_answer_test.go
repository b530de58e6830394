package sqlite_test

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func testAnswers(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.AnswerStore){
		"Once": testAnswerOnce, "GiveBack": testAnswerGiveBack, "Accounts": testAnswerAccounts, "Trim": testTrimAnswers,
		"Concurrent": testConcurrentAnswers,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).Answers()) })
	}
}

// claim begins a request and fails the test unless the key was unused.
func claim(t *testing.T, s caisson.AnswerStore, account, key string, at time.Time) {
	t.Helper()
	if answer := get[[]byte](t)(s.Begin(t.Context(), account, key, [32]byte{1}, at)); answer != nil {
		t.Fatalf("%s has the answer %q", key, answer)
	}
}

func testAnswerOnce(t *testing.T, s caisson.AnswerStore) {
	ctx := t.Context()
	for _, want := range [][]byte{[]byte(`{"id":"x"}`), {}, {0, 0xff, '\n'}} {
		key := "key " + string(want)
		claim(t, s, "a", key, noon())
		_, err := s.Begin(ctx, "a", key, [32]byte{1}, noon())
		wantKind(t, err, caisson.Conflict)
		_, err = s.Begin(ctx, "a", key, [32]byte{2}, noon())
		wantKind(t, err, caisson.Invalid)
		must(t, s.Finish(ctx, "a", key, want))
		for range 2 {
			got := get[[]byte](t)(s.Begin(ctx, "a", key, [32]byte{1}, noon()))
			if got == nil || !bytes.Equal(got, want) {
				t.Errorf("answer %q, want %q", got, want)
			}
		}
		_, err = s.Begin(ctx, "a", key, [32]byte{2}, noon())
		wantKind(t, err, caisson.Invalid)
		// The answer to an answered request cannot be changed or removed.
		wantKind(t, s.Finish(ctx, "a", key, []byte("other")), caisson.NotFound)
		wantKind(t, s.Finish(ctx, "a", key, nil), caisson.NotFound)
	}
	_, err := s.Begin(ctx, "a", "", [32]byte{}, noon())
	wantKind(t, err, caisson.Invalid)
	wantKind(t, s.Finish(ctx, "a", "unknown", []byte("x")), caisson.NotFound)
}

func testAnswerGiveBack(t *testing.T, s caisson.AnswerStore) {
	claim(t, s, "a", "k", noon())
	must(t, s.Finish(t.Context(), "a", "k", nil))
	if answer := get[[]byte](t)(s.Begin(t.Context(), "a", "k", [32]byte{2}, noon())); answer != nil {
		t.Errorf("a key that was given back has the answer %q", answer)
	}
}

func testAnswerAccounts(t *testing.T, s caisson.AnswerStore) {
	claim(t, s, "a", "k", noon())
	claim(t, s, "b", "k", noon())
	must(t, s.Finish(t.Context(), "a", "k", []byte("for a")))
	_, err := s.Begin(t.Context(), "b", "k", [32]byte{1}, noon())
	wantKind(t, err, caisson.Conflict)
	wantKind(t, s.Finish(t.Context(), "c", "k", []byte("x")), caisson.NotFound)
}

func testTrimAnswers(t *testing.T, s caisson.AnswerStore) {
	claim(t, s, "a", "old", noon().Add(-time.Hour))
	claim(t, s, "a", "old and answered", noon().Add(-time.Hour))
	must(t, s.Finish(t.Context(), "a", "old and answered", []byte("x")))
	claim(t, s, "a", "new", noon())
	must(t, s.Trim(t.Context(), noon()))
	claim(t, s, "a", "old", noon())
	claim(t, s, "a", "old and answered", noon())
	_, err := s.Begin(t.Context(), "a", "new", [32]byte{1}, noon())
	wantKind(t, err, caisson.Conflict)
}

func testConcurrentAnswers(t *testing.T, s caisson.AnswerStore) {
	var claims atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := s.Begin(t.Context(), "a", "k", [32]byte{1}, noon())
			if err == nil {
				claims.Add(1)
			} else if caisson.KindOf(err) != caisson.Conflict {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := claims.Load(); n != 1 {
		t.Errorf("%d requests claimed one key", n)
	}
}
