package test_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// count starts a program that counts in memory and writes its number to /tmp/count.
func (h *host) count(sandbox string) {
	h.t.Helper()
	h.ok("exec", "-d", sandbox, "--", "/.caisson/inside", "test", "counter", "/tmp/count")
	poll.Until(h.t, settle, func() bool { return h.run("exec", sandbox, "--", "test", "-s", "/tmp/count").code == 0 })
}

func (h *host) counted(sandbox string) int {
	h.t.Helper()
	n, err := strconv.Atoi(h.ok("exec", sandbox, "--", "cat", "/tmp/count"))
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// countsOn waits until the counting program has exceeded n.
func (h *host) countsOn(sandbox string, n int) {
	h.t.Helper()
	poll.Until(h.t, settle, func() bool { return h.counted(sandbox) > n })
}

// stopCount kills the counting program and returns its last number.
func (h *host) stopCount(sandbox string) int {
	h.t.Helper()
	h.ok("sandbox", "kill", "-s", "KILL", sandbox, "--", "-1")
	return h.counted(sandbox)
}

// TestPromise6ForkContinuesMemoryAndDiffers tests that a number that exists only in the memory of a program continues
// in forks, which then count independently.
func TestPromise6ForkContinuesMemoryAndDiffers(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "parent", "host")
	h.count("parent")
	h.countsOn("parent", 20)
	before := h.counted("parent")
	h.ok("sandbox", "snapshot", "--name", "snap", "parent")
	after := h.stopCount("parent")
	h.ok("sandbox", "fork", "--name", "one", "snap")
	h.ok("sandbox", "fork", "--name", "two", "snap")
	h.countsOn("one", before)
	h.countsOn("two", before)
	// A program that had been restarted would be far below the parent's number.
	h.countsOn("one", after+50)
	one := h.stopCount("one")
	h.countsOn("two", one)
	if parent := h.counted("parent"); parent != after {
		t.Errorf("the parent's number went from %d to %d after it had ended: a fork wrote it", after, parent)
	}
	if again := h.counted("one"); again != one {
		t.Errorf("the first fork's number went from %d to %d after it had ended: the second wrote it", one, again)
	}
}

// TestPromise6ForkSharesNothingWritable tests that parent and forks that write the same paths, in every writable place,
// see only their own files.
func TestPromise6ForkSharesNothingWritable(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "parent", "host")
	places := []string{"/file", "/root/file", "/tmp/file", "/dev/shm/file", "/etc/passwd", "/usr/bin/env", "/dev/file"}
	script := func(who string) string {
		s := ""
		for _, p := range places {
			s += "echo " + who + " > " + p + "; "
		}
		return s + "mkdir -p /var/dir && echo " + who + " > /var/dir/" + who
	}
	h.sh("parent", script("before"))
	h.ok("sandbox", "fork", "-n", "2", "--name", "fork", "parent")
	h.ok("sandbox", "snapshot", "--no-memory", "--name", "files", "parent")
	h.ok("sandbox", "fork", "--name", "cold", "files")
	for _, p := range places[:3] {
		if got := h.ok("exec", "fork-1", "--", "cat", p); got != "before" {
			t.Errorf("%s in a fork holds %q", p, got)
		}
	}
	all := []string{"parent", "fork-1", "fork-2", "cold"}
	for _, who := range all {
		h.sh(who, script(who))
	}
	for _, who := range all {
		for _, p := range places {
			if got := h.ok("exec", who, "--", "cat", p); got != who {
				t.Errorf("%s: %s holds what %q wrote", who, p, got)
			}
		}
		for _, other := range all {
			if other != who && h.run("exec", who, "--", "test", "-e", "/var/dir/"+other).code == 0 {
				t.Errorf("%s sees what %s made", who, other)
			}
		}
	}
	// Files removed in one sandbox still exist in the others.
	h.sh("fork-1", "rm -rf /var/dir /usr/bin/env")
	if got := h.sh("parent", "cat /var/dir/parent /usr/bin/env"); got != "parent\nparent" {
		t.Errorf("the parent has %q left after its fork removed files", got)
	}
}

