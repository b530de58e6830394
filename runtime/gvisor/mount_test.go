package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// TestMountOwners checks that a directory's owner is mapped to the guest's root and the host's root to nobody.
func TestMountOwners(t *testing.T) {
	t.Parallel()
	r := open(t)
	dir, mount := mountDir(t, "/tmp/shared")
	for name, owner := range map[string]int{"users": 1000, "roots": 0, "others": 1001} {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(p, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	open := filepath.Join(dir, "open")
	if err := os.WriteFile(open, []byte("for all"), 0o644); err != nil {
		t.Fatal(err)
	}
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Mounts = []caisson.RuntimeMount{mount}
	create(t, r, id, spec)
	for _, c := range []struct{ script, want string }{
		{"stat -c '%u %g %a' users", "0 0 600"},
		{"stat -c '%u %g %a' roots", "65534 65534 600"},
		{"cat users", "secret"},
		{"cat roots 2>/dev/null || echo refused", "refused"},
		{"cat others 2>/dev/null || echo refused", "refused"},
		// gVisor reports success for these, but they have no effect.
		{"chmod 644 roots 2>/dev/null; stat -c %a roots", "600"},
		{"chown 0:0 roots 2>/dev/null; stat -c %u roots", "65534"},
		{"cat open", "for all"},
		{"echo x 2>/dev/null >> open || echo refused", "refused"},
		{"cp /bin/true made && chmod 4755 made && stat -c '%u %a' made", "0 4755"},
		{"chown 65534 made 2>/dev/null; stat -c %u made", "0"},
		{"mknod dev c 1 3 2>/dev/null || echo refused", "refused"},
	} {
		if out, _ := run(t, r, id, "/bin/bash", "-c", "cd /tmp/shared && "+c.script); strings.TrimSpace(out) != c.want {
			t.Errorf("%q says %q, want %q", c.script, out, c.want)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "roots"), &st); err != nil || st.Uid != 0 || st.Mode&0o7777 != 0o600 {
		t.Errorf("the host's root's file has become %d's, mode %o, %v", st.Uid, st.Mode, err)
	}
	if err := unix.Lstat(filepath.Join(dir, "made"), &st); err != nil || st.Uid != 1000 || st.Gid != 1000 {
		t.Errorf("what the guest's root made belongs to %d:%d, %v; want it to be the directory's owner's", st.Uid, st.Gid, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid == 0 && info.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice) != 0 {
			t.Errorf("%s is %v and root's", e.Name(), info.Mode())
		}
	}
}

func TestMountRefused(t *testing.T) {
	t.Parallel()
	r := open(t)
	for name, c := range map[string]struct{ uid, gid int }{"root": {0, 0}, "root's group": {1000, 0}, "root's user": {0, 1000}} {
		id := caisson.NewID(caisson.SandboxPrefix)
		spec := newSpec(t, r, id)
		dir, mount := mountDir(t, "/tmp/shared")
		if err := os.Chown(dir, c.uid, c.gid); err != nil {
			t.Fatal(err)
		}
		spec.Mounts = []caisson.RuntimeMount{mount}
		if err := r.Create(t.Context(), id, spec); caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "mounts" {
			t.Errorf("a writable mount of a directory of %s: %v", name, err)
		}
		wantNothing(t, r, id, spec)
	}
	// /proc does not support idmapped mounts.
	proc, err := os.Open(fmt.Sprintf("/proc/%d", userProcess(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Mounts = []caisson.RuntimeMount{{Source: proc, Target: "/tmp/shared"}}
	if err := r.Create(t.Context(), id, spec); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("a mount of a file system that cannot map owners: %v", err)
	}
	wantNothing(t, r, id, spec)
}

// userProcess starts a process of an unprivileged user.
func userProcess(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}
