package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/runtime/gvisor/lastwrite"
)

// pythonPrelude is the beginning of the scripts of these tests. It prints the PID and defines system calls that Python lacks.
const pythonPrelude = `
import ctypes, mmap, os, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    if libc.syscall(*args) < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def write(path, mode='w'):
    with open(path, mode) as f: f.write('x\n')
os.chdir('/workspace')
print(os.getpid(), flush=True)
`

// python runs a script in /workspace and returns its PID.
func python(t *testing.T, r *Runtime, id caisson.ID, script string) int {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		testneed.Skip(t, "python", err.Error())
	}
	out, status := run(t, r, id, "/usr/bin/python3", "-c", pythonPrelude+script)
	first, _, _ := strings.Cut(out, "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || !status.Success() {
		t.Fatalf("%s\nsays %s (%v)", script, out, status)
	}
	return pid
}

// writersOf returns the last writers by path, and the complete result of Writers.
func writersOf(t *testing.T, r *Runtime, id caisson.ID) (map[string]caisson.Writer, *caisson.Writers) {
	t.Helper()
	w, err := r.Writers(t.Context(), id, "/workspace")
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]caisson.Writer{}
	for _, x := range w.List {
		by[x.Path] = x
	}
	return by, w
}

// TestWriters makes all kinds of changes in a workspace, each in a different process, and checks the recorded writers.
func TestWriters(t *testing.T) {
	t.Parallel()
	t.Run("hiding", func(t *testing.T) { testWriters(t, []string{".env"}) })
	t.Run("plain", func(t *testing.T) { testWriters(t, nil) })
}

func testWriters(t *testing.T, hide []string) {
	r := open(t)
	host := t.TempDir()
	for _, name := range []string{"edit", "gone", "from", "mode", "mode2", "cut", "cut2", "mapped", "read", "left", "right", "sub/in", "owner"} {
		hostFile(t, filepath.Join(host, name), name+"\n", 1000, 1000, 0o666)
	}
	chown(t, 1000, 1000, filepath.Join(host, "sub"))
	w := newWorkspace(t, host, 1000, 1000)
	w.mount.Overlay.Hide = hide
	id, _ := inWorkspace(t, r, nil, w.mount)
	if by, _ := writersOf(t, r, id); len(by) > 0 {
		t.Errorf("before anything has run: %v", by)
	}
	for _, c := range []struct {
		script string
		paths  string // paths whose last writer is then the script's process
	}{
		{"write('edit', 'a')", "edit"},
		{"os.chdir('sub'); write('../relative')", "relative"},
		{"os.makedirs('a/b/c'); write('/workspace/a/b/../b/./c//deep')", "a a/b a/b/c a/b/c/deep"},
		{"d = os.open('sub', os.O_RDONLY); os.close(os.open('at', os.O_CREAT | os.O_WRONLY, dir_fd=d)); os.mkdir('dir', dir_fd=d); os.unlink('in', dir_fd=d)", "sub/at sub/dir sub/in"},
		{"os.rename('from', 'to')", "from to"},
		{"write('tmp'); os.replace('tmp', 'edit')", "tmp edit"},
		{"os.unlink('gone')", "gone"},
		{"os.rmdir('sub/dir')", "sub/dir"},
		{"os.chmod('mode', 0o600); f = os.open('mode2', os.O_RDONLY); os.fchmod(f, 0o600)", "mode mode2"},
		{"os.truncate('cut', 1); f = open('cut2', 'r+'); os.ftruncate(f.fileno(), 1)", "cut cut2"},
		{"f = open('mapped', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:1] = b'X'; m.flush()", "mapped"},
		{"os.symlink('sub', 'way'); write('way/through')", "way sub/through"},
		{"os.symlink('/workspace/sub', 'way2'); os.mkdir('way2/made'); os.symlink('x', 'way2/link')", "way2 sub/made sub/link"},
		{"os.chroot('sub'); os.chdir('/'); write('/inside'); os.mkdir('../up')", "sub/inside sub/up"},
		{"f = os.open('read', os.O_PATH); write('/proc/self/fd/%d' % f)", "read"},
		{"call(437, -100, b'new2', struct.pack('QQQ', os.O_WRONLY | os.O_CREAT, 0o644, 0), 24)", "new2"},
		{"os.close(os.open('ro', os.O_RDONLY | os.O_CREAT))", "ro"},
		{"call(316, -100, b'left', -100, b'right', 2)", "left right"},
		{"os.mkfifo('fifo'); s = socket.socket(socket.AF_UNIX); s.bind('socket')", "fifo socket"},
		{"os.chown('owner', 0, 0)", "owner"},
		{"write('thread1'); t = threading.Thread(target=write, args=('thread2',)); t.start(); t.join()", "thread1 thread2"},
		{"write('new\\nline'); write(b'bad\\xff'); write('\\x1b[31mred')", "new\nline bad\\xff \x1b[31mred"},
		{"write('one'); os.link('one', 'two')", "one two"},
		{"write('two', 'a')", "one two"},
		{"os.unlink('two')", "two"},
		{"write('two')", "two"},
		{"os.chmod('one', 0o600)", "one"},
		{"n = os.memfd_create('name'); write('/tmp/elsewhere'); os.mkdir('/root/dir')", ""},
	} {
		pid := python(t, r, id, c.script)
		by, all := writersOf(t, r, id)
		for name := range strings.SplitSeq(c.paths, " ") {
			if got := by[name]; c.paths != "" && (got.PID != pid || !strings.HasPrefix(got.Command, "python3") || got.UID != 0) {
				t.Errorf("%s: process %d: %q was changed by %+v", c.script, pid, name, got)
			}
		}
		theirs := 0
		for _, x := range all.List {
			if x.PID == pid {
				theirs++
			}
		}
		if want := len(strings.Fields(strings.ReplaceAll(c.paths, "\n", "_"))); theirs != want || all.Dropped > 0 {
			t.Errorf("%s: process %d has %d of %v, want %d", c.script, pid, theirs, all, want)
		}
	}
	before, _ := writersOf(t, r, id)
	for _, script := range []string{
		"open('edit').read(); os.listdir('.'); os.stat('edit'); os.close(os.open('edit', os.O_RDONLY | os.O_CREAT)); os.utime('edit')",
		"for f in (lambda: write('no/such'), lambda: os.unlink('none'), lambda: os.mkdir('a'), lambda: os.rename('none', 'x'), lambda: os.link('none', 'x')):\n try: f(); sys.exit(9)\n except OSError: pass",
		"os.setuid(1000)\ntry: write('one'); sys.exit(9)\nexcept OSError: pass",
	} {
		python(t, r, id, script)
	}
	if after, _ := writersOf(t, r, id); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("reading and failing has changed %v to %v", before, after)
	}
	testWriterDetails(t, r, id)
}

