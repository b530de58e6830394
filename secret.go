package caisson

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// redacted is the text that is printed in place of a secret.
const redacted = "[redacted]"

// A Secret prints as "[redacted]" wherever it is formatted, logged or marshalled. Its bytes are returned only by
// Reveal, so that a search for that name finds every use. The zero Secret is empty. Secrets are immutable and safe for
// concurrent use; compare them with Equal.
//
// The bytes are kept in a closure, because methods are not enough: fmt, testing libraries and debuggers print unexported fields
// of a struct by reflection without calling its methods. Reflection cannot read the variables of a function.
type Secret struct{ reveal func() string }

// NewSecret returns a Secret that contains the bytes of s.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{reveal: func() string { return s }}
}

// Reveal returns the bytes of the secret. Callers pass them directly to the code that needs them, and keep no copy.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.reveal == nil }

// Equal reports whether s and other contain the same bytes, in a time that depends only on the lengths.
func (s Secret) Equal(other Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(other.Reveal())) == 1
}

// Format writes "[redacted]" for every verb. A Stringer is not called for verbs that are not valid for strings, such as %d.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String returns "[redacted]".
func (s Secret) String() string { return redacted }

// GoString returns "[redacted]".
func (s Secret) GoString() string { return redacted }

// LogValue returns "[redacted]", for package slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[redacted]", for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText sets s to the bytes of b: secrets enter through request bodies and configuration.
func (s *Secret) UnmarshalText(b []byte) error {
	*s = NewSecret(string(b))
	return nil
}
