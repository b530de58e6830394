package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestOverlayForks restores a snapshot that was taken with an empty workspace, each time with a different directory as the
// workspace. A process whose working directory is the workspace continues in the new directory.
func TestOverlayForks(t *testing.T) {
	t.Parallel()
	r := open(t)
	empty := newWorkspace(t, t.TempDir(), 1000, 1000)
	// The command waits in /workspace until a file "task" exists.
	script := `cd /workspace; exec 3<.
while :; do if test -e task && ! test -e answer; then cat task > answer.new; pwd >> answer.new; ls sub >> answer.new; mv answer.new answer; fi; echo tick > /root/tick; sleep 0.02; done`
	id, _ := inWorkspace(t, r, []string{"/bin/bash", "-c", script}, empty.mount)
	ticks := func(id caisson.ID) bool {
		out, _ := run(t, r, id, "/bin/cat", "/root/tick")
		return strings.HasPrefix(out, "tick")
	}
	poll.Until(t, 2*time.Minute, func() bool { return ticks(id) })
	image := t.TempDir()
	if err := r.Checkpoint(t.Context(), id, image, true); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	hosts, forks, spaces, specs := map[string]string{}, []caisson.ID{}, []*workspace{}, []caisson.RuntimeSpec{}
	for i := range 2 {
		host := t.TempDir()
		hostFile(t, filepath.Join(host, "task"), fmt.Sprintf("task %d\n", i), 1000+i, 1000+i, 0o640)
		hostFile(t, filepath.Join(host, "sub", fmt.Sprint("file", i)), "", 1000+i, 1000+i, 0o644)
		chown(t, 1000+i, 1000+i, filepath.Join(host, "sub"))
		w := newWorkspace(t, host, 1000+i, 1000+i)
		hosts[host] = fingerprint(t, host)
		fork := caisson.NewID(caisson.SandboxPrefix)
		spec := newSpec(t, r, fork)
		spec.Mounts = []caisson.RuntimeMount{w.mount}
		spec.Command = []string{"/bin/bash", "-c", script}
		if err := r.Restore(t.Context(), fork, spec, image); err != nil {
			t.Fatalf("restore with the directory %d: %v", i, err)
		}
		forks, spaces, specs = append(forks, fork), append(spaces, w), append(specs, spec)
	}
	for i, fork := range forks {
		answer := filepath.Join(spaces[i].dir, "upper/answer")
		poll.Until(t, 2*time.Minute, func() bool { _, err := os.Stat(answer); return err == nil })
		if got, want := readFile(t, answer), fmt.Sprintf("task %d\n/workspace\nfile%d\n", i, i); got != want {
			t.Errorf("in fork %d, a process that was there before says %q, want %q", i, got, want)
		}
		if got := sh(t, r, fork, "cat task && ls -A /proc/2/cwd/ /proc/2/fd/3/"); !strings.HasPrefix(got, fmt.Sprint("task ", i)) || strings.Count(got, "answer") != 2 {
			t.Errorf("in fork %d: %q", i, got)
		}
		sh(t, r, fork, "echo changed > task; rm -r sub")
	}
	for host, before := range hosts {
		if after := fingerprint(t, host); after != before {
			t.Errorf("the host's directory was\n%s\nand is\n%s", before, after)
		}
	}
	// The same holds for forks of forks and after pauses of them.
	image = t.TempDir()
	if err := r.Checkpoint(t.Context(), forks[0], image, false); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(t.Context(), forks[0]); err != nil {
		t.Fatal(err)
	}
	if err := r.Restore(t.Context(), forks[0], specs[0], image); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, r, forks[0], "cat task"); got != "changed" {
		t.Errorf("after a pause: %q", got)
	}
}

// TestOverlayForkWithoutFiles checks that a restore fails if a file that a process has open is missing in the new directory.
func TestOverlayForkWithoutFiles(t *testing.T) {
	t.Parallel()
	r := open(t)
	host := t.TempDir()
	hostFile(t, filepath.Join(host, "file"), "x", 1000, 1000, 0o644)
	w := newWorkspace(t, host, 1000, 1000)
	command := []string{"/bin/bash", "-c", "exec 3</workspace/file; echo up > /root/tick; exec sleep 1000"}
	id, _ := inWorkspace(t, r, command, w.mount)
	poll.Until(t, 2*time.Minute, func() bool { out, _ := run(t, r, id, "/bin/cat", "/root/tick"); return out == "up\n" })
	image := t.TempDir()
	if err := r.Checkpoint(t.Context(), id, image, true); err != nil {
		t.Fatal(err)
	}
	fork := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, fork)
	spec.Mounts, spec.Command = []caisson.RuntimeMount{newWorkspace(t, t.TempDir(), 1000, 1000).mount}, command
	if err := r.Restore(t.Context(), fork, spec, image); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("a restore without a file that is open: %v", err)
	}
	wantNothing(t, r, fork, spec)
}