// testWriterDetails contains the cases that do not fit the table of TestWriters.
func testWriterDetails(t *testing.T, r *Runtime, id caisson.ID) {
	// Writes through a descriptor, also an inherited one, are attributed to the process that opened it.
	python(t, r, id, "f = open('log', 'a')\nif os.fork() == 0:\n os.setsid()\n f.write('1'); f.flush(); time.sleep(0.1); f.write('2'); f.flush(); open('/tmp/done', 'w').close()\n")
	opener, _ := writersOf(t, r, id)
	poll.Until(t, 2*time.Minute, func() bool { _, status := run(t, r, id, "/bin/test", "-e", "/tmp/done"); return status.Success() })
	if after, _ := writersOf(t, r, id); after["log"] != opener["log"] || after["log"].PID == 0 {
		t.Errorf("log: %+v, then %+v", opener["log"], after["log"])
	}
	// The user is recorded, too, and Moved is set for a renamed path.
	python(t, r, id, "os.mkdir('open'); os.chmod('open', 0o777)")
	pid := python(t, r, id, "os.setuid(1000); write('open/users')")
	by, _ := writersOf(t, r, id)
	if got := by["open/users"]; got.UID != 1000 || got.PID != pid || got.Moved {
		t.Errorf("open/users: %+v", got)
	}
	if !by["from"].Moved || !by["to"].Moved || by["edit"].PID != by["tmp"].PID {
		t.Errorf("from %+v, to %+v", by["from"], by["to"])
	}
	// A bind mount of a part of the workspace counts as the workspace; a file system that is mounted over a part does not.
	out := sh(t, r, id, "unshare -Urm bash -c 'mkdir /tmp/m && mount --bind sub /tmp/m && echo $$ && echo x > /tmp/m/bound && mkdir /tmp/m/over && mount -t tmpfs none /tmp/m/over && echo x > /tmp/m/over/hidden' 2>&1")
	by, _ = writersOf(t, r, id)
	if pid, err := strconv.Atoi(strings.Fields(out + " none")[0]); err != nil {
		t.Errorf("a namespace of its own could not be made: %q", out)
	} else if by["sub/bound"].PID != pid || by["sub/over"].PID == 0 || by["sub/over/hidden"].PID != 0 {
		t.Errorf("process %d: %+v", pid, by)
	}
	if _, err := r.Writers(t.Context(), id, "/elsewhere"); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("of what is no workspace: %v", err)
	}
}

