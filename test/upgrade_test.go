package test_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testbin"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// counter is an agent whose service counts in memory, and whose runs say which boot of the service they found.
const counter = "image: host\ndriver: exec\ncommand: [/bin/sh, -c, '{prompt}']\nmemory: true\nmodels: ['-']\n" +
	"service: [/bin/sh, -c, 'boot=$(cat /proc/sys/kernel/random/uuid); while :; do echo $boot > /tmp/boot; sleep 0.1; done']\n" +
	"warm: {prompt: echo warm, randomness: openssl}\n"

// released is the commit of the released version v0.1.0, for clones without tags.
const released = "528076a00fd9b6053f3690d1ad0b7f8b6975005c"

// TestUpgrade tests that sandboxes, snapshots and warm agents of the released version go on with their memory under a daemon of this one, and
// under one whose gVisor is another, too, that the released version refuses the data directory then, and that programs go when nothing depends on
// them any more.
func TestUpgrade(t *testing.T) {
	testneed.Full(t, "builds three more binaries; TestOlderPrograms in daemon/sandboxes has the fake runtime")
	t.Parallel()
	old := buildReleased(t) // Builds are made before the host, which uses them when the test ends.
	builds := []string{buildMain(t, "v9.0.1", ""), buildMain(t, "v9.0.2", buildOtherSentry(t))}
	h := withCaller(newHost(t))
	h.bin = old
	h.configure("idleExit: 10m")
	h.agentsDir(map[string]string{"counter": counter})
	d := h.serve()
	if v := h.ok("version"); !strings.Contains(v, "v0.1.0") {
		t.Fatalf("the released version is %s", v)
	}
	const count = `i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.05; done`
	for _, name := range []string{"running", "paused", "suspended"} {
		h.ok("sandbox", "create", "--name", name)
		h.ok("exec", "-d", name, "--", "sh", "-c", count)
		poll.Until(t, settle, func() bool { return h.countOf(name) > 3 })
	}
	first := h.show("running").Build
	snapshot := h.ok("sandbox", "snapshot", "running", "--name", "kept")
	var boot string
	// On a busy machine the released version may end the service with the run that warms it up, and forks of that snapshot start it again.
	poll.Until(t, settle, func() bool {
		h.ok("agent", "warm", "counter")
		boot = h.succeeds("counter", "cat /tmp/boot").Result.Answer
		return h.succeeds("counter", "cat /tmp/boot").Result.Answer == boot
	})
	at, sets := map[string]int{}, []string{first} // sets are the programs of each version.
	for i, bin := range builds {
		for _, name := range []string{"running", "paused", "suspended"} {
			at[name] = h.countOf(name)
		}
		h.ok("sandbox", "pause", "paused")
		h.ok("sandbox", "suspend", "suspended")
		d.end()
		h.bin = bin
		d = h.serve()
		if v := h.ok("version"); !strings.Contains(v, "v9.0."+strconv.Itoa(i+1)) {
			t.Fatalf("the version is %s", v)
		}
		h.ok("sandbox", "resume", "paused")
		h.ok("sandbox", "wake", "suspended")
		fork := h.ok("sandbox", "fork", "kept")
		at[fork] = 1
		for _, name := range []string{"running", "paused", "suspended", fork} {
			poll.Until(t, settle, func() bool { return h.countOf(name) > at[name] })
			if sb := h.show(name); sb.Build != first || sb.Reason != "" {
				t.Errorf("under %s %s has the programs %s, not %s: %s", filepath.Base(bin), name, sb.Build, first, sb.Reason)
			}
		}
		h.ok("sandbox", "rm", fork)
		r := h.succeeds("counter", "cat /tmp/boot")
		if !r.Result.Warm || r.Result.Answer != boot {
			t.Errorf("the run is warm: %t, of the boot %s, not %s", r.Result.Warm, r.Result.Answer, boot)
		}
		h.ok("sandbox", "create", "--name", fmt.Sprint("new-", i))
		// The programs of this version may still be those of the released one.
		now := h.show(fmt.Sprint("new-", i)).Build
		if i > 0 && slices.Contains(sets, now) {
			t.Errorf("a new sandbox under %s has the programs of an earlier version, %s", filepath.Base(bin), now)
		}
		sets = append(sets, now)
	}
	// After a stop and a start it has the programs of this build; what nothing depends on is removed by the next daemon.
	h.ok("sandbox", "stop", "running")
	h.ok("sandbox", "start", "running")
	if now := h.show("running").Build; now == first {
		t.Error("after a stop and a start a sandbox has the programs of another build")
	}
	for _, name := range []string{"paused", "suspended", "new-0"} {
		h.ok("sandbox", "rm", name)
	}
	h.ok("snapshot", "rm", snapshot)
	programs := func() (n int) {
		list, err := filepath.Glob(filepath.Join(h.data, "programs", "*", "manifest.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n := programs(); n != len(slices.Compact(sets)) {
		t.Errorf("there are %d sets of programs; the versions have %v", n, sets)
	}
	h.ok("agent", "warm", "counter")
	d.end()
	// The released version refuses what a later one has written, and changes nothing.
	h.bin = old
	if _, err := h.tryServe(); err == nil || !strings.Contains(err.Error(), "the data directory was written by a newer Caisson") {
		t.Errorf("the released version on a data directory of this one: %v", err)
	}
	h.bin = builds[1]
	d = h.serve()
	defer d.end()
	poll.Until(t, settle, func() bool { return programs() == 1 })
	for _, name := range []string{"running", "new-1"} {
		h.ok("sandbox", "rm", name)
	}
}

// countOf returns the number that the counter in a sandbox has reached.
func (h *modelHost) countOf(name string) int {
	h.t.Helper()
	n, _ := strconv.Atoi(strings.TrimSpace(h.sh(name, "cat /tmp/count"))) // "" while the file is written
	return n
}

// buildReleased builds the released version as its own Makefile does, from the tag or else its commit. It skips t if the repository has neither.
func buildReleased(t *testing.T) string {
	t.Helper()
	commit := ""
	for _, rev := range []string{"refs/tags/v0.1.0", released} {
		if exec.Command("git", "-C", "..", "cat-file", "-e", rev+"^{tree}").Run() == nil {
			commit = rev
			break
		}
	}
	if commit == "" {
		testneed.Skip(t, "release", "this clone has neither the tag v0.1.0 nor its commit "+released+"; run \"git fetch --unshallow --tags\"")
	}
	dir := t.TempDir()
	archive := filepath.Join(t.TempDir(), "released.tar")
	for _, args := range [][]string{
		{"git", "archive", "--format=tar", "-o", archive, commit},
		{"tar", "-C", dir, "-xf", archive},
		{"make", "-C", dir, "build", "VERSION=v0.1.0"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return filepath.Join(dir, "bin", "caisson")
}

// buildOtherSentry returns a build of the program for gVisor's processes whose content is another.
func buildOtherSentry(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sentry")
	goBuild(t, "-ldflags=-w", "-o", path, "./cmd/caisson-sentry") // with a table of symbols
	return path
}

// buildMain builds the main program with a version and, if it is not "", another sentry.
func buildMain(t *testing.T, version, sentry string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "caisson-"+version)
	bin, err := filepath.Abs("../internal/embedded/bin")
	if err != nil {
		t.Fatal(err)
	}
	pack, overlay := []string{"run", "-trimpath", "./internal/embedded/pack", dir}, map[string]string{}
	for _, name := range []string{"sentry", "guestd", "agent", "worker"} {
		program := testbin.Path(t, "caisson-"+name)
		if name == "sentry" && sentry != "" {
			program = sentry
		}
		pack = append(pack, name+"="+program)
		overlay[filepath.Join(bin, name+".zst")] = filepath.Join(dir, name+".zst")
	}
	goTool(t, pack...)
	replace, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), replace, 0o600); err != nil {
		t.Fatal(err)
	}
	goBuild(t, "-ldflags=-s -w -X main.release="+version, "-overlay="+filepath.Join(dir, "overlay.json"), "-o", path, "./cmd/caisson")
	return path
}

// goBuild runs go build as make does.
func goBuild(t *testing.T, args ...string) {
	t.Helper()
	goTool(t, append([]string{"build", "-trimpath", "-buildvcs=false"}, args...)...)
}

// goTool runs a command of Go's tool in the directory of the module.
func goTool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}
