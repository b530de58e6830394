package gvisor

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// workspace is a host directory with the layers of its overlay.
type workspace struct {
	host, dir string
	mount     caisson.RuntimeMount
}

// newWorkspace makes uid and gid the owner of the host directory and returns a workspace for it at /workspace.
func newWorkspace(t testing.TB, host string, uid, gid int) *workspace {
	t.Helper()
	w := &workspace{host: host, dir: t.TempDir()}
	chown(t, uid, gid, host)
	for _, name := range []string{"upper", "work", "mask"} {
		p := filepath.Join(w.dir, name)
		if err := os.Mkdir(p, 0o755); err != nil {
			t.Fatal(err)
		}
		chown(t, testUIDBase, testUIDBase, p)
	}
	w.mount = caisson.RuntimeMount{
		Source: openDir(t, host), Target: "/workspace",
		Overlay: &caisson.RuntimeOverlay{Upper: w.open(t, "upper"), Work: w.open(t, "work"), Mask: w.open(t, "mask")},
	}
	return w
}

func (w *workspace) open(t testing.TB, name string) *os.File {
	t.Helper()
	return openDir(t, filepath.Join(w.dir, name))
}

func openDir(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func chown(t testing.TB, uid, gid int, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if err := os.Lchown(p, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
}

// hostFile creates a file on the host with the given content, owner and mode.
func hostFile(t testing.TB, path, content string, uid, gid int, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	chown(t, uid, gid, path)
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// fingerprint describes all files of a tree on the host, without access times.
func fingerprint(t testing.TB, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(p, &st)
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(&out, p, st.Ino, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Mtim, st.Ctim)
		if d.Type().IsRegular() {
			data, err := os.ReadFile(p)
			fmt.Fprintf(&out, "%x %v\n", sha256.Sum256(data), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// inWorkspace creates a sandbox with the command and the mounts.
func inWorkspace(t *testing.T, r *Runtime, command []string, mounts ...caisson.RuntimeMount) (caisson.ID, caisson.RuntimeSpec) {
	t.Helper()
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Mounts, spec.Command = mounts, command
	create(t, r, id, spec)
	return id, spec
}

// sh runs a shell script in /workspace and returns its output.
func sh(t *testing.T, r *Runtime, id caisson.ID, script string) string {
	t.Helper()
	out, _ := run(t, r, id, "/bin/bash", "-c", "cd /workspace && "+script)
	return strings.TrimSpace(out)
}

// TestOverlay makes all kinds of changes in a workspace from inside, and checks that they are in the upper layer and not in the
// host directory.
func TestOverlay(t *testing.T) {
	t.Parallel()
	r := open(t)
	host := t.TempDir()
	at := func(name string) string { return filepath.Join(host, name) }
	hostFile(t, at("edit"), "old\n", 1000, 1000, 0o640)
	hostFile(t, at("private"), "own\n", 1000, 33, 0o600) // with a different group
	hostFile(t, at("gone"), "gone\n", 1000, 1000, 0o644)
	hostFile(t, at("from"), "moved\n", 1000, 1000, 0o644)
	hostFile(t, at("mode"), "mode\n", 1000, 1000, 0o644)
	hostFile(t, at("tree/leaf"), "leaf\n", 1000, 1000, 0o644)
	hostFile(t, at("gid0"), "root's group\n", 1000, 0, 0o660)
	hostFile(t, at("others"), "secret\n", 1001, 1001, 0o600)
	hostFile(t, at("others-open"), "open\n", 1001, 1001, 0o644)
	hostFile(t, at("roots"), "secret\n", 0, 0, 0o600)
	hostFile(t, at("roots-group"), "secret\n", 0, 0, 0o640)
	hostFile(t, at(".env"), "KEY=1\n", 1000, 1000, 0o644)
	hostFile(t, at("setuid"), "#!/bin/sh\n", 1000, 1000, 0o4755)
	chown(t, 1000, 1000, at("tree"))
	if err := os.Symlink("edit", at("link")); err != nil {
		t.Fatal(err)
	}
	chown(t, 1000, 1000, at("link"))
	w := newWorkspace(t, host, 1000, 1000)
	if err := unix.Mknod(filepath.Join(w.dir, "mask/.env"), unix.S_IFCHR, 0); err != nil {
		t.Fatal(err)
	}
	before := fingerprint(t, host)
	id, _ := inWorkspace(t, r, nil, w.mount)

	for _, c := range []struct{ script, want string }{
		{"stat -c '%u %g %a' . edit others-open roots gid0 private", "0 0 755\n0 0 640\n65534 1001 644\n65534 65534 600\n0 65534 660\n0 33 600"},
		{"cat edit private link", "old\nown\nold"},
		{"echo new >> edit; cat edit link", "old\nnew\nold\nnew"},
		{"echo more >> private && cat private", "own\nmore"},
		{"echo more >> gid0 && cat gid0", "root's group\nmore"},
		{"rm gone && ls gone 2>/dev/null || echo none", "none"},
		{"mv from to && cat to && ls from 2>/dev/null || echo none", "moved\nnone"},
		{"chmod 751 mode && stat -c %a mode", "751"},
		{"mkdir -p made/deep && echo x > made/deep/file && stat -c '%u %g' made/deep/file", "0 0"},
		{"rm -r tree && mkdir tree && ls tree | wc -l", "0"},
		{"mv made moved && cat moved/deep/file", "x"},
		{"ln -s /etc/passwd out && readlink out", "/etc/passwd"},
		{"ln edit hard && stat -c %h edit", "2"},
		{"cat others 2>/dev/null || echo refused", "refused"},
		{"cat roots 2>/dev/null || echo refused", "refused"},
		{"cat roots-group 2>/dev/null || echo refused", "refused"},
		{"cat others-open", "open"},
		{"(echo x >> others-open) 2>/dev/null || echo refused", "refused"},
		{"ls -a .env 2>/dev/null || echo none", "none"},
		{"echo own > .env && cat .env && rm .env && ls -a .env 2>/dev/null || echo none", "own\nnone"},
		{"mknod whiteout c 0 0 2>/dev/null || echo refused", "refused"},
		{"mknod null c 1 3 2>/dev/null || echo refused", "refused"},
		{"chown 1234:1234 to && stat -c '%u %g' to", "1234 1234"},
		{"touch -d @1000000000 to && stat -c %Y to", "1000000000"},
		{"truncate -s 50G sparse && stat -c %s sparse", "53687091200"},
		{"echo a > a; exec 3<a; echo b >> a; cat <&3", "a\nb"},
	} {
		if got := sh(t, r, id, c.script); got != c.want {
			t.Errorf("%q says %q, want %q", c.script, got, c.want)
		}
	}
	if after := fingerprint(t, host); after != before {
		t.Errorf("the host's directory was\n%s\nand is\n%s", before, after)
	}
	wantUpper(t, filepath.Join(w.dir, "upper"))
}

// wantUpper checks the upper layer after TestOverlay's changes.
func wantUpper(t *testing.T, upper string) {
	t.Helper()
	for name, want := range map[string]string{
		"edit": "100640 0 0", "gone": "20000", "from": "20000", "to": "100644 1234 1234", "mode": "100751 0 0", "tree": "40755 0 0",
		"moved/deep/file": "100644 0 0", "out": "120777 0 0", "private": "100600 0 33", "gid0": "100660 0 65534",
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(upper, name), &st); err != nil {
			t.Errorf("upper layer: %s: %v", name, err)
			continue
		}
		got := fmt.Sprintf("%o %d %d", st.Mode, int(st.Uid)-testUIDBase, int(st.Gid)-testUIDBase)
		if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
			got = fmt.Sprintf("%o", st.Mode)
		}
		if got != want {
			t.Errorf("upper layer: %s is %q, want %q", name, got, want)
		}
	}
	if got := xattrs(t, filepath.Join(upper, "tree")); !slices.Contains(got, "trusted.overlay.opaque=y") {
		t.Errorf("upper layer: a directory that was made anew has %q", got)
	}
	for _, name := range []string{"null", "whiteout"} {
		if _, err := os.Lstat(filepath.Join(upper, name)); !os.IsNotExist(err) {
			t.Errorf("upper layer: a device %s was made: %v", name, err)
		}
	}
}

// xattrs returns the extended attributes of a file as name=value.
func xattrs(t *testing.T, path string) (list []string) {
	t.Helper()
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil && name != "" {
			t.Fatalf("%s of %s: %v", name, path, err)
		}
		list = append(list, name+"="+string(value[:max(n, 0)]))
	}
	return list
}

// TestOverlayAttributes checks that extended attributes that a guest can set have no effect in the kernel, and that it cannot
// set those that have.
func TestOverlayAttributes(t *testing.T) {
	t.Parallel()
	r := open(t)
	host := t.TempDir()
	hostFile(t, filepath.Join(host, "dir/file"), "x", 1000, 1000, 0o644)
	chown(t, 1000, 1000, filepath.Join(host, "dir"))
	w := newWorkspace(t, host, 1000, 1000)
	id, _ := inWorkspace(t, r, nil, w.mount)
	for name, want := range map[string]string{
		"trusted.overlay.opaque": "refused", "trusted.overlay.redirect": "refused", "trusted.overlay.metacopy": "refused",
		"user.overlay.opaque": "set", "user.overlay.redirect": "set", "security.capability": "refused",
	} {
		script := fmt.Sprintf(`python3 -c "
import os
try:
    os.setxattr('dir', '%s', b'y'); print('set')
except OSError: print('refused')"`, name)
		got := sh(t, r, id, script)
		if got != want && !(want == "set" && got == "refused") {
			t.Errorf("setting %s: %q, want %q", name, got, want)
		}
		t.Log(name, got)
	}
	if got := sh(t, r, id, "ls dir"); got != "file" {
		t.Errorf("the directory has %q afterwards", got)
	}
	for _, a := range xattrs(t, filepath.Join(w.dir, "upper/dir")) {
		if strings.HasPrefix(a, "trusted.overlay.") && !strings.HasPrefix(a, "trusted.overlay.origin=") && !strings.HasPrefix(a, "trusted.overlay.impure=") {
			t.Errorf("upper layer: %q", a)
		}
	}
}

func TestOverlayOfRoot(t *testing.T) {
	t.Parallel()
	r := open(t)
	host := t.TempDir()
	hostFile(t, filepath.Join(host, "file"), "old", 0, 0, 0o600)
	w := newWorkspace(t, host, 0, 0)
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Mounts = []caisson.RuntimeMount{w.mount}
	if err := r.Create(t.Context(), id, spec); caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "workspace" {
		t.Errorf("a workspace of root's directory that root has not asked for: %v", err)
	}
	wantNothing(t, r, id, spec)
	w.mount.Overlay.Root = true
	create(t, r, id, spec)
	if got := sh(t, r, id, "echo new > file && stat -c '%u %g %a' file && cat file"); got != "0 0 600\nnew" {
		t.Errorf("root's file: %q", got)
	}
	if got := readFile(t, filepath.Join(host, "file")); got != "old" {
		t.Errorf("the host's file is %q", got)
	}
}

// TestOverlayRefused checks that a file system without support for idmapped mounts is refused as the lower layer, with an error
// that suggests an alternative.
func TestOverlayRefused(t *testing.T) {
	t.Parallel()
	r := open(t)
	w := newWorkspace(t, t.TempDir(), 1000, 1000)
	w.mount.Source = openDir(t, fmt.Sprintf("/proc/%d", userProcess(t)))
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Mounts = []caisson.RuntimeMount{w.mount}
	if err := r.Create(t.Context(), id, spec); caisson.KindOf(err) != caisson.Invalid || !strings.Contains(caisson.MessageOf(err), "use a copy") {
		t.Errorf("a workspace of /proc: %v", err)
	}
	wantNothing(t, r, id, spec)
	// The kernel refuses this only when the overlay is mounted.
	w = newWorkspace(t, t.TempDir(), 1000, 1000)
	w.mount.Overlay.Upper = openDir(t, "/proc/self/net")
	w.mount.Overlay.Work = openDir(t, "/proc/self/net/stat")
	spec.Mounts = []caisson.RuntimeMount{w.mount}
	if err := r.Create(t.Context(), id, spec); err == nil {
		t.Error("an upper layer in /proc was accepted")
	}
	wantNothing(t, r, id, spec)
}

// TestOverlayLives checks that changes and open files are preserved across stops, pauses and restarts.
func TestOverlayLives(t *testing.T) {
	t.Parallel()
	r := open(t)
	host := t.TempDir()
	hostFile(t, filepath.Join(host, "read"), "of the host\n", 1000, 1000, 0o644)
	hostFile(t, filepath.Join(host, "sub/file"), "below\n", 1000, 1000, 0o644)
	chown(t, 1000, 1000, filepath.Join(host, "sub"))
	w := newWorkspace(t, host, 1000, 1000)
	before := fingerprint(t, host)
	// The script has a working directory, reads one file, writes another, and has a removed file open.
	script := `cd /workspace/sub; exec 3<../read 4>>../log 5<>../temp; echo kept >&5; rm ../temp
n=0; while :; do n=$((n+1)); echo $n >&4; echo $n > ../count.new; mv ../count.new ../count; cat file >/dev/null || exit 1; sleep 0.02; done`
	id, spec := inWorkspace(t, r, []string{"/bin/bash", "-c", script}, w.mount)
	count := func(id caisson.ID) (n int) {
		fmt.Sscan(sh(t, r, id, "cat count"), &n)
		return n
	}
	poll.Until(t, 2*time.Minute, func() bool { return count(id) > 3 })
	image := t.TempDir()
	if err := r.Checkpoint(t.Context(), id, image, false); err != nil {
		t.Fatalf("checkpoint with files of the workspace open: %v", err)
	}
	if err := r.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var n int
	fmt.Sscan(readFile(t, filepath.Join(w.dir, "upper/count")), &n)
	if err := r.Restore(t.Context(), id, spec, image); err != nil {
		t.Fatalf("restore: %v", err)
	}
	poll.Until(t, 2*time.Minute, func() bool { return count(id) > n+3 })
	if log := sh(t, r, id, "cat log"); !strings.HasPrefix(log, "1\n2\n3\n") || strings.Count(log, "\n") < n+2 {
		t.Errorf("what is appended to before and after a pause is %q", log)
	}
	if got := sh(t, r, id, "cat <(cat /proc/2/fd/3) ; ls temp 2>/dev/null || echo none"); !strings.HasSuffix(got, "none") {
		t.Errorf("open files: %q", got)
	}
	if err := r.Freeze(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := r.Thaw(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	n = count(id)
	poll.Until(t, 2*time.Minute, func() bool { return count(id) > n })
	if err := r.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	spec.Command = nil
	create(t, r, id, spec) // as after a stop and a start
	if got := sh(t, r, id, "cat read sub/file && test -s count && echo more >> read && cat read"); got != "of the host\nbelow\nof the host\nmore" {
		t.Errorf("after a start: %q", got)
	}
	if after := fingerprint(t, host); after != before {
		t.Errorf("the host's directory was\n%s\nand is\n%s", before, after)
	}
	wantNoMounts(t, r)
}
