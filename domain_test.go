package caisson

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestNewID(t *testing.T) {
	seen := map[ID]bool{}
	for range 1000 {
		id := NewID(SandboxPrefix)
		if seen[id] || len(id) != idLen {
			t.Fatalf("id %q is not new, or not %d long", id, idLen)
		}
		seen[id] = true
		if got, err := ParseID(SandboxPrefix, string(id)); err != nil || got != id {
			t.Errorf("ParseID(%q) = %q, %v", id, got, err)
		}
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{string(NewID("sb")), "sb-", "sb-../../../../etc", "sb-AAAAAAAAAAAAAAAA", "sb-0000000000000000", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(SandboxPrefix, s)
		if err == nil && (string(id) != s || strings.ContainsAny(s, "/.\x00 ") || len(s) != idLen) {
			t.Errorf("ParseID accepts %q", s)
		}
	})
}

// TestStates: the table of transitions is closed, and every error contains what is possible.
func TestStates(t *testing.T) {
	verbs := []Verb{VerbStart, VerbStop, VerbPause, VerbResume, VerbSuspend, VerbWake, VerbSnapshot, VerbFork, VerbExec, VerbPrograms, VerbConnect, VerbFiles, VerbStats, VerbRemove}
	if len(verbs) != len(transitions) {
		t.Fatalf("the test knows %d verbs, the table %d", len(verbs), len(transitions))
	}
	for _, v := range verbs {
		via, to := v.Transition()
		if (via == "") != (to == "") && v != VerbRemove {
			t.Errorf("%s goes through %q to %q", v, via, to)
		}
		if via != "" && !via.Transient() {
			t.Errorf("%s goes through %s, which does not say that a change is under way", v, via)
		}
		allowed := 0
		for _, s := range States() {
			err := s.Allow(v)
			if err == nil {
				allowed++
				if s.Transient() && v != VerbRemove {
					t.Errorf("%s is allowed in %s", v, s)
				}
				continue
			}
			if KindOf(err) != Conflict || !strings.Contains(err.Error(), string(s)) || !strings.Contains(err.Error(), ";") {
				t.Errorf("%s in %s: %v: want a Conflict that names the state and says what is possible", v, s, err)
			}
		}
		if allowed == 0 {
			t.Errorf("%s is allowed nowhere", v)
		}
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("secret detail")
	err := fmt.Errorf("outer: %w", Wrap(cause, Exhausted, "the disk is full; free some space"))
	if KindOf(err) != Exhausted || !errors.Is(err, cause) {
		t.Errorf("kind %s", KindOf(err))
	}
	if msg := MessageOf(err); msg != "the disk is full; free some space" {
		t.Errorf("users see %q", msg)
	}
	if msg := MessageOf(cause); strings.Contains(msg, "secret") {
		t.Errorf("users see %q of an internal error", msg)
	}
	if msg := MessageOf(Invalidf("resources.memory", "is too little")); msg != "resources.memory: is too little" {
		t.Errorf("users see %q", msg)
	}
	if Wrap(nil, Internal, "nothing") != nil {
		t.Error("Wrap makes an error of nil")
	}
}

func TestScope(t *testing.T) {
	var zero Scope
	for _, c := range []struct {
		scope   Scope
		account string
		want    bool
	}{
		{In("a"), "a", true}, {In("a"), "b", false}, {In("a"), "", false}, {In(""), "", false}, {zero, "", false}, {zero, "a", false}, {AllAccounts(), "a", true},
	} {
		if got := c.scope.Covers(c.account); got != c.want {
			t.Errorf("%+v covers %q: %v", c.scope, c.account, got)
		}
	}
}

// TestSecretsPrintNothing: however a secret is formatted, its bytes do not appear.
func TestSecretsPrintNothing(t *testing.T) {
	const bytes = "hunter2-0123456789"
	s := NewSecret(bytes)
	holder := struct {
		Auth RegistryAuth
		P    *Secret
		M    map[string]Secret
	}{RegistryAuth{"user", s}, &s, map[string]Secret{"k": s}}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s, "pointer", &s, "holder", holder)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", s, "pointer", &s, "holder", holder)
	data, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{
		fmt.Sprint(s, &s, holder), fmt.Sprintf("%v %+v %#v %s %q", s, holder, holder, s, s), fmt.Sprintf("%x %X", s, s), string(data), log.String(),
	} {
		if strings.Contains(out, bytes) || strings.Contains(out, fmt.Sprintf("%x", bytes)) {
			t.Errorf("a secret appears in %q", out)
		}
	}
	var back Secret
	if err := json.Unmarshal([]byte(`"`+bytes+`"`), &back); err != nil || back.Reveal() != bytes {
		t.Errorf("a secret cannot be read: %v", err)
	}
}
