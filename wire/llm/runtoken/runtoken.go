// Package runtoken signs and verifies run tokens. A host sends a run token to a model gateway on another machine to identify the
// run of a call.
//
// A token is
//
//	runId|attempt|expiry.signature
//
// where expiry is in Unix seconds and signature is the unpadded base64url encoding of the HMAC-SHA256 of all bytes before the
// last dot. The token is sent in the header [Header].
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

// Header is the name of the header with the token.
const Header = "X-Run-Token"

const (
	// DefaultTTL is the default validity of a token.
	DefaultTTL = 24 * time.Hour
	// MinKey is the minimum length of a key, in bytes.
	MinKey = 32

	maxRun     = 64  // maximum length of the id of a run, in bytes
	maxAttempt = 1e9 // highest number of an attempt
	// maxToken is the maximum length of a token, in bytes: run, attempt (10 digits), expiry (12 digits) and signature (43).
	maxToken = maxRun + 1 + 10 + 1 + 12 + 1 + 43
)

// Config configures Tokens.
type Config struct {
	// Keys are one or two secrets of at least MinKey bytes. The first one signs; a token is valid if any of them has signed it.
	// To rotate, add the new key as the second one everywhere, then make it the first one, and remove the old key one TTL later.
	// Required.
	Keys []caisson.Secret
	TTL  time.Duration    // validity of new tokens, in whole seconds; 0 means DefaultTTL
	Now  func() time.Time // the clock; nil means [time.Now]
}

// Tokens signs and verifies run tokens. It is safe for concurrent use.
type Tokens struct {
	keys []caisson.Secret // the first one signs; a token signed by any of them is valid
	ttl  time.Duration    // validity of new tokens
	now  func() time.Time // the clock
}

// Claims are the contents of a valid token.
type Claims struct {
	Run     string    // id of the run, or of the sandbox if that has no run
	Attempt int       // number of the run's attempt
	Expiry  time.Time // the last second of the token's validity
}

// New returns a Tokens that signs and verifies run tokens as cfg says. Errors are of kind Invalid.
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
		return nil, caisson.Errorf(caisson.Invalid, "run tokens cannot be valid for %s; the minimum is one second", cfg.TTL)
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

// Mint returns a token for an attempt of a run. Returns an Invalid error if run is not 1 to 64 letters, digits, '_' and '-', or
// if attempt is negative or above 1e9.
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

// Verify returns the claims of a token that is signed by one of the keys and has not expired. All errors have the same kind,
// Unauthed, and the same message, so that they reveal nothing to the client; use [Reason] for logs.
func (t *Tokens) Verify(token string) (Claims, error) {
	if token == "" {
		return Claims{}, refuse(errMissing)
	}
	dot := strings.LastIndexByte(token, '.')
	if dot < 0 || len(token) > maxToken {
		return Claims{}, refuse(errMalformed)
	}
	data, signature := token[:dot], []byte(token[dot+1:])
	// The signatures are compared as text, because each signature has exactly one encoding, so that there is one token for each
	// set of claims. All keys are tried even after a match, so that the time does not depend on the key.
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
	errMalformed = errors.New("not of the form of a token")
	errSignature = errors.New("not signed by a key of this gateway")
	errExpired   = errors.New("expired")
)

// refuse returns the error of Verify for an invalid token. It wraps reason, one of the errors above, for [Reason].
func refuse(reason error) error {
	return caisson.Wrap(reason, caisson.Unauthed, "this needs a valid run token in the header %s", Header)
}

// Reason returns a short reason for an error of Verify, for logs. It contains no part of the token.
func Reason(err error) string {
	for _, r := range []error{errMissing, errMalformed, errSignature, errExpired} {
		if errors.Is(err, r) {
			return r.Error()
		}
	}
	return "refused"
}

// sign returns the encoded signature of data, the part of a token before the last dot.
func sign(key caisson.Secret, data string) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte(data))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// parse parses data, the part of a token before the last dot. It accepts only the form that Mint writes.
func parse(data string) (Claims, error) {
	parts := strings.Split(data, "|")
	if len(parts) != 3 || !validRun(parts[0]) {
		return Claims{}, errMalformed
	}
	attempt, ok1 := number(parts[1], 10)
	expiry, ok2 := number(parts[2], 12)
	if !ok1 || !ok2 || attempt > maxAttempt {
		return Claims{}, errMalformed
	}
	return Claims{Run: parts[0], Attempt: int(attempt), Expiry: time.Unix(expiry, 0).UTC()}, nil
}

// number parses a decimal number of at most the given number of digits. It returns false for signs, spaces and leading zeros.
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

// validRun reports whether s has the form of the id of a run: 1 to 64 letters, digits, '_' and '-'.
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
