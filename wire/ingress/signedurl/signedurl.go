// Package signedurl defines the tokens in signed URLs, which give access to a route or to a port of a sandbox. The daemon signs
// them; the wire process, which has the public key only, verifies them and passes them to the daemon, which verifies them again.
// A compromised wire process can therefore access only sandboxes for which a client has presented a token.
package signedurl

import (
	"crypto/ed25519"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// Parameter is the name of the query parameter with the token of a signed URL.
const Parameter = "caisson-token"

// MaxTTL is the longest time for which a URL can be signed.
const MaxTTL = 30 * 24 * time.Hour

// purpose is signed with every token, so that a signature of the key is not valid for any other purpose.
const purpose = "caisson signed url\n"

// A Token gives its holder access to a port of a sandbox, or to a route.
type Token struct {
	Route   caisson.ID // route to which the token gives access; "" if it is for a port of a sandbox
	Sandbox caisson.ID // sandbox to which the token gives access; "" if it is for a route
	Port    int        // port of Sandbox to which the token gives access
	Resume  bool       // requests with the token wake or resume Sandbox
	Expires time.Time  // when the token becomes invalid, in whole seconds
}

// encoding is the encoding of signatures. It is strict, so that each signature has exactly one text.
var encoding = base64.RawURLEncoding.Strict()

// Sign returns a token as text: visible characters that need no escaping in a URL or cookie.
func Sign(key ed25519.PrivateKey, t Token) string {
	body := t.body()
	return body + "." + encoding.EncodeToString(ed25519.Sign(key, []byte(purpose+body)))
}

// body returns the text that is signed: version, id of the route or sandbox, port, flags and time of expiry, separated by dots.
func (t Token) body() string {
	id, flags := string(t.Sandbox), "-"
	if t.Route != "" {
		id = string(t.Route)
	}
	if t.Resume {
		flags = "r"
	}
	return strings.Join([]string{"1", id, strconv.Itoa(t.Port), flags, strconv.FormatInt(t.Expires.Unix(), 10)}, ".")
}

// maxText is the maximum length of a token as text, in bytes.
const maxText = 200

// Verify returns the token in text. It returns Unauthed if text is not a valid token, or has expired.
func Verify(key ed25519.PublicKey, text string, now time.Time) (Token, error) {
	t, ok := parse(text)
	if !ok || len(key) != ed25519.PublicKeySize {
		return Token{}, errInvalid()
	}
	i := strings.LastIndexByte(text, '.')
	signature, err := encoding.DecodeString(text[i+1:])
	// The body is compared with what Sign writes, so that there is one text for each token.
	if err != nil || t.body() != text[:i] || !ed25519.Verify(key, []byte(purpose+text[:i]), signature) {
		return Token{}, errInvalid()
	}
	if !now.Before(t.Expires) {
		return Token{}, caisson.Errorf(caisson.Unauthed, "this signed URL has expired; ask for a new one")
	}
	return t, nil
}

// errInvalid returns the error for text that is not a token or has no valid signature.
func errInvalid() error {
	return caisson.Errorf(caisson.Unauthed, "this is no valid signed URL; ask for a new one")
}

// parse decodes text, a token as Sign returns it, without verifying its signature. ok is false if it cannot be decoded.
func parse(text string) (t Token, ok bool) {
	fields := strings.Split(text[:min(len(text), maxText+1)], ".")
	if len(text) > maxText || len(fields) != 6 || fields[0] != "1" {
		return Token{}, false
	}
	port, err := strconv.ParseUint(fields[2], 10, 16)
	if err != nil {
		return Token{}, false
	}
	expires, err := strconv.ParseInt(fields[4], 10, 64)
	if err != nil {
		return Token{}, false
	}
	t = Token{Port: int(port), Resume: fields[3] == "r", Expires: time.Unix(expires, 0)}
	if t.Sandbox, err = caisson.ParseID(caisson.SandboxPrefix, fields[1]); err == nil {
		return t, true
	}
	t.Route, err = caisson.ParseID(caisson.RoutePrefix, fields[1])
	return t, err == nil
}
