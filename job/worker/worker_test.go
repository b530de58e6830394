package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testbin"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/worker"
)

// self is the path of a copy of this test binary that can run jobs. It is "" without root, which all tests that use it need.
var self string

func TestMain(m *testing.M) {
	if worker.IsWorker() {
		worker.Main(append(jobs, programJobs...)...)
	}
	if exe := os.Getenv(parentOf); exe != "" {
		os.Exit(parent(exe))
	}
	os.Exit(testbin.Run(m, &self))
}

// newRunner returns a runner of this test's jobs, or skips the test if it does not run as root.
func newRunner(t testing.TB) *worker.Runner {
	t.Helper()
	testneed.Root(t)
	r, err := worker.New(worker.Config{Exe: self, UIDBase: caisson.LayerUIDBase, WorkUID: worker.DefaultUID})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Variables that jobs write to in order to exhaust a limit.
var (
	spun           atomic.Int64
	dataMountAttrs []byte
)

var (
	echoJob = job[string, string]{Name: "echo", Do: func(_ context.Context, c *worker.Call, args string) (string, error) {
		in, err := io.ReadAll(c.Input())
		return args + string(in), err
	}}
	jobs = []worker.Declared{
		echoJob, listJob,
		job[none, findings]{Name: "probe", Do: probe},
		job[none, none]{Name: "populate", Do: populate},
		job[string, string]{Name: "read", Do: func(_ context.Context, _ *worker.Call, path string) (string, error) {
			b, err := os.ReadFile(path)
			return string(b), err
		}},
		job[none, written]{Name: "write", Do: write},
		job[none, []string]{Name: "above", Files: 1, Do: above},
		job[struct{ Kind, Message string }, none]{Name: "fail", Do: func(_ context.Context, _ *worker.Call, e struct{ Kind, Message string }) (none, error) {
			return none{}, caisson.Errorf(caisson.Kind(e.Kind), "%s", e.Message)
		}},
		job[none, none]{Name: "panic", Do: func(context.Context, *worker.Call, none) (none, error) { panic("oh") }},
		job[none, none]{Name: "hang", Do: func(_ context.Context, c *worker.Call, _ none) (none, error) { c.Progress("hanging"); select {} }},
		job[none, none]{Name: "spin", Do: func(context.Context, *worker.Call, none) (none, error) {
			for n := 0; ; n++ { // uses its processor time and nothing else
				spun.Store(int64(n))
			}
		}},
		job[none, none]{Name: "alloc", Do: func(context.Context, *worker.Call, none) (none, error) {
			for n := 1 << 20; ; n *= 2 {
				dataMountAttrs = append(dataMountAttrs, bytes.Repeat([]byte{1}, n)...)
			}
		}},
		job[none, string]{Name: "long", Do: func(context.Context, *worker.Call, none) (string, error) { return strings.Repeat("x", 2<<20), nil }},
		job[string, none]{Name: "raw", Do: func(_ context.Context, _ *worker.Call, s string) (none, error) {
			if _, err := io.WriteString(os.NewFile(1, "reply"), s); err != nil {
				return none{}, err
			}
			os.Exit(0)
			return none{}, nil
		}},
		job[none, none]{Name: "hold", Files: 1, Do: func(_ context.Context, c *worker.Call, _ none) (none, error) {
			if _, err := c.Files[0].Write([]byte{1}); err != nil {
				return none{}, err
			}
			select {}
		}},
		job[none, bool]{Name: "drip", Do: func(_ context.Context, c *worker.Call, _ none) (bool, error) {
			for i := range 5 {
				c.Progress(i)
			}
			return true, nil
		}},
	}
)

type none = worker.None

type job[Args, Reply any] = worker.Job[Args, Reply]

// findings records what a job could access and do.
type findings struct {
	UID, GID   int
	Env        []string
	FDs        []int
	Root       []string
	Caps       uint64
	NoNewPrivs int
	SecureBits int
	Could      []string // operations that must fail and did not
}

func probe(context.Context, *worker.Call, none) (findings, error) {
	f := findings{UID: os.Getuid(), GID: os.Getgid(), Env: os.Environ()}
	for fd := range 256 {
		var fs unix.Statfs_t
		if unix.Fstatfs(fd, &fs) != nil {
			continue
		}
		switch fs.Type {
		case unix.ANON_INODE_FS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
			// Used by the Go runtime: its poller, and the files that contain the number of processors it may use.
		default:
			f.FDs = append(f.FDs, fd)
		}
	}
	if entries, err := os.ReadDir("/"); err == nil {
		for _, e := range entries {
			f.Root = append(f.Root, e.Name())
		}
	}
	var data [2]unix.CapUserData
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return f, err
	}
	f.Caps = uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted)
	f.NoNewPrivs, _ = unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	f.SecureBits, _ = unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	for name, try := range map[string]func() error{
		"exec":    func() error { return unix.Exec("/bin/true", []string{"true"}, nil) },
		"socket":  func() error { _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); return err },
		"unix":    func() error { _, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
		"netlink": func() error { _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0); return err },
		"unshare": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"mount":   func() error { return unix.Mount("x", "/", "tmpfs", 0, "") },
		"chroot":  func() error { return unix.Chroot("/") },
		"passwd":  func() error { _, err := os.ReadFile("/etc/passwd"); return err },
		"proc":    func() error { _, err := os.ReadFile("/proc/self/status"); return err },
		"create":  func() error { return os.WriteFile("/tmp/caisson-probe", nil, 0o600) },
		"create2": func() error { return os.WriteFile("/caisson-probe", nil, 0o600) },
		"device":  func() error { return unix.Mknod("/caisson-null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) },
		"fork": func() error {
			_, _, errno := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
			if errno == 0 {
				return nil
			}
			return errno
		},
		"setuid": func() error { return unix.Setuid(0) },
		"kill": func() error {
			if os.Getppid() == 0 {
				return unix.ESRCH // the parent has no pid in this namespace
			}
			return unix.Kill(os.Getppid(), 0)
		},
		"sethost":  func() error { return unix.Sethostname([]byte("x")) },
		"resource": func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}) },
	} {
		if try() == nil {
			f.Could = append(f.Could, name)
		}
	}
	return f, nil
}

