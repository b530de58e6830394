package runtoken

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

const (
	key1 = "0123456789abcdef0123456789abcdef"
	key2 = "another key that is long enough, and has spaces in it"
)

// until is 2025-01-02T00:00:00Z.
const until = 1735776000

func tokens(t testing.TB, now int64, keys ...string) *Tokens {
	t.Helper()
	var secrets []caisson.Secret
	for _, k := range keys {
		secrets = append(secrets, caisson.NewSecret(k))
	}
	out, err := New(Config{Keys: secrets, Now: func() time.Time { return time.Unix(now, 999) }})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestKnownTokens checks tokens that were computed with node's crypto module and with openssl.
func TestKnownTokens(t *testing.T) {
	for _, c := range []struct {
		key, run string
		attempt  int
		token    string
	}{
		{key1, "run-1", 0, "run-1|0|1735776000.R1ObWFt46HAeVnHCtAimqr6Vrd5V0zwK_m0q_8fWkAg"},
		{key1, "sb-abcdefghijklmnop", 7, "sb-abcdefghijklmnop|7|1735776000.-KX6urlJVxBpI-4Pzdg3HHJow3mRV8Nta_TFPzsRgIE"},
		{key2, "run-1", 0, "run-1|0|1735776000.6l_a3NLnGdnUaAmnCFzwFFyd93CItC50uH1e--iBhUg"},
		{key1, "A_b-9", 1e9, "A_b-9|1000000000|1735776000.ZGw5VwOlZvZAEgQRl9nwsBhjb7LodQW6GGMNpF33S6o"},
	} {
		s := tokens(t, until-86400, c.key)
		got, err := s.Mint(c.run, c.attempt)
		if err != nil || got != c.token {
			t.Errorf("Mint(%s, %d) = %s, %v; want %s", c.run, c.attempt, got, err, c.token)
		}
		claims, err := s.Verify(c.token)
		if want := (Claims{c.run, c.attempt, time.Unix(until, 0).UTC()}); err != nil || claims != want {
			t.Errorf("Verify(%s) = %v, %v", c.token, claims, err)
		}
	}
}

func TestExpiry(t *testing.T) {
	token, err := tokens(t, until-86400, key1).Mint("run-1", 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		now   int64
		valid bool
	}{{until - 86400, true}, {until - 1, true}, {until, true}, {until + 1, false}, {until + 1e9, false}, {0, true}} {
		_, err := tokens(t, c.now, key1).Verify(token)
		if (err == nil) != c.valid || err != nil && !errors.Is(err, errExpired) {
			t.Errorf("%d seconds after its end: %v", c.now-until, err)
		}
	}
}

func TestRotation(t *testing.T) {
	mint := func(keys ...string) string {
		token, err := tokens(t, until, keys...).Mint("run-1", 0)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	old, both, new := mint(key1), mint(key2, key1), mint(key2)
	if both != new {
		t.Error("the first key does not sign")
	}
	for _, c := range []struct {
		name, token string
		keys        []string
		valid       bool
	}{
		{"old token, old key", old, []string{key1}, true},
		{"old token, new key second", old, []string{key1, key2}, true},
		{"new token, new key second", new, []string{key1, key2}, true},
		{"old token, old key second", old, []string{key2, key1}, true},
		{"new token, old key second", new, []string{key2, key1}, true},
		{"old token, old key dropped", old, []string{key2}, false},
		{"new token, not yet known", new, []string{key1}, false},
	} {
		_, err := tokens(t, until, c.keys...).Verify(c.token)
		if (err == nil) != c.valid || err != nil && !errors.Is(err, errSignature) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// signed signs arbitrary data, which requires the key.
func signed(data string) string { return data + "." + sign(caisson.NewSecret(key1), data) }

func TestRefused(t *testing.T) {
	good := signed("run-1|0|1735776000")
	s := tokens(t, until, key1)
	if _, err := s.Verify(good); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, token string }{
		{"empty", ""},
		{"no dot", "run-1|0|1735776000"},
		{"no signature", "run-1|0|1735776000."},
		{"no data", good[strings.LastIndex(good, "."):]},
		{"other run", strings.Replace(good, "run-1", "run-2", 1)},
		{"other attempt", strings.Replace(good, "|0|", "|1|", 1)},
		{"later expiry", strings.Replace(good, "1735776000", "1835776000", 1)},
		{"space before", " " + good},
		{"space after", good + " "},
		{"padding", good + "="},
		{"standard base64", strings.NewReplacer("_", "/", "-", "+").Replace(good)},
		{"two tokens", good + "," + good},
		{"two dots", strings.Replace(good, ".", "..", 1)},
		{"signed twice", signed(good)},
		{"long", signed(strings.Repeat("r", 4096) + "|0|1735776000")},
		// Data that a signer other than this package might sign.
		{"empty run", signed("|0|1735776000")},
		{"four parts", signed("run|1|0|1735776000")},
		{"two parts", signed("run|1735776000")},
		{"dot in run", signed("run.1|0|1735776000")},
		{"slash in run", signed("run/1|0|1735776000")},
		{"long run", signed(strings.Repeat("r", 65) + "|0|1735776000")},
		{"not ASCII", signed("rün|0|1735776000")},
		{"no attempt", signed("run-1||1735776000")},
		{"negative attempt", signed("run-1|-1|1735776000")},
		{"signed attempt", signed("run-1|+1|1735776000")},
		{"attempt with zeros", signed("run-1|00|1735776000")},
		{"attempt in hex", signed("run-1|0x1|1735776000")},
		{"large attempt", signed("run-1|1000000001|1735776000")},
		{"no expiry", signed("run-1|0|")},
		{"expiry with a fraction", signed("run-1|0|1735776000.5")},
		{"expiry with exponent", signed("run-1|0|1e12")},
		{"distant expiry", signed("run-1|0|9999999999999")},
		{"line feed", signed("run-1|0|1735776000\n")},
	}
	// Change every byte, and remove bytes at either end.
	for i := range good {
		b := []byte(good)
		b[i] ^= 1
		tests = append(tests,
			struct{ name, token string }{fmt.Sprintf("byte %d changed", i), string(b)},
			struct{ name, token string }{fmt.Sprintf("cut at %d", i), good[:i]})
		if i > 0 {
			tests = append(tests, struct{ name, token string }{fmt.Sprintf("without the first %d", i), good[i:]})
		}
	}
	const want = "this needs a valid run token in the header X-Run-Token"
	for _, c := range tests {
		claims, err := s.Verify(c.token)
		if caisson.KindOf(err) != caisson.Unauthed || claims != (Claims{}) {
			t.Errorf("%s: %v, %v", c.name, claims, err)
		} else if got := caisson.MessageOf(err); got != want {
			t.Errorf("%s: %q tells more than the others", c.name, got)
		}
	}
}

func TestMintRefuses(t *testing.T) {
	s := tokens(t, until, key1)
	for _, run := range []string{"", "a|b", "a.b", "a b", "a\n", "ä", "a/b", strings.Repeat("r", 65)} {
		if token, err := s.Mint(run, 0); caisson.KindOf(err) != caisson.Invalid || token != "" {
			t.Errorf("Mint(%q) = %q, %v", run, token, err)
		}
	}
	for _, attempt := range []int{-1, 1e9 + 1} {
		if token, err := s.Mint("run", attempt); caisson.KindOf(err) != caisson.Invalid || token != "" {
			t.Errorf("Mint(%d) = %q, %v", attempt, token, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	good := caisson.NewSecret(key1)
	for _, c := range []struct {
		name string
		cfg  Config
	}{
		{"no key", Config{}},
		{"three keys", Config{Keys: []caisson.Secret{good, good, good}}},
		{"short key", Config{Keys: []caisson.Secret{caisson.NewSecret(key1[1:])}}},
		{"short second key", Config{Keys: []caisson.Secret{good, {}}}},
		{"negative ttl", Config{Keys: []caisson.Secret{good}, TTL: -time.Hour}},
		{"short ttl", Config{Keys: []caisson.Secret{good}, TTL: time.Millisecond}},
	} {
		if _, err := New(c.cfg); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %v", c.name, err)
		} else if strings.Contains(err.Error(), key1[1:]) {
			t.Errorf("%s: the error holds the key", c.name)
		}
	}
}

func TestReason(t *testing.T) {
	s := tokens(t, until+1, key1)
	for token, want := range map[string]string{
		"": "no token", "x": "not of the form of a token", "x.y": "not signed by a key of this gateway",
		signed("run-1|0|1735776000"): "expired", signed("run-1"): "not of the form of a token",
	} {
		if _, err := s.Verify(token); Reason(err) != want {
			t.Errorf("%q: %s", token, Reason(err))
		}
	}
	if got := Reason(errors.New("else")); got != "refused" {
		t.Error(got)
	}
}

// FuzzVerify checks that an accepted token is exactly the one that Mint returns for its claims.
func FuzzVerify(f *testing.F) {
	f.Add("run-1|0|1735776000", "")
	f.Add("run-1|0|1735776000", "R1ObWFt46HAeVnHCtAimqr6Vrd5V0zwK_m0q_8fWkAg")
	f.Add("a|b|c|d", ".")
	f.Add("||", "|")
	f.Add("r|00|1", "=")
	f.Fuzz(func(t *testing.T, data, signature string) {
		s := tokens(t, 0, key1)
		if c, err := s.Verify(data + "." + signature); err == nil && signature != sign(caisson.NewSecret(key1), data) {
			t.Fatalf("forged %v", c)
		}
		c, err := s.Verify(signed(data)) // the format is checked even if the signature is valid
		if err != nil {
			return
		}
		again, err := tokens(t, c.Expiry.Unix()-86400, key1).Mint(c.Run, c.Attempt)
		if err != nil || again != signed(data) {
			t.Fatalf("%q became %q, %v", signed(data), again, err)
		}
	})
}
