package sqlite_test

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testCredentials(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.CredentialStore){
		"Insert": testInsertCredential, "Replace": testReplaceCredential, "Scopes": testCredentialScopes,
		"Concurrent": testConcurrentCredentials,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).Credentials()) })
	}
}

func insertCredential(t *testing.T, s caisson.CredentialStore, account, name, sealed string) *caisson.Credential {
	t.Helper()
	c := &caisson.Credential{Name: name, Account: account, Kind: "for " + name, CreatedAt: noon()}
	must(t, s.Insert(t.Context(), c, []byte(sealed)))
	return c
}

func testInsertCredential(t *testing.T, s caisson.CredentialStore) {
	want := insertCredential(t, s, "a", "KEY", "sealed\x00\xff")
	got, sealed, err := s.Get(t.Context(), caisson.In("a"), "KEY")
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" || !bytes.Equal(sealed, []byte("sealed\x00\xff")) {
		t.Errorf("the credential came back changed: %q (-want +got):\n%s", sealed, diff)
	}
	wantKind(t, s.Insert(t.Context(), want, []byte("other")), caisson.Conflict)
	if _, sealed, _ := s.Get(t.Context(), caisson.In("a"), "KEY"); !bytes.Equal(sealed, []byte("sealed\x00\xff")) {
		t.Errorf("a conflict replaced the value by %q", sealed)
	}
	for _, name := range []string{"key", "KEY ", "KE", "%", ""} {
		_, _, err := s.Get(t.Context(), caisson.In("a"), name)
		wantKind(t, err, caisson.NotFound)
	}
}

func testReplaceCredential(t *testing.T, s caisson.CredentialStore) {
	want := insertCredential(t, s, "a", "KEY", "one")
	insertCredential(t, s, "b", "KEY", "other")
	at := noon().Add(time.Hour)
	got := get[*caisson.Credential](t)(s.Replace(t.Context(), caisson.In("a"), "KEY", []byte("two"), at))
	want.RotatedAt = &at
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("replaced (-want +got):\n%s", diff)
	}
	for account, value := range map[string]string{"a": "two", "b": "other"} {
		if _, sealed, err := s.Get(t.Context(), caisson.In(account), "KEY"); err != nil || string(sealed) != value {
			t.Errorf("account %s has %q, %v; want %q", account, sealed, err, value)
		}
	}
	_, err := s.Replace(t.Context(), caisson.In("a"), "NONE", []byte("x"), at)
	wantKind(t, err, caisson.NotFound)
	_, err = s.Replace(t.Context(), caisson.In("c"), "KEY", []byte("x"), at)
	wantKind(t, err, caisson.NotFound)
}

func testCredentialScopes(t *testing.T, s caisson.CredentialStore) {
	ctx := t.Context()
	for _, c := range [][2]string{{"b", "Z"}, {"a", "Y"}, {"b", "X"}, {"a", "X"}} {
		insertCredential(t, s, c[0], c[1], "v")
	}
	list := func(in caisson.Scope) (names []string) {
		t.Helper()
		for _, c := range get[[]*caisson.Credential](t)(s.List(ctx, in)) {
			names = append(names, c.Account+"/"+c.Name)
		}
		return names
	}
	if got := list(caisson.In("a")); !slices.Equal(got, []string{"a/X", "a/Y"}) {
		t.Errorf("credentials of a: %v", got)
	}
	if got := list(caisson.AllAccounts()); !slices.Equal(got, []string{"a/X", "a/Y", "b/X", "b/Z"}) {
		t.Errorf("credentials of everyone: %v", got)
	}
	if got := list(caisson.In("")); len(got) != 0 {
		t.Errorf("credentials of nobody: %v", got)
	}
	_, _, err := s.Get(ctx, caisson.In(""), "X")
	wantKind(t, err, caisson.NotFound)
	_, _, err = s.Get(ctx, caisson.AllAccounts(), "X")
	wantKind(t, err, caisson.Conflict)
	if c, _, err := s.Get(ctx, caisson.AllAccounts(), "Z"); err != nil || c.Account != "b" {
		t.Errorf("the only Z: %+v, %v", c, err)
	}
	wantKind(t, s.Delete(ctx, caisson.In("a"), "Z"), caisson.NotFound)
	must(t, s.Delete(ctx, caisson.In("a"), "X"))
	wantKind(t, s.Delete(ctx, caisson.In("a"), "X"), caisson.NotFound)
	if got := list(caisson.AllAccounts()); !slices.Equal(got, []string{"a/Y", "b/X", "b/Z"}) {
		t.Errorf("after one was deleted: %v", got)
	}
}

// testConcurrentCredentials replaces one value concurrently and checks that every read value is one of the written
// ones.
func testConcurrentCredentials(t *testing.T, s caisson.CredentialStore) {
	value := func(i int) []byte { return bytes.Repeat([]byte(fmt.Sprint(i)), 5000) }
	insertCredential(t, s, "a", "KEY", string(value(0)))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 20 {
				if _, err := s.Replace(t.Context(), caisson.In("a"), "KEY", value(i), noon()); err != nil {
					t.Error(err)
				}
				_, sealed, err := s.Get(t.Context(), caisson.In("a"), "KEY")
				if err != nil || len(sealed) != 5000 || !bytes.Equal(sealed, bytes.Repeat(sealed[:1], 5000)) {
					t.Errorf("read %d bytes, %v", len(sealed), err)
				}
			}
		})
	}
	wg.Wait()
}