func populate(context.Context, *worker.Call, none) (none, error) {
	if err := os.WriteFile("/f", []byte("x"), 0o600); err != nil {
		return none{}, err
	}
	if err := os.Chown("/f", 12, 65535); err != nil {
		return none{}, err
	}
	if err := os.Chmod("/f", 0o755|os.ModeSetuid); err != nil {
		return none{}, err
	}
	if err := unix.Mknod("/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err == nil {
		return none{}, errors.New("made a device")
	}
	return none{}, unix.Mknod("/whiteout", unix.S_IFCHR, 0)
}

// written records what a job with write access could do.
type written struct {
	Made, Overwrote, Chowned, Executed bool
	UID                                int
	Groups                             []int
	Caps                               uint64
}

func write(context.Context, *worker.Call, none) (written, error) {
	w := written{UID: os.Getuid()}
	w.Made = os.WriteFile("/made", []byte("x"), 0o755) == nil
	if f, err := os.OpenFile("/f", os.O_WRONLY|os.O_TRUNC, 0); err == nil {
		w.Overwrote = true
		f.Close()
	}
	w.Chowned = os.Chown("/made", 1, 1) == nil
	w.Executed = unix.Exec("/made", []string{"made"}, nil) == nil
	var err error
	if w.Groups, err = os.Getgroups(); err != nil {
		return w, err
	}
	var data [2]unix.CapUserData
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	err = unix.Capget(&hdr, &data[0])
	w.Caps = uint64(data[1].Permitted|data[1].Effective)<<32 | uint64(data[0].Permitted|data[0].Effective)
	return w, err
}

