#!/bin/sh
# Runs the tests; exits with 1 if one fails.
cd "$(dirname "$0")" || exit 1
failed=0
while read -r number want; do
	got=$(sh roman.sh "$number")
	if [ "$got" != "$want" ]; then
		echo "FAIL: $number is $got, not $want"
		failed=1
	fi
done <<CASES
1 I
4 IV
9 IX
44 XLIV
1994 MCMXCIV
3999 MMMCMXCIX
CASES
[ "$failed" = 0 ] && echo "all tests passed"
exit "$failed"
