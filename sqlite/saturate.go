package sqlite

import (
	"math"
	"strings"
)

// SQLite makes a sum of integers that overflows a REAL, which no column takes, or fails. One absurd row would stop the whole
// ledger then, so sums of amounts stop at a bound instead: nine billion dollars.
const (
	mostSum    = int64(9e18)
	mostSumSQL = `9000000000000000000`
)

// atMost returns an expression that is e, but never beyond the bound.
func atMost(e string) string {
	return `max(min(` + e + `, ` + mostSumSQL + `), -` + mostSumSQL + `)`
}

// added returns what an upsert sets columns to: what was there and what is inserted.
func added(columns ...string) string {
	var set []string
	for _, c := range columns {
		set = append(set, c+` = `+atMost(c+` + excluded.`+c))
	}
	return strings.Join(set, `, `)
}

// total returns an expression that sums up e, which is not negative, over all rows; without rows it is 0. The halves of the
// numbers are summed up apart, because sum() fails when it overflows, and total() alone is not exact.
func total(e string) string {
	return `CASE WHEN total(` + e + `) >= ` + mostSumSQL + ` THEN ` + mostSumSQL +
		` ELSE coalesce(sum((` + e + `) >> 32) * 4294967296 + sum((` + e + `) & 4294967295), 0) END`
}

// bound puts n within what may be stored as a sum.
func bound(n int64) int64 { return min(max(n, -mostSum), mostSum) }

// plus returns a+b, neither negative, but never beyond the bound.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return mostSum
	}
	return min(a+b, mostSum)
}
