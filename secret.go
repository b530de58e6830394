package caisson

import "log/slog"

const redacted = "[redacted]"

// A Secret prints as "[redacted]" wherever it is formatted, logged or marshalled. Its bytes come only from Reveal, so
// that a search for that name finds every use.
type Secret struct{ value string }

// NewSecret wraps s.
func NewSecret(s string) Secret { return Secret{value: s} }

// Reveal returns the bytes. Callers hand them to the one place that needs them and keep no copy.
func (s Secret) Reveal() string { return s.value }

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.value == "" }

// String implements [fmt.Stringer].
func (s Secret) String() string { return redacted }

// GoString implements [fmt.GoStringer].
func (s Secret) GoString() string { return redacted }

// LogValue implements [slog.LogValuer].
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements [encoding.TextMarshaler], and so JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]: secrets enter through request bodies and configuration.
func (s *Secret) UnmarshalText(b []byte) error {
	s.value = string(b)
	return nil
}
