package gvisor

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// volume returns a directory with the owner and mode of a volume, and its mount at /workspace.
func volume(t *testing.T) (string, caisson.RuntimeMount) {
	t.Helper()
	dir, mount := mountDir(t, "/workspace")
	chown(t, testUIDBase, testUIDBase, dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, mount
}

// TestVolumeOwners checks that in a volume, all users of a guest can own files, that the owners are the same in the next
// sandbox, and that the host's root is seen as nobody.
func TestVolumeOwners(t *testing.T) {
	t.Parallel()
	r := open(t)
	dir, mount := volume(t)
	roots := filepath.Join(dir, "roots")
	if err := os.WriteFile(roots, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	begin := func() caisson.ID {
		id := caisson.NewID(caisson.SandboxPrefix)
		spec := newSpec(t, r, id)
		spec.Mounts = []caisson.RuntimeMount{mount}
		create(t, r, id, spec)
		return id
	}
	for i, round := range [][]struct{ user, script, want string }{{
		{"", "stat -c '%u %g %a' .", "0 0 755"},
		{"", "echo a > of0 && stat -c '%u %g' of0", "0 0"},
		{"", "install -d -o 1000 -g 1001 -m 700 home && stat -c '%u %g %a' home", "1000 1001 700"},
		{"1000:1001", "echo b > home/f && stat -c '%u %g' home/f && cat home/f", "1000 1001\nb"},
		{"1000:1001", "echo c 2>/dev/null > of0 || echo refused", "refused"},
		{"", "touch last && chown 65533:65533 last && stat -c '%u %g' last", "65533 65533"},
		{"", "cat roots 2>/dev/null || true; stat -c '%u %g' roots", "65534 65534"},
		{"", "cp /bin/true suid && chmod 6755 suid && stat -c %a suid", "6755"},
		{"", "for k in 'c 1 3' 'b 7 0'; do mknod dev $k 2>/dev/null || echo refused; done", "refused\nrefused"},
		{"", "chown 1000:1001 . && chmod 700 .", ""},
	}, {
		// The directory now belongs to a user of the guest; it is still mounted without an owner mapping.
		{"", "stat -c '%u %g %a' .", "1000 1001 700"},
		{"1000:1001", "cat home/f && echo d > mine && stat -c %u mine", "b\n1000"},
		{"1002", "cat home/f 2>/dev/null || echo refused", "refused"},
		{"", "stat -c %u last of0", "65533\n0"},
	}} {
		id := begin()
		for _, c := range round {
			if out := strings.TrimSpace(as(t, r, id, c.user, "cd /workspace && "+c.script)); out != c.want {
				t.Errorf("sandbox %d: %q of user %q says %q, want %q", i, c.script, c.user, out, c.want)
			}
		}
		if err := r.Destroy(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string][2]uint32{
		".": {1000, 1001}, "of0": {0, 0}, "home/f": {1000, 1001}, "last": {65533, 65533}, "suid": {0, 0},
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil || st.Uid != testUIDBase+want[0] || st.Gid != testUIDBase+want[1] {
			t.Errorf("on the host %s is %d:%d's, %v; want the guest's %v", name, st.Uid, st.Gid, err, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(roots, &st); err != nil || st.Uid != 0 || st.Mode&0o7777 != 0o600 {
		t.Errorf("the host's root's file has become %d's, mode %o, %v", st.Uid, st.Mode, err)
	}
}

// as runs a script as a user ("" is root) and returns its output.
func as(t *testing.T, r *Runtime, id caisson.ID, user, script string) string {
	t.Helper()
	p, err := r.Exec(t.Context(), id, caisson.RuntimeExec{Command: []string{"/bin/bash", "-c", script}, User: user, Env: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestOwnerMap checks which directories are mounted with an owner mapping and which without.
func TestOwnerMap(t *testing.T) {
	t.Parallel()
	r := open(t)
	const base, next = testUIDBase, testUIDBase + caisson.UIDRange
	for name, c := range map[string]struct {
		uid, gid int
		mapped   bool
		kind     caisson.Kind
	}{
		"the guest root's":             {base, base, false, ""},
		"a guest user's":               {base + 1000, base + 1001, false, ""},
		"the last one's":               {next - 1, next - 1, false, ""},
		"another account's":            {next, next, true, ""},
		"another account's group":      {base, next, true, ""},
		"below the range":              {base - 1, base, true, ""},
		"a user's, with guest's group": {1000, base, true, ""},
		"a guest's, with a user's":     {base, 1000, true, ""},
		"a guest's, with root's group": {base, 0, false, caisson.Invalid},
		"root's, with the guest's":     {0, base, false, caisson.Invalid},
	} {
		dir, mount := mountDir(t, "/workspace")
		chown(t, c.uid, c.gid, dir)
		f, err := r.launcher.ownerMap(mount, base)
		if caisson.KindOf(err) != c.kind && (err != nil || c.kind != "") || (f != nil) != c.mapped {
			t.Errorf("%s: mapped %v, %v; want %v, %q", name, f != nil, err, c.mapped, c.kind)
		}
		if f != nil {
			f.Close()
		}
	}
}

// TestVolumeForks restores a snapshot that was taken with an empty workspace, with a volume in its place, and pauses the result.
func TestVolumeForks(t *testing.T) {
	t.Parallel()
	r := open(t)
	empty := newWorkspace(t, t.TempDir(), 1000, 1000)
	script := `cd /workspace; exec 3<.
while :; do if test -e task && ! test -e answer; then cat task > answer.new; pwd >> answer.new; mv answer.new answer; fi; echo tick > /root/tick; sleep 0.02; done`
	command := []string{"/bin/bash", "-c", script}
	id, _ := inWorkspace(t, r, command, empty.mount)
	poll.Until(t, 2*time.Minute, func() bool { out, _ := run(t, r, id, "/bin/cat", "/root/tick"); return out == "tick\n" })
	image := t.TempDir()
	if err := r.Checkpoint(t.Context(), id, image, true); err != nil {
		t.Fatal(err)
	}
	dir, mount := volume(t)
	hostFile(t, filepath.Join(dir, "task"), "do it\n", testUIDBase+1000, testUIDBase+1000, 0o644)
	fork := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, fork)
	spec.Mounts, spec.Command = []caisson.RuntimeMount{mount}, command
	if err := r.Restore(t.Context(), fork, spec, image); err != nil {
		t.Fatal(err)
	}
	answered := func() bool { _, err := os.Stat(filepath.Join(dir, "answer")); return err == nil }
	poll.Until(t, 2*time.Minute, answered)
	if got := readFile(t, filepath.Join(dir, "answer")); got != "do it\n/workspace\n" {
		t.Errorf("a process that was there before says %q", got)
	}
	if got := as(t, r, fork, "1000", "stat -c %u /workspace/task; echo more >> /workspace/task; tail -1 /workspace/task"); got != "1000\nmore\n" {
		t.Errorf("in the fork: %q", got)
	}
	image = t.TempDir()
	if err := r.Checkpoint(t.Context(), fork, image, false); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(t.Context(), fork); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "answer")); err != nil {
		t.Fatal(err)
	}
	if err := r.Restore(t.Context(), fork, spec, image); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, 2*time.Minute, answered)
	if got := readFile(t, filepath.Join(dir, "answer")); got != "do it\nmore\n/workspace\n" {
		t.Errorf("after a pause: %q", got)
	}
}
