#!/bin/sh
# Runs a command on a busy machine: beside two loops that compute and one that writes to the disk and waits for it.
#
#	test/busy.sh make test COUNT=1
set -u
file=$(mktemp /var/tmp/busy.XXXXXX) # not in memory, as /tmp may be
sh -c 'while :; do :; done' &
one=$!
sh -c 'while :; do :; done' &
two=$!
sh -c 'while :; do dd if=/dev/zero of="$0" bs=1M count=256 conv=fsync 2>/dev/null; done' "$file" &
three=$!
trap 'kill $one $two $three 2>/dev/null; rm -f "$file"' EXIT
trap 'exit 130' INT TERM
"$@"
