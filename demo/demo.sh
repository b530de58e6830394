#!/usr/bin/env bash
# A demonstration that needs no account anywhere: an agent fixes a small repository in a sandbox, and three promises are put to the
# test. With OPENAI_API_KEY or ANTHROPIC_API_KEY in the environment a real model does it; else one that follows a script.
#
#   demo/demo.sh [path of the caisson binary]
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${1:-bin/caisson}")
if [ "$(id -u)" != 0 ]; then
	echo "Sandboxes are made by root; asking sudo." >&2
	exec sudo --preserve-env=OPENAI_API_KEY,ANTHROPIC_API_KEY,CAISSON_DEMO_MODEL "$0" "$bin"
fi

dir=$(mktemp -dt caisson-demo.XXXXXX)
export CAISSON_CONFIG=$dir/config.yaml CAISSON_DATA=$dir/data
unset CAISSON_HOST CAISSON_TOKEN CAISSON_ACCOUNT
caisson() { "$bin" "$@"; }
finish() {
	status=$?
	if [ -n "${daemon:-}" ]; then
		kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null || true
	fi
	if [ $status != 0 ]; then
		echo "The demonstration failed; what the daemon said last is:" >&2
		tail -n 20 "$dir/daemon.log" >&2 || true
	fi
	rm -rf "$dir"
	exit $status
}
trap finish EXIT

if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
fail() { printf 'NOT KEPT: %s\n' "$*" >&2; exit 1; }

say "A small repository with a failing test"
cp -r guest/coder/sample/repo "$dir/project"
if sh "$dir/project/test.sh"; then fail "the sample's test was to fail"; fi
before=$(find "$dir/project" -type f -exec sha256sum {} + | sort | sha256sum)

# The provider and its key. Without one, the model follows a script; a key that looks like one is kept all the same, to be looked for.
key=sk-demo-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
provider="{name: demo, kind: scripted, script: $PWD/guest/coder/sample/script.yaml}"
model="{alias: demo, provider: demo, free: true}"
if [ -n "${OPENAI_API_KEY:-}" ]; then
	key=$OPENAI_API_KEY
	provider="{name: demo, kind: openai, baseURL: 'https://api.openai.com/v1', credential: DEMO_KEY}"
	model="{alias: demo, provider: demo, upstream: ${CAISSON_DEMO_MODEL:-gpt-4.1-mini}, output: 32000, prices: {input: 0.40, output: 1.60}}"
elif [ -n "${ANTHROPIC_API_KEY:-}" ]; then
	key=$ANTHROPIC_API_KEY
	provider="{name: demo, kind: anthropic, baseURL: 'https://api.anthropic.com', credential: DEMO_KEY}"
	model="{alias: demo, provider: demo, upstream: ${CAISSON_DEMO_MODEL:-claude-haiku-4-5}, output: 32000, prices: {input: 1, output: 5}}"
fi
unset OPENAI_API_KEY ANTHROPIC_API_KEY
cat >"$CAISSON_CONFIG" <<-EOF
	dataDir: $dir/data
	agentsDir: ""
	providers: [$provider]
	models: [$model]
EOF
"$bin" serve 2>"$dir/daemon.log" >/dev/null &
daemon=$!
for _ in $(seq 100); do
	[ -S "$dir/data/caisson.sock" ] && break
	kill -0 "$daemon" 2>/dev/null || exit 1
	sleep 0.1
done
printf '%s' "$key" | caisson credential set DEMO_KEY >/dev/null

say "The built-in agent fixes a copy of it, in a sandbox"
caisson run caisson -C "$dir/project" --model demo --max-cost 0.50 --keep "Fix the failing test."
run=$(caisson runs ls -q | head -n 1)

say "What happened"
caisson runs show "$run"

say "What it changed, as its sandbox says (the project itself is as it was)"
caisson runs show "$run" -o json | sed -n 's/^ *"patch": "\(.*\)",*$/\1/p' | sed 's/\\n/\n/g; s/\\t/\t/g; s/\\"/"/g'

say "What it cost, from the ledger"
caisson usage --by run

box=$(caisson runs show "$run" -o json | sed -n 's/^ *"sandbox": "\(sb-[a-z2-7]*\)",*$/\1/p' | head -n 1)
[ -n "$box" ] || fail "the sandbox of the run is not there any more"

say "Promise: no key is inside"
if caisson exec "$box" -- sh -c 'cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; cat /workspace/* /tmp/* /etc/* 2>/dev/null' | grep -aqF "$key"; then
	fail "the key was found in the sandbox"
fi
echo "kept: the key of the model is in no environment, argument or file of the sandbox"

say "Promise: there is no way out but what policy names, and nothing is named"
for target in 1.1.1.1:443 169.254.169.254:80 "$(hostname -I | awk '{print $1}'):22" 127.0.0.1:22; do
	if caisson exec "$box" -- timeout 5 bash -c "exec 3<>/dev/tcp/${target%:*}/${target##*:}" 2>/dev/null; then
		fail "$target can be reached"
	fi
	echo "kept: $target cannot be reached"
done
if caisson exec "$box" -- getent hosts example.com; then fail "example.com is resolved"; fi
echo "kept: example.com is not even resolved; this is why:"
caisson policy explain "$box" example.com:443

say "Promise: the host is untouched"
caisson exec "$box" -- sh -c 'echo owned > /etc/passwd; rm -rf /usr/bin/env /workspace/*' 2>/dev/null || true
after=$(find "$dir/project" -type f -exec sha256sum {} + | sort | sha256sum)
[ "$before" = "$after" ] || fail "the project has changed"
grep -q '^root:' /etc/passwd || fail "the host's /etc/passwd has changed"
[ -x /usr/bin/env ] || fail "a program of the host is gone"
echo "kept: the agent's sandbox wrote over its /etc/passwd and removed its files; the project and this host are as they were"

caisson sandbox rm "$box" >/dev/null
say "All kept. Next: $bin run --help, $bin agent ls, docs/agents.md"
