// Package runtoken makes and checks run tokens: what a host shows to a model gateway that is not on its own machine, to say
// which run a call is for.
//
// A token is
//
//	runId|attempt|expiry.signature
//
// where expiry is in unix seconds and signature is the unpadded base64url form of the HMAC-SHA256 of everything before the
// last dot. It travels in the header [Header].
package runtoken

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// Header is the header that carries a token.
const Header = "X-Run-Token"

const (
	// DefaultTTL is how long a token is valid if nothing else is said.
	DefaultTTL = 24 * time.Hour
	// MinKey is the least number of bytes in a key.
	MinKey = 32

	maxRun     = 64
	maxAttempt = 1e9
	// maxToken is longer than any token: a run, an attempt and an expiry of ten and twelve digits, a signature of 43.
	maxToken = maxRun + 1 + 10 + 1 + 12 + 1 + 43
)

// Config is what Tokens need.
type Config struct {
	// Keys are one or two secrets of at least MinKey bytes. The first signs; a token is valid if any of them signed it.
	// To rotate: put the new key second everywhere, then first, then drop the old one a TTL later. Required.
	Keys []caisson.Secret
	// TTL is how long new tokens are valid, in whole seconds; 0 means DefaultTTL.
	TTL time.Duration
	// Now is the clock; nil means [time.Now].
	Now func() time.Time
}

// Tokens mints and verifies. It is safe for concurrent use.
type Tokens struct {
	keys []caisson.Secret
	ttl  time.Duration
	now  func() time.Time
}

// Claims are what a valid token says.
type Claims struct {
	Run     string
	Attempt int
	Expiry  time.Time // the last second in which the token is valid
}

// New returns Tokens. Errors are Invalid.
func New(cfg Config) (*Tokens, error) {
	if len(cfg.Keys) != 1 && len(cfg.Keys) != 2 {
		return nil, caisson.Errorf(caisson.Invalid, "run tokens need one key, or two while keys are exchanged; there are %d", len(cfg.Keys))
	}
	for _, k := range cfg.Keys {
		if len(k.Reveal()) < MinKey {
			return nil, caisson.Errorf(caisson.Invalid, "a key for run tokens has %d bytes and needs at least %d; make one with: openssl rand -hex 32",
				len(k.Reveal()), MinKey)
		}
	}
	if cfg.TTL < 0 || cfg.TTL > 0 && cfg.TTL < time.Second {
		return nil, caisson.Errorf(caisson.Invalid, "run tokens cannot be valid for %s; a second is the least", cfg.TTL)
	}
	t := &Tokens{keys: append([]caisson.Secret(nil), cfg.Keys...), ttl: cfg.TTL, now: cfg.Now}
	if t.ttl == 0 {
		t.ttl = DefaultTTL
	}
	if t.now == nil {
		t.now = time.Now
	}
	return t, nil
}

// Mint returns a token for an attempt of a run. Invalid if run is not 1 to 64 letters, digits, '_' and '-', or attempt
// is negative.
func (t *Tokens) Mint(run string, attempt int) (string, error) {
	if !validRun(run) {
		return "", caisson.Invalidf("run", "%.80q cannot be in a run token; use 1 to %d letters, digits, '_' and '-'", run, maxRun)
	}
	if attempt < 0 || attempt > maxAttempt {
		return "", caisson.Invalidf("attempt", "%d cannot be in a run token", attempt)
	}
	data := run + "|" + strconv.Itoa(attempt) + "|" + strconv.FormatInt(t.now().Add(t.ttl).Unix(), 10)
	return data + "." + sign(t.keys[0], data), nil
}

// Verify returns what token says if a key signed it and it has not expired. The error is always the same Unauthed one, so
// that nobody learns from it; [Reason] of it is for logs.
func (t *Tokens) Verify(token string) (Claims, error) {
	if token == "" {
		return Claims{}, refuse(errMissing)
	}
	dot := strings.LastIndexByte(token, '.')
	if dot < 0 || len(token) > maxToken {
		return Claims{}, refuse(errForm)
	}
	data, signature := token[:dot], []byte(token[dot+1:])
	// The signatures are compared as text: there is one text for each, and so one token for each claim. Every key is tried,
	// whichever fits.
	signed := false
	for _, k := range t.keys {
		signed = hmac.Equal([]byte(sign(k, data)), signature) || signed
	}
	if !signed {
		return Claims{}, refuse(errSignature)
	}
	c, err := parse(data)
	if err != nil {
		return Claims{}, refuse(err)
	}
	if c.Expiry.Unix() < t.now().Unix() {
		return Claims{}, refuse(errExpired)
	}
	return c, nil
}

var (
	errMissing   = errors.New("no token")
	errForm      = errors.New("not of the form of a token")
	errSignature = errors.New("not signed by a key of this gateway")
	errExpired   = errors.New("expired")
)

func refuse(reason error) error {
	return caisson.Wrap(reason, caisson.Unauthed, "this needs a valid run token in the header %s", Header)
}

// Reason returns a word or two, for logs, on why Verify refused. They contain nothing of the token.
func Reason(err error) string {
	for _, r := range []error{errMissing, errForm, errSignature, errExpired} {
		if errors.Is(err, r) {
			return r.Error()
		}
	}
	return "refused"
}

func sign(key caisson.Secret, data string) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte(data))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// parse reads what was signed, in its one spelling.
func parse(data string) (Claims, error) {
	parts := strings.Split(data, "|")
	if len(parts) != 3 || !validRun(parts[0]) {
		return Claims{}, errForm
	}
	attempt, ok1 := number(parts[1], 10)
	expiry, ok2 := number(parts[2], 12)
	if !ok1 || !ok2 || attempt > maxAttempt {
		return Claims{}, errForm
	}
	return Claims{Run: parts[0], Attempt: int(attempt), Expiry: time.Unix(expiry, 0).UTC()}, nil
}

// number reads a decimal number without sign, spaces and leading zeros.
func number(s string, digits int) (int64, bool) {
	if s == "" || len(s) > digits || s[0] == '0' && s != "0" {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

func validRun(s string) bool {
	if s == "" || len(s) > maxRun {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
