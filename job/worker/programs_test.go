package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/worker"
)

var programJobs = []worker.Declared{
	job[[][]string, []ran]{Name: "commands", Do: commands},
	job[none, int]{Name: "crowd", Files: 1, Do: crowd},
	job[none, none]{Name: "brood", Files: 1, Do: brood},
	job[[]string, map[string]int64]{Name: "flags", Do: flags},
	job[dials, []string]{Name: "dial", Do: dialed},
}

// ran is the result of a command.
type ran struct {
	Out  string
	Code int // -1 if it did not start or was killed
}

// commands runs commands one after the other, in /work and with empty input.
func commands(ctx context.Context, _ *worker.Call, argvs [][]string) ([]ran, error) {
	all := []ran{}
	for _, argv := range argvs {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = "/work"
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org"}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			all = append(all, ran{err.Error(), -1})
			continue
		}
		all = append(all, ran{string(out), cmd.ProcessState.ExitCode()})
	}
	return all, nil
}

// crowd starts as many processes as it can, each of which has the job's descriptor open, and returns their number.
func crowd(_ context.Context, c *worker.Call, _ none) (int, error) {
	for n := 0; ; n++ {
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.ExtraFiles = c.Files
		switch err := cmd.Start(); {
		case errors.Is(err, unix.EAGAIN) || n > 2000:
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// brood waits while a grandchild process has its descriptor open.
func brood(_ context.Context, c *worker.Call, _ none) (none, error) {
	cmd := exec.Command("/bin/sh", "-c", "sleep 1000 & printf x >&3")
	cmd.ExtraFiles = c.Files
	if err := cmd.Run(); err != nil {
		return none{}, err
	}
	c.Files[0].Close()
	select {}
}

// flags returns the mount flags of the file systems at paths.
func flags(_ context.Context, _ *worker.Call, paths []string) (map[string]int64, error) {
	all := map[string]int64{}
	for _, p := range paths {
		var st unix.Statfs_t
		if err := unix.Statfs(p, &st); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		all[p] = st.Flags
	}
	return all, nil
}

func TestProgramsHaveNoRightsByMounts(t *testing.T) {
	r := newRunner(t)
	_, root := ownedDir(t, 70000)
	_, more := ownedDir(t, 70000)
	const data = unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
	want := map[string]int64{
		"/": data | unix.ST_RDONLY, "/tmp": data, "/work": data, "/more": data, "/view": data | unix.ST_RDONLY, "/etc": data | unix.ST_RDONLY,
		"/etc/passwd": data | unix.ST_RDONLY, "/dev": data | unix.ST_RDONLY, "/usr": unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV,
		"/bin": unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV, "/dev/null": unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NOEXEC,
	}
	var got map[string]int64
	err := r.Run(t.Context(), worker.Request{Job: "flags", Args: slices.Collect(maps.Keys(want)), Root: root, Access: worker.WriteAsOwner, Programs: true,
		Mounts: []worker.Mount{{Dir: more, At: "/more", Writable: true}, {Dir: more, At: "/view"}}}, &got)
	if err != nil {
		t.Fatal(err)
	}
	for path, w := range want {
		if g := got[path] & (data | unix.ST_RDONLY); g != w {
			t.Errorf("%s has flags %x, not %x", path, g, w)
		}
	}
}

func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if unix.Access(p, unix.X_OK) != nil {
			testneed.Skip(t, filepath.Base(p), p+" is not there")
		}
	}
}

// do runs commands with req and returns their results.
func do(t *testing.T, req worker.Request, argvs ...[]string) []ran {
	t.Helper()
	req.Job, req.Args, req.Programs = "commands", argvs, true
	req.Limits.Time = time.Minute
	var all []ran
	if err := newRunner(t).Run(t.Context(), req, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != len(argvs) {
		t.Fatalf("%d of %d commands", len(all), len(argvs))
	}
	return all
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

func TestProgramsRunGit(t *testing.T) {
	newRunner(t)
	needs(t, "/usr/bin/git")
	for _, owner := range []int{70000, 1234, 0} {
		t.Run(fmt.Sprint(owner), func(t *testing.T) {
			dir, root := ownedDir(t, owner)
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			git := func(args ...string) []string { return append([]string{"/usr/bin/git"}, args...) }
			for i, r := range do(t, worker.Request{Root: root, Access: worker.WriteAsOwner},
				git("--version"),
				git("init", "-q", "-b", "main", "r"),
				sh("echo hi > r/f"),
				git("-C", "r", "add", "f"),
				git("-C", "r", "commit", "-q", "-m", "one"),
				git("clone", "-q", "--no-local", "r", "copy"), // starts upload-pack, pack-objects and index-pack
				git("-C", "copy", "fsck", "--strict"),
				sh("test $(cat copy/f) = hi"),
			) {
				if r.Code != 0 {
					t.Errorf("%d: %+v", i, r)
				}
			}
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(dir, "copy/.git/HEAD"), &st); err != nil || int(st.Uid) != owner || int(st.Gid) != owner {
				t.Errorf("what it made belongs to %d:%d, %v", st.Uid, st.Gid, err)
			}
			for i, r := range do(t, worker.Request{Root: root, Access: worker.ReadAsOwner},
				git("-C", "r", "log", "-1", "--format=%s"),
				sh("! touch /work/x 2>/dev/null"),
			) {
				if r.Code != 0 {
					t.Errorf("read %d: %+v", i, r)
				}
			}
		})
	}
}

func TestProgramsKeepToTheirPlaces(t *testing.T) {
	newRunner(t)
	_, root := ownedDir(t, 70000)
	_, view := ownedDir(t, 70000)
	_, more := ownedDir(t, 70000)
	req := worker.Request{Root: root, Access: worker.WriteAsOwner, Mounts: []worker.Mount{{Dir: view, At: "/view"}, {Dir: more, At: "/more", Writable: true}}}
	for _, d := range []*os.File{view, more} {
		if err := os.WriteFile(filepath.Join(d.Name(), "script"), []byte("#!/bin/sh\necho run\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const script = `printf '#!/bin/sh\necho run\n' > $d/s && chmod 755 $d/s && ! $d/s`
	for _, s := range []string{
		"d=/work; " + script, "d=/tmp; " + script, "d=/more; " + script,
		"! /view/script && ! /more/script",
		"cp /bin/true /work/true && ! /work/true",
		"! touch /view/x && ! rm -f /view/script && ! chmod 700 /view/script",
		"touch /more/x && rm /more/x",
		"for d in / /usr /usr/bin /usr/lib /etc /dev; do ! touch $d/caisson-x || exit 1; done",
		"for f in /etc/passwd /etc/ld.so.cache; do ! touch $f || exit 1; done",
		"! mkdir /sys /proc /view/x",
		"! cat /etc/shadow; ! ls /home; ! ls /root; ! ls /proc/1; ! ls /sys; ! ls /run; ! ls /var",
		`test "$(echo /*)" = "$(echo /* | tr ' ' '\n' | grep -xE '/(bin|dev|etc|lib|lib32|lib64|more|sbin|tmp|usr|view|work)' | xargs)"`,
		`test "$(echo /etc/* /dev/*)" = "$(echo /etc/* /dev/* | xargs -n1 | grep -xE '/etc/(alternatives|ld.so.cache|passwd)|/dev/(null|urandom|zero)' | xargs)"`,
		"echo x > /dev/null && test $(head -c 3 /dev/zero | wc -c) = 3 && test $(head -c 3 /dev/urandom | wc -c) = 3",
		"! mknod /work/null c 1 3; ! test -e /work/null && ! chmod 600 /dev/null",
		"! dd if=/dev/zero of=/tmp/big bs=1M count=65",
		"test \"$(id -un)\" = root && test \"$(id -u)\" = 0",
		"chmod 6755 /work/true && ! /work/true",
		"! chown 1:1 /work/true",
	} {
		if r := do(t, req, sh("{ "+s+"; } 2>/dev/null"))[0]; r.Code != 0 || strings.Contains(r.Out, "run") {
			t.Errorf("%s: %+v", s, r)
		}
	}
}

// A job in a directory owned by root does not run as root: neither for the files of the host nor for the kernel's process
// count.
func TestProgramsAreNeverRoot(t *testing.T) {
	r := newRunner(t)
	dir, root := ownedDir(t, 0)
	view, other := ownedDir(t, 0)
	for _, d := range []string{dir, view} {
		if err := os.WriteFile(filepath.Join(d, "private"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := do(t, worker.Request{Root: root, Mounts: []worker.Mount{{Dir: other, At: "/view"}}},
		sh("cat private /view/private; stat -c %u . /view /usr /bin/sh /dev/null | xargs"))[0]
	if got.Code != 0 || got.Out != "xx0 0 65534 65534 65534\n" {
		t.Errorf("%+v", got)
	}
	proc, err := os.Open("/proc") // cannot be idmapped
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	var all []ran
	err = r.Run(t.Context(), worker.Request{Job: "commands", Args: [][]string{}, Root: proc, Programs: true}, &all)
	if caisson.KindOf(err) != caisson.Invalid || !strings.Contains(caisson.MessageOf(err), "let another user own it") {
		t.Errorf("got %v", err)
	}
}

// System calls that must fail in a program that a job has started, by name. Perl can make any system call.
func TestProgramsAreSealed(t *testing.T) {
	newRunner(t)
	needs(t, "/usr/bin/perl")
	_, root := ownedDir(t, 70000)
	for name, call := range map[string]string{
		"ptrace":      fmt.Sprintf("%d, 0, 0, 0, 0", unix.SYS_PTRACE),
		"attach":      fmt.Sprintf("%d, 16, 1, 0, 0", unix.SYS_PTRACE),
		"readv":       fmt.Sprintf("%d, 1, 0, 0, 0, 0, 0", unix.SYS_PROCESS_VM_READV),
		"mount":       fmt.Sprintf(`%d, "x", "/tmp", "tmpfs", 0, 0`, unix.SYS_MOUNT),
		"umount":      fmt.Sprintf(`%d, "/work", 2`, unix.SYS_UMOUNT2),
		"setattr":     fmt.Sprintf(`%d, -100, "/usr", 0, pack("Q4", 0, 1, 0, 0), 32`, unix.SYS_MOUNT_SETATTR),
		"unshare":     fmt.Sprintf("%d, 0x10000000", unix.SYS_UNSHARE),
		"setns":       fmt.Sprintf("%d, 0, 0", unix.SYS_SETNS),
		"chroot":      fmt.Sprintf(`%d, "/work"`, unix.SYS_CHROOT),
		"pivot":       fmt.Sprintf(`%d, "/work", "/work"`, unix.SYS_PIVOT_ROOT),
		"keyctl":      fmt.Sprintf("%d, 0, -3, 1, 0, 0", unix.SYS_KEYCTL),
		"bpf":         fmt.Sprintf("%d, 0, 0, 0", unix.SYS_BPF),
		"io_uring":    fmt.Sprintf(`%d, 1, "x" x 200`, unix.SYS_IO_URING_SETUP),
		"clone user":  fmt.Sprintf("%d, 0x10000011, 0, 0, 0, 0", unix.SYS_CLONE),
		"clone pid":   fmt.Sprintf("%d, 0x20000011, 0, 0, 0, 0", unix.SYS_CLONE),
		"clone net":   fmt.Sprintf("%d, 0x40000011, 0, 0, 0, 0", unix.SYS_CLONE),
		"clone mount": fmt.Sprintf("%d, 0x00020011, 0, 0, 0, 0", unix.SYS_CLONE),
		"clone3":      fmt.Sprintf(`%d, "\0" x 88, 88`, unix.SYS_CLONE3),
		"setuid":      fmt.Sprintf("%d, 0", unix.SYS_SETUID),
		"setgroups":   fmt.Sprintf("%d, 0, 0", unix.SYS_SETGROUPS),
		"capset":      fmt.Sprintf(`%d, pack("L2", 0x20080522, 0), "\0" x 24`, unix.SYS_CAPSET),
		"memfd":       fmt.Sprintf(`%d, "x", 0`, unix.SYS_MEMFD_CREATE),
		"udp":         fmt.Sprintf("%d, 2, 2, 0", unix.SYS_SOCKET),
		"raw":         fmt.Sprintf("%d, 2, 3, 1", unix.SYS_SOCKET),
		"mptcp":       fmt.Sprintf("%d, 2, 1, 262", unix.SYS_SOCKET),
		"sctp":        fmt.Sprintf("%d, 10, 1, 132", unix.SYS_SOCKET),
		"netlink":     fmt.Sprintf("%d, 16, 3, 0", unix.SYS_SOCKET),
		"packet":      fmt.Sprintf("%d, 17, 3, 0", unix.SYS_SOCKET),
		"alg":         fmt.Sprintf("%d, 38, 5, 0", unix.SYS_SOCKET),
		"vsock":       fmt.Sprintf("%d, 40, 1, 0", unix.SYS_SOCKET),
		"unix dgram":  fmt.Sprintf("%d, 1, 2, 0", unix.SYS_SOCKET),
		"pair dgram":  fmt.Sprintf("%d, 1, 2, 0, pack('Q', 0)", unix.SYS_SOCKETPAIR),
	} {
		r := do(t, worker.Request{Root: root, Access: worker.WriteAsOwner},
			[]string{"/usr/bin/perl", "-e", `my @a = (` + call + `); exit(syscall(shift @a, @a) == -1 ? $! : 0)`})[0]
		if want := unix.Errno(r.Code); want != unix.EPERM && (name != "clone3" || want != unix.ENOSYS) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for name, expr := range map[string]string{
		"no_new_privs": fmt.Sprintf("syscall(%d, 39, 0, 0, 0, 0) == 1", unix.SYS_PRCTL),
		"capabilities": fmt.Sprintf(`my $h = pack("L2", 0x20080522, 0); my $d = "\0" x 24; syscall(%d, $h, $d) == 0 && $d eq "\0" x 24`, unix.SYS_CAPGET),
		"seccomp":      fmt.Sprintf("syscall(%d, 21, 0, 0, 0, 0) == 2", unix.SYS_PRCTL),
		"tcp":          fmt.Sprintf("syscall(%d, 2, 0x80801, 6) > 2", unix.SYS_SOCKET),
		"descriptors":  fmt.Sprintf("0 == grep { syscall(%d, $_, 1) != -1 } 3..255", unix.SYS_FCNTL),
	} {
		r := do(t, worker.Request{Root: root}, []string{"/usr/bin/perl", "-e", `exit(do { ` + expr + ` } ? 7 : 0)`})[0]
		if r.Code != 7 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestCrowdsAreBoundedAndEndWithTheirJob(t *testing.T) {
	runner := newRunner(t)
	for _, owner := range []int{70000, 0} {
		t.Run(fmt.Sprint(owner), func(t *testing.T) {
			_, root := ownedDir(t, owner)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var n int
			err = runner.Run(t.Context(), worker.Request{Job: "crowd", Root: root, Programs: true, Files: []*os.File{w},
				Limits: worker.Limits{Time: time.Minute}}, &n)
			w.Close()
			if err != nil || n < 100 || n > 512 {
				t.Errorf("%d processes, %v", n, err)
			}
			if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if n, err := r.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("something lives on: %d, %v", n, err)
			}
		})
	}
}

func TestMountsAreChecked(t *testing.T) {
	r := newRunner(t)
	_, root := ownedDir(t, 70000)
	_, dir := ownedDir(t, 70000)
	file, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	at := func(names ...string) (all []worker.Mount) {
		for _, n := range names {
			all = append(all, worker.Mount{Dir: dir, At: n})
		}
		return all
	}
	tests := map[string]worker.Request{
		"mounts without programs": {Root: root, Mounts: at("/view")},
		"no root":                 {Programs: true},
		"network":                 {Programs: true, Network: true},
		"populate":                {Programs: true, Root: root, Access: worker.Populate},
		"guest":                   {Programs: true, Root: root, Access: worker.ReadGuest},
		"twice":                   {Programs: true, Root: root, Mounts: at("/view", "/view")},
		"no directory":            {Programs: true, Root: root, Mounts: []worker.Mount{{At: "/view"}}},
		"a file":                  {Programs: true, Root: root, Mounts: []worker.Mount{{Dir: file, At: "/view"}}},
		"many":                    {Programs: true, Root: root, Mounts: at(strings.Fields(strings.Repeat("/view ", 17))...)},
	}
	for _, name := range []string{"", "/", "view", "//view", "/view/", "/./view", "/work/x", "/..", "/../view", "/view/..", "/work", "/usr",
		"/tmp", "/proc", "/etc", "/dev", "/bin", "/lib64", "/a b", "/\n", "/view\n", "/" + strings.Repeat("a", 33), "/usr/bin", "/.git", "/é"} {
		tests["at "+name] = worker.Request{Programs: true, Root: root, Mounts: at(name)}
	}
	for name, req := range tests {
		req.Job = "commands"
		req.Args = [][]string{}
		var all []ran
		if err := r.Run(t.Context(), req, &all); caisson.KindOf(err) != caisson.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMountsShowNothingBelowThem(t *testing.T) {
	newRunner(t)
	_, root := ownedDir(t, 70000)
	dir, view := ownedDir(t, 70000)
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("caisson", sub, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(sub, unix.MNT_DETACH)
	if err := os.WriteFile(filepath.Join(sub, "secret"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := do(t, worker.Request{Root: root, Mounts: []worker.Mount{{Dir: view, At: "/view"}}}, sh("test -d /view/sub && ! test -e /view/sub/secret"))[0]
	if r.Code != 0 {
		t.Errorf("%+v", r)
	}
}
