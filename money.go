package caisson

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// USD is an amount in billionths of a United States dollar (nanodollars). As text it is a decimal number of dollars: "0.25".
type USD int64

// Dollar is one dollar.
const Dollar USD = 1e9

// ParseUSD reads a decimal number of dollars, with or without "$" or "usd", of at most nine decimal places.
func ParseUSD(s string) (USD, error) {
	t := strings.TrimSpace(strings.TrimPrefix(strings.TrimSuffix(strings.ToLower(strings.TrimSpace(s)), "usd"), "$"))
	whole, frac, _ := strings.Cut(t, ".")
	digits := whole + frac + strings.Repeat("0", max(0, 9-len(frac)))
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || len(frac) > 9 || whole == "" && frac == "" || strings.HasPrefix(whole, "+") {
		return 0, Errorf(Invalid, "%.40q is not an amount in US dollars; write for example 5 or 0.25", s)
	}
	return USD(n), nil
}

// String returns the shortest exact decimal number, without a currency sign.
func (u USD) String() string {
	sign, n := "", uint64(u)
	if u < 0 {
		sign, n = "-", uint64(-u)
	}
	s := strconv.FormatUint(n/uint64(Dollar), 10)
	if frac := n % uint64(Dollar); frac > 0 {
		f := strconv.FormatUint(uint64(Dollar)+frac, 10)[1:]
		s += "." + strings.TrimRight(f, "0")
	}
	return sign + s
}

// MarshalJSON writes an exact decimal number.
func (u USD) MarshalJSON() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalJSON reads a decimal number, or a string that contains one.
func (u *USD) UnmarshalJSON(b []byte) error {
	return u.UnmarshalText([]byte(strings.Trim(string(b), `"`)))
}

// UnmarshalText accepts the same text as [ParseUSD], from command lines and YAML, and exponents, as in 1e-06.
func (u *USD) UnmarshalText(b []byte) (err error) {
	s := string(b)
	if strings.ContainsAny(s, "eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsNaN(f) || f < 0 || f > 9e9 {
			return Errorf(Invalid, "%.40q is not an amount in US dollars; write for example 5 or 0.25", s)
		}
		s = strconv.FormatFloat(f, 'f', 9, 64)
	}
	*u, err = ParseUSD(s)
	return err
}

// perMillion returns the cost of n tokens at the price of a million tokens, rounded up, and at most math.MaxInt64.
func perMillion(price USD, n int64) USD {
	if price <= 0 || n <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(price), uint64(n))
	if hi >= 1e6 {
		return math.MaxInt64
	}
	q, r := bits.Div64(hi, lo, 1e6)
	if r > 0 {
		q++
	}
	return USD(min(q, math.MaxInt64))
}

// An Amount is the usage of calls as budgets count it.
type Amount struct {
	USD    USD   `json:"usd"`
	Tokens int64 `json:"tokens"`
	Calls  int64 `json:"calls"`
}

// Plus returns a+b; fields that would overflow are math.MaxInt64.
func (a Amount) Plus(b Amount) Amount {
	return Amount{addSat(a.USD, b.USD), addSat(a.Tokens, b.Tokens), addSat(a.Calls, b.Calls)}
}

// Minus returns a-b; the results may be negative.
func (a Amount) Minus(b Amount) Amount {
	return Amount{a.USD - b.USD, a.Tokens - b.Tokens, a.Calls - b.Calls}
}

// Covers reports whether every field of a is at least that of b.
func (a Amount) Covers(b Amount) bool {
	return a.USD >= b.USD && a.Tokens >= b.Tokens && a.Calls >= b.Calls
}

// Min returns the smaller value of each field.
func (a Amount) Min(b Amount) Amount {
	return Amount{min(a.USD, b.USD), min(a.Tokens, b.Tokens), min(a.Calls, b.Calls)}
}

// NonNegative returns a with negative values replaced by 0.
func (a Amount) NonNegative() Amount {
	return Amount{max(a.USD, 0), max(a.Tokens, 0), max(a.Calls, 0)}
}

// IsZero reports whether all fields of a are 0.
func (a Amount) IsZero() bool { return a == Amount{} }

// addSat returns a+b, or math.MaxInt64 if that overflows. It does not detect an overflow below math.MinInt64.
func addSat[T ~int64](a, b T) T {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Limits bounds the usage of calls. A field that is nil is no limit; 0 allows nothing.
type Limits struct {
	USD    *USD   `json:"usd,omitempty" yaml:"usd"`
	Tokens *int64 `json:"tokens,omitempty" yaml:"tokens"`
	Calls  *int64 `json:"calls,omitempty" yaml:"calls"`
}

// IsZero reports whether l has no limit.
func (l Limits) IsZero() bool { return l == Limits{} }

// Plus returns l with more added to each limit. Fields without a limit stay without one.
func (l Limits) Plus(more Amount) Limits {
	return Limits{addToLimit(l.USD, more.USD), addToLimit(l.Tokens, more.Tokens), addToLimit(l.Calls, more.Calls)}
}

// addToLimit returns limit plus more; nil, which means no limit, stays nil.
func addToLimit[T ~int64](limit *T, more T) *T {
	if limit == nil || more == 0 {
		return limit
	}
	return new(addSat(*limit, more))
}

// Left returns how much of the limits is left after the usage used: at least 0, and math.MaxInt64 for fields without a limit.
func (l Limits) Left(used Amount) Amount {
	return Amount{remaining(l.USD, used.USD), remaining(l.Tokens, used.Tokens), remaining(l.Calls, used.Calls)}
}

// remaining returns limit minus used, at least 0; math.MaxInt64 if limit is nil, which means no limit.
func remaining[T ~int64](limit *T, used T) T {
	if limit == nil {
		return math.MaxInt64
	}
	return max(0, *limit-used)
}
