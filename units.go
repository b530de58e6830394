package caisson

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. As text it is a number with an optional unit: 512M, 2GiB, 1.5g; units are powers of 1024.
type Size int64

// sizeUnits has the number of bytes of each unit, by the unit's name in lower case.
var sizeUnits = map[string]int64{
	"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}

// ParseSize parses the text form of a Size.
func ParseSize(s string) (Size, error) {
	t := strings.TrimSpace(s)
	i := strings.LastIndexAny(t, "0123456789.") + 1
	unit, ok := sizeUnits[strings.ToLower(strings.TrimSpace(t[i:]))]
	n, err := strconv.ParseFloat(t[:i], 64)
	if !ok || err != nil || n < 0 || strings.ContainsAny(t[:i], "+-eExX_") || n*float64(unit) > 1<<62 {
		return 0, Errorf(Invalid, "%.40q is not a size; write for example 512M or 2GiB", s)
	}
	return Size(n * float64(unit)), nil
}

// String returns the size in the largest unit of which it has at least one, with at most one decimal place: "1.5GiB".
func (s Size) String() string {
	for _, u := range []struct {
		n    Size
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if s >= u.n {
			return strings.TrimSuffix(strconv.FormatFloat(float64(s)/float64(u.n), 'f', 1, 64), ".0") + u.name
		}
	}
	return fmt.Sprintf("%dB", int64(s))
}

// UnmarshalText accepts the same text as [ParseSize], from command lines and YAML.
func (s *Size) UnmarshalText(b []byte) (err error) {
	*s, err = ParseSize(string(b))
	return err
}

// MarshalJSON writes a plain number of bytes.
func (s Size) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(s), 10), nil }

// UnmarshalJSON accepts a number of bytes, or a string in the format of [ParseSize].
func (s *Size) UnmarshalJSON(b []byte) error {
	if len(b) > 1 && b[0] == '"' {
		return s.UnmarshalText(b[1 : len(b)-1])
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n < 0 {
		return Errorf(Invalid, "%.40q is not a size in bytes", b)
	}
	*s = Size(n)
	return nil
}

// Duration is a time.Duration that is text ("90s", "1h30m", "7d") in JSON and YAML.
type Duration time.Duration

// ParseDuration accepts the formats of time.ParseDuration, and whole days ("7d").
func ParseDuration(s string) (Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return Duration(time.Duration(n) * 24 * time.Hour), nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, Errorf(Invalid, "%.40q is not a duration; write for example 90s, 1h30m or 7d", s)
	}
	return Duration(d), nil
}

// String returns the duration for people, rounded to milliseconds, or to microseconds if it is less than one.
func (d Duration) String() string {
	unit := time.Millisecond
	if time.Duration(d).Abs() < unit {
		unit = time.Microsecond
	}
	return time.Duration(d).Round(unit).String()
}

// MarshalText returns the exact duration as text, for JSON and YAML.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText accepts the same text as [ParseDuration].
func (d *Duration) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDuration(string(b))
	return err
}
