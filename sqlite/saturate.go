package sqlite

import (
	"math"
	"strings"
)

// SQLite converts an overflowing sum of integers to a REAL, which no column accepts, or returns an error. One absurd
// row would then block the whole ledger, so sums of amounts are limited to 9e18, which is nine billion dollars.
const (
	mostSum    = int64(9e18)
	mostSumSQL = `9000000000000000000`
)

// atMost returns an expression for e, limited to the range of -mostSum to mostSum.
func atMost(e string) string {
	return `max(min(` + e + `, ` + mostSumSQL + `), -` + mostSumSQL + `)`
}

// added returns the assignments of an upsert that add the inserted values to the stored ones.
func added(columns ...string) string {
	var set []string
	for _, c := range columns {
		set = append(set, c+` = `+atMost(c+` + excluded.`+c))
	}
	return strings.Join(set, `, `)
}

// total returns an expression for the sum of e over all rows, where e is not negative; without rows it is 0. The high
// and low halves of the numbers are summed separately, because sum() fails when it overflows and total() alone is not
// exact.
func total(e string) string {
	return `CASE WHEN total(` + e + `) >= ` + mostSumSQL + ` THEN ` + mostSumSQL +
		` ELSE coalesce(sum((` + e + `) >> 32) * 4294967296 + sum((` + e + `) & 4294967295), 0) END`
}

// bound limits n to the range that can be stored as a sum.
func bound(n int64) int64 { return min(max(n, -mostSum), mostSum) }

// plus returns a+b, limited to mostSum. Neither may be negative.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return mostSum
	}
	return min(a+b, mostSum)
}
