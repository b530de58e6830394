package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

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
	var revoked []caisson.ID
	tokens := &Tokens{store, events.New(store.Events(), nil), func(id caisson.ID) { revoked = append(revoked, id) }}
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
	if !slices.Equal(revoked, []caisson.ID{token.ID}) {
		t.Errorf("revoked %v", revoked)
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

// TestSSHKeys: a token of an SSH key is found by the key alone, not by a bearer token, and not after its end.
func TestSSHKeys(t *testing.T) {
	store := sqlitetest.New(t)
	tokens := &Tokens{store, events.New(store.Events(), nil), func(caisson.ID) {}}
	blob := append([]byte("\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"), bytes.Repeat([]byte{7}, 32)...)
	key := base64.StdEncoding.EncodeToString(blob)
	local := as(t, "local", true)
	for _, bad := range []string{
		"", "ssh-ed25519", "ssh-rsa " + key, "ssh-dss " + key, `command="id" ssh-ed25519 ` + key, "ssh-ed25519 " + key[:20], "ssh-ed25519 !",
		"ssh-ed25519 " + key + "\nssh-ed25519 " + key, "ssh-ed25519 " + strings.Repeat("A", 40000),
	} {
		if _, err := tokens.CreateSSHKey(local, "a", "x", bad, 0); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%.60q: %v", bad, err)
		}
	}
	if _, err := tokens.CreateSSHKey(as(t, "a", false), "a", "x", "ssh-ed25519 "+key, 0); caisson.KindOf(err) != caisson.Denied {
		t.Errorf("a token creates another: %v", err)
	}
	rsa := func(bits int) string {
		modulus := append([]byte{0, 0x80}, make([]byte, bits/8-1)...)
		b := append([]byte("\x00\x00\x00\x07ssh-rsa\x00\x00\x00\x03\x01\x00\x01"), binary.BigEndian.AppendUint32(nil, uint32(len(modulus)))...)
		return "ssh-rsa " + base64.StdEncoding.EncodeToString(append(b, modulus...))
	}
	if _, err := tokens.CreateSSHKey(local, "a", "x", rsa(1024), 0); !strings.Contains(caisson.MessageOf(err), "less than 2048 bits") {
		t.Error(err)
	}
	if _, err := tokens.CreateSSHKey(local, "a", "x", rsa(2048), 0); err != nil {
		t.Error(err)
	}
	token, err := tokens.CreateSSHKey(local, "a", "x", "ssh-ed25519 "+key+" ada@laptop\n", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.CreateSSHKey(local, "b", "x", "ssh-ed25519 "+key, 0); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("the key of two accounts: %v", err)
	}
	for _, use := range []bool{false, true} { // a question about a key is no use of it
		if got, err := tokens.FindSSHKey(t.Context(), blob, use); err != nil || got.ID != token.ID || got.Account != "a" {
			t.Errorf("%+v, %v", got, err)
		}
		if got, err := tokens.CheckToken(t.Context(), "a", token.ID); err != nil || (got.LastUsedAt != nil) != use {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := tokens.CheckToken(t.Context(), "b", token.ID); caisson.KindOf(err) != caisson.Unauthed {
		t.Errorf("the token of another account: %v", err)
	}
	for _, secret := range []string{string(blob), "ssh key\x00" + string(blob), key} {
		if _, err := tokens.FindToken(t.Context(), sha256.Sum256([]byte(secret))); caisson.KindOf(err) != caisson.Unauthed {
			t.Errorf("%q is a bearer token: %v", secret, err)
		}
	}
	_, secret, err := tokens.CreateToken(local, "a", "y", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.FindSSHKey(t.Context(), []byte(secret.Reveal()), true); caisson.KindOf(err) != caisson.Unauthed {
		t.Errorf("a bearer token is a key: %v", err)
	}
	if err := tokens.RemoveToken(local, token.ID); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("another account's: %v", err)
	}
	if err := tokens.RemoveToken(as(t, "a", false), token.ID); err != nil {
		t.Error(err)
	}
	if token, err = tokens.CreateSSHKey(local, "a", "x", "ssh-ed25519 "+key, time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.CheckToken(t.Context(), "a", token.ID); caisson.KindOf(err) != caisson.Unauthed {
		t.Errorf("after its end: %v", err)
	}
	if _, err := tokens.FindSSHKey(t.Context(), blob, true); caisson.KindOf(err) != caisson.Unauthed {
		t.Errorf("after its end: %v", err)
	}
}