// TestWritersBounded checks that the table is limited if a guest creates very many files or very long paths, and that it
// contains the newest changes.
func TestWritersBounded(t *testing.T) {
	t.Parallel()
	r := open(t)
	w := newWorkspace(t, t.TempDir(), 1000, 1000)
	id, _ := inWorkspace(t, r, nil, w.mount)
	count := 25_000
	if testneed.All() {
		count = 100_000
	}
	pid := python(t, r, id, fmt.Sprintf(`
for i in range(%d): os.mknod('evil\n%%d "' %% i)
os.mkdir('long'); os.chdir('long')
for i in range(30):
    os.mkdir('x' * 250); os.chdir('x' * 250)
write('end')
`, count))
	by, all := writersOf(t, r, id)
	if len(all.List) > lastwrite.MaxPaths || len(all.List) < lastwrite.MaxPaths-100 || all.Dropped < uint64(count-lastwrite.MaxPaths) {
		t.Errorf("%d of which %d were dropped", len(all.List), all.Dropped)
	}
	if by["long"].PID != pid || by[fmt.Sprintf("evil\n%d \"", count-1)].PID != pid {
		t.Error("the newest are not there")
	}
	if err := r.Freeze(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if again, _ := writersOf(t, r, id); len(again) != len(by) {
		t.Errorf("%d are left of a frozen one", len(again))
	}
	if err := r.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Writers(t.Context(), id, "/workspace"); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("of a sandbox that is gone: %v", err)
	}
}

// TestWritersOfForks checks that a restored sandbox starts with an empty table and records later changes in its new directory,
// that the original continues with its table, and that a restarted daemon can read the tables.
func TestWritersOfForks(t *testing.T) {
	t.Parallel()
	r := open(t)
	command := []string{"/bin/bash", "-c", "cd /workspace; while :; do test -e go && ! test -e gone && echo x > gone; sleep 0.02; done"}
	id, _ := inWorkspace(t, r, command, newWorkspace(t, t.TempDir(), 1000, 1000).mount)
	python(t, r, id, "write('before'); os.unlink('before')")
	image := t.TempDir()
	if err := r.Checkpoint(t.Context(), id, image, true); err != nil {
		t.Fatal(err)
	}
	fork := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, fork)
	spec.Command, spec.Mounts = command, []caisson.RuntimeMount{newWorkspace(t, t.TempDir(), 1000, 1000).mount}
	if err := r.Restore(t.Context(), fork, spec, image); err != nil {
		t.Fatal(err)
	}
	if by, _ := writersOf(t, r, fork); len(by) > 0 {
		t.Errorf("of a fork: %v", by)
	}
	pid := python(t, r, fork, "write('go')")
	var by map[string]caisson.Writer
	poll.Until(t, 2*time.Minute, func() bool { by, _ = writersOf(t, r, fork); return by["gone"].PID != 0 })
	if by["go"].PID != pid || by["gone"].PID != 2 || by["gone"].Command != "bash" || len(by) != 2 {
		t.Errorf("of a fork that has gone on: %v", by)
	}
	python(t, r, id, "write('after')")
	r.Close()
	r = reopen(t, r.cfg.Dir)
	if by, _ := writersOf(t, r, id); len(by) != 2 || by["before"].PID == 0 || by["after"].PID == 0 {
		t.Errorf("of the first: %v", by)
	}
}

// TestWritersMoved checks that writers are recorded even if the guest first renames a directory above its workspace.
func TestWritersMoved(t *testing.T) {
	t.Parallel()
	r := open(t)
	w := newWorkspace(t, t.TempDir(), 1000, 1000)
	w.mount.Target = "/above/workspace"
	id, _ := inWorkspace(t, r, []string{"/usr/bin/python3", "-c", "import os, time\nos.rename('/above', '/moved')\nopen('/moved/workspace/f', 'w').close()\ntime.sleep(1000)"}, w.mount)
	poll.Until(t, 2*time.Minute, func() bool {
		got, err := r.Writers(t.Context(), id, "/above/workspace")
		return err == nil && len(got.List) == 1 && got.List[0].Path == "f" && got.List[0].PID == 2
	})
}
