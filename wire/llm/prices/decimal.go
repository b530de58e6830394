package prices

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// perTokenShift is the decimal shift from dollars per token to billionths of a dollar per million tokens.
const perTokenShift = 6 + 9

// Errors of dollars. A message follows the number that is wrong.
var (
	errNumber   = errors.New("is not a decimal number")
	errNegative = errors.New("is negative")
	errTooHigh  = fmt.Errorf("is more than %s USD per million tokens; check its unit", maxPrice)
	errTooLow   = errors.New("is less than the smallest price; check its unit")
)

// dollars parses a decimal number and returns it times ten to the power of shift, rounded to the nearest integer. It uses decimal
// arithmetic only: 1.5e-07 per token is 0.15 per million, and 2.9999999999999997e-07, which a program has computed from 3e-07, is
// 0.3.
func dollars(s string, shift int) (caisson.USD, error) {
	digits, exponent, err := decimal(s)
	if err != nil {
		return 0, fmt.Errorf("%.40q %w", s, err)
	}
	if digits == "" {
		return 0, nil
	}
	whole := len(digits) + exponent + shift // number of digits before the decimal point
	switch {
	case whole > 18:
		return 0, fmt.Errorf("%.40q %w", s, errTooHigh)
	case whole < 0:
		return 0, fmt.Errorf("%.40q %w", s, errTooLow)
	}
	up := whole < len(digits) && digits[whole] >= '5'
	digits = (digits + strings.Repeat("0", max(0, whole-len(digits))))[:whole]
	var n int64
	if digits != "" {
		if n, err = strconv.ParseInt(digits, 10, 64); err != nil {
			return 0, fmt.Errorf("%.40q %w", s, errNumber)
		}
	}
	if up {
		n++
	}
	switch {
	case n == 0:
		return 0, fmt.Errorf("%.40q %w", s, errTooLow)
	case caisson.USD(n) > maxPrice:
		return 0, fmt.Errorf("%.40q %w", s, errTooHigh)
	}
	return caisson.USD(n), nil
}

// decimal splits the number s so that its value is digits times ten to the power of exponent. digits has no leading zeros and is
// empty if the value is zero.
func decimal(s string) (digits string, exponent int, err error) {
	if len(s) > 64 {
		return "", 0, errNumber
	}
	mantissa, exp, hasExp := strings.Cut(strings.ToLower(s), "e")
	if hasExp {
		if exponent, err = strconv.Atoi(exp); err != nil || exponent < -1000 || exponent > 1000 {
			return "", 0, errNumber
		}
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, frac, hasPoint := strings.Cut(mantissa, ".")
	if whole == "" || hasPoint && frac == "" || strings.Trim(whole+frac, "0123456789") != "" {
		return "", 0, errNumber
	}
	digits = strings.TrimLeft(whole+frac, "0")
	if negative && digits != "" {
		return "", 0, errNegative
	}
	return digits, exponent - len(frac), nil
}