// above lists the entries that a job can find above the directory that it was given.
func above(_ context.Context, c *worker.Call, _ none) ([]string, error) {
	dir := c.Files[0]
	if _, err := dir.Readdirnames(-1); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(dir.Fd()), "../..", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "above").Readdirnames(-1)
}

func TestEcho(t *testing.T) {
	r := newRunner(t)
	var got string
	err := r.Run(t.Context(), worker.Request{Job: "echo", Args: "a", Input: strings.NewReader("bc")}, &got)
	if err != nil || got != "abc" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestPromise4SealedJobIsAlone(t *testing.T) {
	r := newRunner(t)
	// A descriptor that is not close-on-exec, as some libraries create them.
	leak, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	t.Setenv("SECRET", "x")
	var f findings
	if err := r.Run(t.Context(), worker.Request{Job: "probe"}, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Could) > 0 || len(f.Env) > 0 || f.Caps != 0 || len(f.Root) > 0 || f.NoNewPrivs != 1 {
		t.Errorf("%+v", f)
	}
	if fmt.Sprint(f.FDs) != "[0 1 2]" {
		t.Errorf("descriptors %v", f.FDs)
	}
	if f.SecureBits != 0xc3 {
		t.Errorf("securebits %#x: root of the job's user namespace could get capabilities by executing something", f.SecureBits)
	}
}

func TestPromise4NetworkJobOwnsNothing(t *testing.T) {
	r := newRunner(t)
	leak, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	var f findings
	if err := r.Run(t.Context(), worker.Request{Job: "probe", Network: true}, &f); err != nil {
		t.Fatal(err)
	}
	if f.UID != worker.DefaultUID || f.GID != worker.DefaultUID || f.Caps != 0 || len(f.Env) > 0 || f.NoNewPrivs != 1 {
		t.Errorf("%+v", f)
	}
	if fmt.Sprint(f.FDs) != "[0 1 2]" {
		t.Errorf("descriptors %v", f.FDs)
	}
	for _, c := range f.Could {
		switch c {
		case "socket":
		case "passwd", "proc": // world-readable; denied by Landlock if the kernel has it
			if landlocked() {
				t.Errorf("read %s under Landlock", c)
			}
		default:
			t.Errorf("could %s", c)
		}
	}
}

func landlocked() bool {
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0
}

func TestNetworkJobHasItsDescriptor(t *testing.T) {
	r := newRunner(t)
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	defer wr.Close()
	var f findings
	if err := r.Run(t.Context(), worker.Request{Job: "probe", Network: true, Files: []*os.File{wr}}, &f); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(f.FDs) != "[0 1 2 3]" {
		t.Errorf("descriptors %v", f.FDs)
	}
}

func TestPopulate(t *testing.T) {
	r := newRunner(t)
	dir, root := ownedDir(t, caisson.LayerUIDBase)
	if err := r.Run(t.Context(), worker.Request{Job: "populate", Root: root, Access: worker.Populate}, nil); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "f"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != caisson.LayerUIDBase+12 || st.Gid != caisson.LayerUIDBase+65535 || st.Mode&0o7777 != 0o4755 {
		t.Errorf("uid %d gid %d mode %o", st.Uid, st.Gid, st.Mode)
	}
}

func ownedDir(t *testing.T, uid int) (string, *os.File) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return dir, f
}

