#!/bin/sh
# Prints a number from 1 to 3999 in Roman numerals.
number=$1
numeral=
while read -r value letters; do
	while [ "$number" -ge "$value" ]; do
		numeral=$numeral$letters
		number=$((number - value))
	done
done <<TABLE
1000 M
900 CM
500 D
400 CD
100 C
90 XC
50 L
40 XL
10 X
9 IX
5 V
1 I
TABLE
echo "$numeral"
