package sqlite

import (
	"math"
	"strings"
)

// maxSum is the limit of the absolute value of sums of amounts; in billionths of a dollar it is nine billion dollars. maxSumSQL
// is the same number in SQL. Without the limit a single row with an absurdly large number would make the whole ledger unusable,
// because SQLite converts an overflowing sum of integers to a REAL, which no column accepts, or returns an error.
const (
	maxSum    = int64(9e18)
	maxSumSQL = `9000000000000000000`
)

// clampedSQL returns an SQL expression for the value of the expression e, limited to the range from -maxSum to maxSum.
func clampedSQL(e string) string {
	return `max(min(` + e + `, ` + maxSumSQL + `), -` + maxSumSQL + `)`
}

// upsertSums returns the assignments of an SQL upsert that add the inserted values of columns to the stored values, limited by
// maxSum.
func upsertSums(columns ...string) string {
	var set []string
	for _, c := range columns {
		set = append(set, c+` = `+clampedSQL(c+` + excluded.`+c))
	}
	return strings.Join(set, `, `)
}

// sumSQL returns an SQL expression for the sum of the expression e over all rows, limited by maxSum; without rows it is 0. The
// values of e must not be negative. The high and low halves of the numbers are summed separately, because sum() fails when it
// overflows and total() alone is not exact.
func sumSQL(e string) string {
	return `CASE WHEN total(` + e + `) >= ` + maxSumSQL + ` THEN ` + maxSumSQL +
		` ELSE coalesce(sum((` + e + `) >> 32) * 4294967296 + sum((` + e + `) & 4294967295), 0) END`
}

// clampSum limits n to the range from -maxSum to maxSum, which can be stored as a sum.
func clampSum(n int64) int64 { return min(max(n, -maxSum), maxSum) }

// saturatingAdd returns a+b, limited to maxSum. Neither a nor b may be negative.
func saturatingAdd(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return maxSum
	}
	return min(a+b, maxSum)
}
