package test_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// TestUpgrade tests that sandboxes, snapshots and warm agents go on with their memory under a daemon of another version, and under one whose
// gVisor is another, too, and that the programs of the first one go when nothing depends on them any more.
func TestUpgrade(t *testing.T) {
	testneed.Full(t, "builds two more binaries; TestOlderPrograms in daemon/sandboxes has the fake runtime")
	t.Parallel()
	builds := []string{buildMain(t, "v9.0.1", ""), buildMain(t, "v9.0.2", buildOtherSentry(t))}
	h := withCaller(newHost(t))
	h.configure("idleExit: 10m")
	h.agentsDir(map[string]string{"counter": counter})
	d := h.serve()
	const count = `i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.05; done`
	for _, name := range []string{"running", "paused", "suspended"} {
		h.ok("sandbox", "create", "--name", name)
		h.ok("exec", "-d", name, "--", "sh", "-c", count)
		poll.Until(t, settle, func() bool { return h.countOf(name) > 3 })
	}
	first := h.show("running").Build
	snapshot := h.ok("sandbox", "snapshot", "running", "--name", "kept")
	h.ok("agent", "warm", "counter")
	boot := h.succeeds("counter", "cat /tmp/boot").Result.Answer
	at := map[string]int{}
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
		if now := h.show(fmt.Sprint("new-", i)).Build; (now == first) != (i == 0) {
			t.Errorf("a new sandbox has the programs %s; those of the first build are %s", now, first)
		}
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
	if n := programs(); n != 2 {
		t.Errorf("there are %d sets of programs", n)
	}
	h.ok("agent", "warm", "counter")
	d.end()
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
