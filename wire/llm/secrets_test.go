package llm

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

const someKey = "sk-ant-api03-aB3dE5fG7hJ9kL1m"

func TestRedact(t *testing.T) {
	s := newSecrets(someKey, "short-key", "x", "")
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for in, want := range map[string]string{
		"":                                    "",
		"nothing x here":                      "nothing x here",
		"a " + someKey + " b":                 "a [redacted] b",
		someKey + someKey:                     "[redacted]",
		someKey + "," + someKey:               "[redacted],[redacted]",
		"cut " + someKey[:14]:                 "cut [redacted]",
		"cut " + someKey[9:]:                  "cut [redacted]",
		"few " + someKey[:11]:                 "few " + someKey[:11],
		"a short-key":                         "a [redacted]",
		hex.EncodeToString([]byte(someKey)):   "[redacted]",
		strings.ToLower(someKey[14:]) + " no": strings.ToLower(someKey[14:]) + " no",
	} {
		if got := string(s.redact([]byte(in))); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	for _, before := range []string{"", "u", "us", "use", "user:"} {
		in := b64(before + someKey)
		if got := string(s.redact([]byte(in))); !strings.Contains(got, redaction) || len(got) > len(redaction)+16 {
			t.Errorf("%q becomes %q", in, got)
		}
	}
	for _, in := range []string{"ghp_abcdefghijklmnopqrstuvwxyz0123456789", "AKIAABCDEFGHIJKLMNOP", "sk-proj-abcdefghijklmnop1234", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"} {
		if got := string(s.redactAll([]byte("a " + in + " b"))); got != "a [redacted] b" {
			t.Errorf("%q becomes %q", in, got)
		}
	}
}

// FuzzGuard checks that, for any split of an answer into pieces, the key is never forwarded and all other data is forwarded
// unchanged.
func FuzzGuard(f *testing.F) {
	key := "abcabcabd"
	for _, s := range []string{"", "abc", key, "xx" + key + "yy", "abcabcabcabd", "abcabcab", "aabcabcabcabcab" + key} {
		f.Add([]byte(s), uint(1))
		f.Add([]byte(s), uint(3))
	}
	f.Fuzz(func(t *testing.T, answer []byte, size uint) {
		g := newKeyScanner(key)
		var out []byte
		n := int(1 + size%16)
		for rest := bytes.Clone(answer); len(rest) > 0; {
			k := min(n, len(rest))
			p, ok := g.next(rest[:k])
			if !ok {
				if !bytes.Contains(answer, []byte(key)) || bytes.Contains(out, []byte(key)) {
					t.Fatalf("%q stopped after %q", answer, out)
				}
				return
			}
			out = append(out, p...)
			rest = rest[k:]
		}
		out = append(out, g.rest()...)
		if bytes.Contains(answer, []byte(key)) || !bytes.Equal(out, answer) {
			t.Fatalf("%q became %q", answer, out)
		}
	})
}

func TestBucket(t *testing.T) {
	var s limiter
	now := time.Unix(1e9, 0)
	rate := caisson.Rate{Requests: 60, Tokens: 600}
	taken, wait := s.takeRate(rate, 400, now)
	if taken != 400 || wait != 0 {
		t.Fatal(taken, wait)
	}
	if _, wait = s.takeRate(rate, 400, now); wait != 20*time.Second {
		t.Fatal(wait)
	}
	s.correctRate(rate, 400, 100)
	if taken, wait = s.takeRate(rate, 400, now); taken != 400 || wait != 0 {
		t.Fatal(taken, wait)
	}
	s.correctRate(rate, 400, 1300) // more than estimated: the next call has to wait
	if _, wait = s.takeRate(rate, 1, now); wait != 80100*time.Millisecond {
		t.Fatal(wait)
	}
	if taken, wait = s.takeRate(rate, 1e6, now.Add(time.Hour)); taken != 600 || wait != 0 {
		t.Fatal(taken, wait)
	}
	if taken, wait = s.takeRate(caisson.Rate{}, 1e6, now); taken != 0 || wait != 0 {
		t.Fatal(taken, wait)
	}
}

func TestSeats(t *testing.T) {
	s := newLimiters()
	now := time.Unix(1e9, 0)
	g := caisson.Guest{Sandbox: "sb-a", Account: "a"}
	for range maxCalls {
		if s.admit(g, now) == nil {
			t.Fatal("too few")
		}
	}
	if s.admit(g, now) != nil {
		t.Fatal("too many")
	}
	other := s.admit(caisson.Guest{Account: "a", Run: "r"}, now)
	if other == nil {
		t.Fatal("others have to wait")
	}
	other.release(false, now)
	s.admit(caisson.Guest{Account: "b"}, now.Add(time.Hour))
	if len(s.all) != 2 {
		t.Errorf("%d are remembered", len(s.all))
	}
}
