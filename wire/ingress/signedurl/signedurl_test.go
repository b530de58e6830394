package signedurl

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func TestTokens(t *testing.T) {
	public, private, _ := ed25519.GenerateKey(nil)
	other, _, _ := ed25519.GenerateKey(nil)
	now := time.Unix(1_800_000_000, 0)
	for _, want := range []Token{
		{Sandbox: caisson.NewID(caisson.SandboxPrefix), Port: 3000, Resume: true, Expires: now.Add(time.Hour)},
		{Sandbox: caisson.NewID(caisson.SandboxPrefix), Port: 65535, Expires: now.Add(time.Second)},
		{Route: caisson.NewID(caisson.RoutePrefix), Expires: now.Add(time.Second)},
	} {
		text := Sign(private, want)
		if got, err := Verify(public, text, now); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if _, err := Verify(other, text, now); caisson.KindOf(err) != caisson.Unauthed {
			t.Errorf("with another key: %v", err)
		}
		if _, err := Verify(nil, text, now); caisson.KindOf(err) != caisson.Unauthed {
			t.Errorf("without a key: %v", err)
		}
		if _, err := Verify(public, text, want.Expires); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Errorf("at its end: %v", err)
		}
		for i := range text { // no bit of it can be changed
			for _, c := range []byte{'0', '1', 'A', 'r', '.', text[i] ^ 1} {
				if forged := text[:i] + string(c) + text[i+1:]; forged != text {
					if _, err := Verify(public, forged, now); err == nil {
						t.Fatalf("%q is accepted", forged)
					}
				}
			}
		}
		for _, forged := range []string{text + "A", text + "=", " " + text, text + ".", strings.Replace(text, ".", ".0", 1), strings.Repeat(text, 3), ""} {
			if _, err := Verify(public, forged, now); err == nil {
				t.Fatalf("%q is accepted", forged)
			}
		}
	}
}

func FuzzVerify(f *testing.F) {
	public, private, _ := ed25519.GenerateKey(nil)
	f.Add(Sign(private, Token{Sandbox: caisson.NewID(caisson.SandboxPrefix), Port: 1, Expires: time.Unix(1, 0)}))
	f.Add("1.sb-.1.r.1.")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := Verify(public, text, time.Unix(0, 0)); err == nil && !strings.HasPrefix(text, "1.") {
			t.Fatal(text)
		}
	})
}
