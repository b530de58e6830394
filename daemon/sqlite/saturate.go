package sqlite

import (
	"math"
	"strings"
)

// maxSum is the limit of sums of amounts: nine billion dollars. maxSumSQL is the same number in SQL. SQLite converts an
// overflowing sum of integers to a REAL, which no column accepts, or returns an error, so without the limit a single row with
// an absurdly large number would make the whole ledger unusable.
const (
	maxSum    = int64(9e18)
	maxSumSQL = `9000000000000000000`
)

// clampedSQL returns an expression for e, limited to the range of -maxSum to maxSum.
func clampedSQL(e string) string {
	return `max(min(` + e + `, ` + maxSumSQL + `), -` + maxSumSQL + `)`
}

// upsertSums returns the assignments of an upsert that add the inserted values to the stored ones.
func upsertSums(columns ...string) string {
	var set []string
	for _, c := range columns {
		set = append(set, c+` = `+clampedSQL(c+` + excluded.`+c))
	}
	return strings.Join(set, `, `)
}

// sumSQL returns an expression for the sum of e over all rows, where e is not negative; without rows it is 0. The high
// and low halves of the numbers are summed separately, because sum() fails when it overflows and total() alone is not
// exact.
func sumSQL(e string) string {
	return `CASE WHEN total(` + e + `) >= ` + maxSumSQL + ` THEN ` + maxSumSQL +
		` ELSE coalesce(sum((` + e + `) >> 32) * 4294967296 + sum((` + e + `) & 4294967295), 0) END`
}

// clampSum limits n to the range that can be stored as a sum.
func clampSum(n int64) int64 { return min(max(n, -maxSum), maxSum) }

// saturatingAdd returns a+b, limited to maxSum. Neither may be negative.
func saturatingAdd(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return maxSum
	}
	return min(a+b, maxSum)
}