func TestReadAsOwner(t *testing.T) {
	r := newRunner(t)
	tests := []struct {
		name             string
		owner, fileOwner int
		mode             os.FileMode
		ok               bool
	}{
		{"own private file", 1234, 1234, 0o600, true},
		{"another's private file", 1234, 1235, 0o600, false},
		{"root's private file", 1234, 0, 0o600, false},
		{"another's public file", 1234, 0, 0o644, true},
		{"root reads root's", 0, 0, 0o600, true},
		{"root reads another's", 0, 1234, 0o600, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, root := ownedDir(t, tt.owner)
			path := filepath.Join(dir, "f")
			if err := os.WriteFile(path, []byte("hi"), tt.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(path, tt.fileOwner, tt.fileOwner); err != nil {
				t.Fatal(err)
			}
			var got string
			err := r.Run(t.Context(), worker.Request{Job: "read", Args: "/f", Root: root}, &got)
			if ok := err == nil && got == "hi"; ok != tt.ok {
				t.Errorf("got %q, %v", got, err)
			}
			var f findings
			if err := r.Run(t.Context(), worker.Request{Job: "probe", Root: root}, &f); err != nil {
				t.Fatal(err)
			}
			if len(f.Could) > 0 {
				t.Errorf("could %v", f.Could)
			}
		})
	}
}

func TestWriteAsOwner(t *testing.T) {
	r := newRunner(t)
	tests := []struct {
		name             string
		owner, fileOwner int
		mode             os.FileMode
		ok               bool
	}{
		{"own file", 1234, 1234, 0o600, true},
		{"another's file", 1234, 1235, 0o644, false},
		{"root's file", 1234, 0, 0o644, false},
		{"everybody's file", 1234, 0, 0o666, true},
		{"own read-only file", 1234, 1234, 0o400, false},
		{"root writes root's", 0, 0, 0o600, true},
		{"root has no rights over others", 0, 1234, 0o600, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, root := ownedDir(t, tt.owner)
			path := filepath.Join(dir, "f")
			if err := os.WriteFile(path, []byte("hi"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Chmod(path, tt.mode), os.Chown(path, tt.fileOwner, tt.fileOwner)); err != nil {
				t.Fatal(err)
			}
			var got written
			if err := r.Run(t.Context(), worker.Request{Job: "write", Root: root, Access: worker.WriteAsOwner}, &got); err != nil {
				t.Fatal(err)
			}
			if got.Overwrote != tt.ok || !got.Made || got.Chowned || got.Executed || got.Caps != 0 || got.UID != 0 || len(got.Groups) > 0 {
				t.Errorf("%+v", got)
			}
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(dir, "made"), &st); err != nil || int(st.Uid) != tt.owner || int(st.Gid) != tt.owner {
				t.Errorf("what it made belongs to %d:%d, %v", st.Uid, st.Gid, err)
			}
		})
	}
}

func TestPromise4NothingAboveADirectory(t *testing.T) {
	r := newRunner(t)
	_, root := ownedDir(t, 0)
	outer, _ := ownedDir(t, 0)
	inner := filepath.Join(outer, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(inner)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var got []string
	err = r.Run(t.Context(), worker.Request{Job: "above", Root: root, Access: worker.WriteAsOwner, Files: []*os.File{dir}}, &got)
	if err != nil || len(got) > 0 {
		t.Errorf("above a directory there is %q, %v", got, err)
	}
}

func TestCancelKills(t *testing.T) {
	r := newRunner(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := r.Run(ctx, worker.Request{Job: "hang", Progress: func(json.RawMessage) { cancel() }}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestProgress(t *testing.T) {
	r := newRunner(t)
	var got []string
	var ok bool
	err := r.Run(t.Context(), worker.Request{Job: "drip", Progress: func(m json.RawMessage) { got = append(got, string(m)) }}, &ok)
	if err != nil || !ok || fmt.Sprint(got) != "[0 1 2 3 4]" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestNewChecksItsConfig(t *testing.T) {
	private := filepath.Join(t.TempDir(), "exe")
	if err := os.WriteFile(private, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]worker.Config{
		"no uids":    {Exe: "/proc/self/exe"},
		"no program": {Exe: "/does/not/exist", UIDBase: 1, WorkUID: 1 << 20},
		"private":    {Exe: private, UIDBase: 1, WorkUID: 1 << 20},
		"in a layer": {Exe: "/proc/self/exe", UIDBase: 1 << 20, WorkUID: 1<<20 + 65535},
	} {
		if _, err := worker.New(cfg); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