// drawsKeys generates random data with OpenSSL, and again on request.
const drawsKeys = `const crypto = require('crypto'), fs = require('fs');
const draw = () => crypto.randomBytes(16).toString('hex') + crypto.generateKeyPairSync('ed25519').privateKey.export({type: 'pkcs8', format: 'der'}).toString('hex');
draw();
fs.writeFileSync('/tmp/ready', 'ready');
setInterval(() => {
  if (!fs.existsSync('/tmp/go') || fs.existsSync('/tmp/drawn')) return;
  fs.writeFileSync('/tmp/part', draw());
  fs.renameSync('/tmp/part', '/tmp/drawn');
}, 20);
`

// TestPromise11UserForks tests that a program that continues in several forks generates different keys in each, unless
// the user allows otherwise; programs that would not are named.
func TestPromise11UserForks(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/usr/bin/node"); err != nil {
		testneed.Skip(t, "node", "the host's template shows what is in /usr, and Node is not there: "+err.Error())
	}
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "parent", "host")
	h.ok("cp", h.write("draw.cjs", drawsKeys), "parent:/tmp/draw.cjs")
	h.ok("exec", "-d", "parent", "--", "node", "/tmp/draw.cjs")
	h.ok("exec", "-d", "parent", "--", "perl", "-e", "sleep")
	drawn := func(sandbox, file string) (v string) {
		poll.Until(t, settle, func() bool {
			r := h.run("exec", sandbox, "--", "cat", "/tmp/"+file)
			v = strings.TrimSpace(r.stdout)
			return r.code == 0 && v != ""
		})
		return v
	}
	drawn("parent", "ready")
	h.ok("sandbox", "snapshot", "--name", "snap", "parent")
	seen := map[string]bool{}
	draw := func(sandbox string) {
		h.sh(sandbox, "touch /tmp/go")
		seen[drawn(sandbox, "drawn")] = true
	}
	const names = "node (crypto.randomUUID and crypto.randomInt, if used before), perl"
	if r := h.run("sandbox", "fork", "-n", "2", "--name", "own", "snap"); r.code != 0 || !strings.Contains(r.stderr, "in what was forked: "+names) {
		t.Errorf("fork: %v", r)
	}
	if sb := h.show("own-1"); strings.Join(sb.SharedRandomness, ", ") != names {
		t.Errorf("a fork names %q", sb.SharedRandomness)
	}
	for _, sandbox := range []string{"parent", "own-1", "own-2"} {
		draw(sandbox)
	}
	if len(seen) != 3 {
		t.Errorf("a sandbox and its two forks have drawn %d different keys", len(seen))
	}
	if r := h.run("sandbox", "fork", "-n", "2", "--name", "same", "--keep-randomness", "snap"); r.code != 0 || !strings.Contains(r.stderr, "in what was forked: node, perl") {
		t.Errorf("fork: %v", r)
	}
	draw("same-1")
	draw("same-2")
	if len(seen) != 3 {
		t.Errorf("forks that keep their random state have drawn other keys than what was forked: %d in all", len(seen))
	}
}

// TestPromise6ForkHasItsOwnIdentity tests that a fork has its own machine identity and outlives its parent.
func TestPromise6ForkHasItsOwnIdentity(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "parent", "host")
	h.ok("sandbox", "snapshot", "--name", "snap", "parent")
	h.ok("sandbox", "fork", "--name", "one", "snap")
	h.ok("sandbox", "fork", "--name", "two", "snap")
	seen := map[string]string{}
	for _, who := range []string{"parent", "one", "two"} {
		id := string(h.show(who).ID)
		if names := h.sh(who, "hostname; cat /etc/hostname"); names != id+"\n"+id {
			t.Errorf("%s has the id %s and the host names %q", who, id, names)
		}
		for _, v := range []string{id, h.ok("exec", who, "--", "cat", "/etc/machine-id")} {
			if other := seen[v]; other != "" {
				t.Errorf("%s and %s are both %s", who, other, v)
			}
			seen[v] = who
		}
	}
	if p := h.show("one").Parent; p != shows[caisson.Snapshot](h, "snapshot", "show", "snap").ID {
		t.Errorf("the fork's parent is %q", p)
	}
	h.ok("snapshot", "rm", "snap")
	h.ok("sandbox", "rm", "parent")
	for _, who := range []string{"one", "two"} {
		h.sh(who, "ls -R /usr/share > /dev/null; echo alive")
		h.ok("sandbox", "pause", who)
		h.ok("sandbox", "resume", who)
		h.sh(who, "echo alive")
	}
}
