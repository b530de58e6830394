package test_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// lastPort is the last port that was assigned to a test.
var lastPort atomic.Int32

// freeAddress returns an unused address on loopback. The kernel cannot assign its port to another socket by chance,
// because it takes ephemeral ports from above this range.
func freeAddress(t *testing.T) string {
	t.Helper()
	const first, count = 12000, 20000
	lastPort.CompareAndSwap(0, int32(os.Getpid()%count))
	for range count {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+lastPort.Add(1)%count))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// TestForkBomb tests that a fork bomb stops at the sandbox's limit while the sandbox and its neighbours keep working.
func TestForkBomb(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "--pids", "50", "host")
	h.ok("sandbox", "create", "--name", "b", "host")
	n, err := strconv.Atoi(h.ok("exec", "a", "--", "/.caisson/inside", "test", "spawn", "500"))
	if err != nil || n > 50 {
		t.Errorf("%d processes, %v", n, err)
	}
	h.run("exec", "-d", "a", "--", "bash", "-c", "f() { f | f & }; f")
	poll.Until(t, settle, func() bool { return strings.Count(h.ok("ps", "a", "-q"), "\n") >= 30 })
	if got := h.ok("exec", "b", "--", "echo", "fine"); got != "fine" {
		t.Errorf("the neighbour says %q", got)
	}
	if pids := strings.Count(h.ok("ps", "a", "-q"), "\n"); pids > 60 {
		t.Errorf("%d processes with a limit of 50", pids)
	}
	// The limit applies to root and to other users inside.
	h.ok("sandbox", "stop", "--grace", "0s", "a")
	h.ok("sandbox", "start", "a")
	h.ok("exec", "-u", "1000", "-w", "/", "a", "--", "true")
}

// TestOutOfMemory tests that a process that exceeds the memory limit is killed with that reason, while neighbours keep
// working.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "b", "host")
	id := h.ok("sandbox", "create", "--memory", "128M", "host")
	r := h.run("exec", id, "--", "/.caisson/inside", "test", "alloc", strconv.Itoa(512<<20))
	if r.code == 0 {
		t.Errorf("half a gigabyte fits in 128M: %v", r)
	}
	sb := h.show(id)
	if sb.State != caisson.Running {
		sb = h.waitState(id, caisson.Failed)
	}
	if !strings.Contains(sb.Reason+r.stderr, "memory") {
		t.Errorf("nothing says that memory was the reason: %s (%s); %v", sb.State, sb.Reason, r)
	}
	// Files in memory count as well.
	id = h.ok("sandbox", "create", "--memory", "128M", "host")
	r = h.run("exec", id, "--", "/.caisson/inside", "test", "fill", "/dev/shm/file", strconv.Itoa(512<<20))
	if r.code == 0 {
		t.Errorf("half a gigabyte of files in memory fits in 128M: %v", r)
	}
	if got := h.ok("exec", "b", "--", "echo", "fine"); got != "fine" {
		t.Errorf("the neighbour says %q", got)
	}
}

// TestDiskLimit tests that writing fails with ENOSPC at the disk limit of a sandbox, and that removing files makes room
// again.
func TestDiskLimit(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "--disk", "32M", "--memory", "256M", "host")
	for _, file := range []string{"/root/file", "/tmp/file", "/dev/shm/file"} {
		r := h.run("exec", "a", "--", "/.caisson/inside", "test", "fill", file, strconv.Itoa(200<<20))
		var n int
		if f := strings.Fields(r.stdout); len(f) > 0 {
			n, _ = strconv.Atoi(f[0])
		}
		if r.code == 0 || !strings.Contains(r.stdout, "no space") || n < 10<<20 || file == "/root/file" && n > 33<<20 {
			t.Errorf("%s: %v", file, r)
		}
		h.ok("exec", "a", "--", "rm", file)
	}
	h.ok("exec", "a", "--", "/.caisson/inside", "test", "fill", "/root/file", strconv.Itoa(10<<20))
	big := strings.Repeat("x", 64<<20)
	h.fails(6, "there is no space for", "cp", h.write("big", big), "a:/root/big") // is not begun
	r := h.runWith(strings.NewReader(big), "sandbox", "files", "write", "a:/root/big")
	if r.code != 6 || !strings.Contains(r.stderr, "no space") {
		t.Errorf("64M were written into 32M: %v", r)
	}
	if got := h.sh("a", "ls /root"); got != "file" {
		t.Errorf("of the failed copy there is %q", got)
	}
}

// TestPromise9WorkspaceFillsDisk tests that a sandbox that exceeds the limit of its workspace, which is stored in a
// host directory, is stopped with a reason, that its changes are still available, and that its neighbour with the same
// limit keeps working.
func TestPromise9WorkspaceFillsDisk(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir := h.userDir("project", map[string]string{"a.txt": "a\n"})
	id := h.ok("sandbox", "create", "--name", "a", "--disk", "64M", "--workspace", dir)
	h.ok("sandbox", "create", "--name", "b", "--disk", "64M", "--workspace", h.userDir("other", nil))
	h.sh("a", "echo b >> /workspace/a.txt; head -c 1000000 /dev/zero > /workspace/few")
	h.sh("b", "head -c 50000000 /dev/zero > /workspace/many")
	h.fails(1, "caisson: the sandbox was ended: the changes in its workspace take ",
		"exec", "a", "--", "sh", "-c", "while head -c 2000000 /dev/zero >> /workspace/big; do sleep 0.1; done")
	sb := h.waitState(id, caisson.Failed)
	if !strings.Contains(sb.Reason, "of at most 64MiB") {
		t.Errorf("it ended because %q", sb.Reason)
	}
	if info, err := os.Stat(dir + "/big"); err == nil {
		t.Errorf("the directory has the file of %d bytes", info.Size())
	}
	if c := h.diff("a")["a.txt"]; c.Added != 1 {
		t.Errorf("of what was changed there is %+v", c)
	}
	h.ok("sync", "--yes", "--only", "a.txt", "a")
	if data, err := os.ReadFile(dir + "/a.txt"); err != nil || string(data) != "a\nb\n" {
		t.Errorf("a.txt is %q, %v", data, err)
	}
	if got := h.ok("exec", "b", "--", "echo", "fine"); got != "fine" {
		t.Errorf("the neighbour says %q", got)
	}
}

// TestOutputCap tests that output of a command without a stream is truncated at 2 MiB, and that the response reports
// it.
func TestOutputCap(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "host")
	r := runAPI(t, h, `{"command":["sh","-c","head -c 5000000 /dev/zero | tr '\\0' x; echo small >&2"]}`)
	if len(r.Stdout.Text) != 2<<20 || !r.Stdout.Truncated || r.Stdout.Size != 5000000 || r.Stderr.Text != "small\n" || r.Stderr.Truncated {
		t.Errorf("%d of %d bytes, truncated %v; stderr %+v", len(r.Stdout.Text), r.Stdout.Size, r.Stdout.Truncated, r.Stderr)
	}
	begin := time.Now()
	r = runAPI(t, h, `{"command":["yes"],"timeout":"1s"}`)
	if r.Exit.Reason != "time limit" || !r.Stdout.Truncated || time.Since(begin) > 20*time.Second {
		t.Errorf("an endless program: %+v after %v", r.Exit, time.Since(begin))
	}
}

type runAnswer struct {
	Stdout, Stderr struct {
		Text      string
		Size      int64
		Truncated bool
	}
	Exit caisson.ExitStatus
}

// runAPI runs a program to its end through the API, without a stream.
func runAPI(t *testing.T, h *host, body string) (answer runAnswer) {
	t.Helper()
	resp, err := h.http().Post("http://caisson/api/v1/sandboxes/a/exec", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	return answer
}

// TestLogIsBounded tests that the log of a command that never stops writing is limited and keeps the newest output.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	id := h.ok("sandbox", "create", "host", "--", "sh", "-c", "seq 3000000; echo the end; exec sleep 1000")
	poll.Until(t, settle, func() bool { return strings.HasSuffix(h.ok("sandbox", "logs", id), "\nthe end") })
	log := h.ok("sandbox", "logs", id)
	if len(log) > 5<<20 || !strings.Contains(log, "\n3000000\n") || strings.Contains(log, "\n5\n") {
		t.Errorf("the log has %d bytes: %.100q … %.100q", len(log), log, log[max(0, len(log)-100):])
	}
	var size int64
	for _, name := range []string{"log", "log.old"} {
		if info, err := os.Stat(filepath.Join(h.data, "sandboxes", id, name)); err == nil {
			size += info.Size()
		}
	}
	if size > 5<<20 {
		t.Errorf("the log takes %d bytes on disk", size)
	}
}

// TestDiskFull tests that on a full disk every change is rejected or rolled back with an error that gives the reason,
// that the daemon and running sandboxes keep working, and that everything works when there is room again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure("idleExit: 10m", "limits: {diskReserve: 0}")
	if err := os.Mkdir(h.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("caisson-test", h.data, "tmpfs", 0, "size=300m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		poll.Until(t, settle, func() bool { return unix.Unmount(h.data, 0) != unix.EBUSY })
	})
	t.Cleanup(h.force)
	d := h.serve()
	h.ok("sandbox", "create", "--name", "a", "host")
	h.sh("a", "head -c 20000000 /dev/urandom > /root/file")
	before := len(h.files())
	ballast := filepath.Join(h.data, "ballast")
	fillUp(t, ballast)
	for _, args := range [][]string{
		{"sandbox", "create", "host"}, {"sandbox", "snapshot", "a"}, {"sandbox", "fork", "a"}, {"sandbox", "pause", "a"}, {"sandbox", "stop", "a"},
	} {
		r := h.run(args...)
		if r.code == 0 || strings.Contains(r.stderr, "internal error") {
			t.Errorf("on a full disk: %v\n%s", r, h.serveLog())
		}
		if sb := h.show("a"); sb.State != caisson.Running {
			t.Fatalf("after %v: %s (%s)", r, sb.State, sb.Reason)
		}
		if got := h.ok("exec", "a", "--", "stat", "-c", "%s", "/root/file"); got != "20000000" {
			t.Errorf("after %v the file has %s bytes", r, got)
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if n := len(h.files()); n > before {
		t.Errorf("%d files are left of what could not be done: %s", n-before, strings.Join(h.files(), "\n"))
	}
	h.ok("sandbox", "fork", "--name", "b", "a")
	h.ok("sandbox", "pause", "a")
	h.ok("sandbox", "rm", "a", "b")
	h.wantRemains(h.mounts("self"))
	d.end()
}

// fillUp writes a file until the disk is full.
func fillUp(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		err = nil
	}
}

// TestRace tests that of concurrent commands on one sandbox each succeeds or gets a conflict, and that the final state
// is the result of one of them.
func TestRace(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "host")
	for range 5 {
		var mu sync.Mutex
		won := map[string]int{}
		each(6, 6, func(i int) {
			verb := []string{"pause", "stop"}[i%2]
			args := []string{"sandbox", verb, "a"}
			r := h.run(args...)
			mu.Lock()
			defer mu.Unlock()
			switch r.code {
			case 0:
				won[verb]++
			case 4:
			default:
				t.Errorf("%v", r)
			}
		})
		switch sb := h.show("a"); sb.State {
		case caisson.Paused:
			h.ok("sandbox", "resume", "a")
		case caisson.Stopped:
			h.ok("sandbox", "start", "a")
		default:
			t.Fatalf("%v won, and the sandbox is %s (%s)", won, sb.State, sb.Reason)
		}
		if won["pause"] > 1 || won["stop"] > 1 || len(won) == 0 {
			t.Errorf("won: %v", won)
		}
		h.ok("exec", "a", "--", "true")
	}
	// A remove takes precedence over all other commands, and succeeds once.
	codes := map[int]int{}
	var mu sync.Mutex
	each(4, 4, func(int) {
		r := h.run("sandbox", "rm", "a")
		mu.Lock()
		defer mu.Unlock()
		codes[r.code]++
	})
	if codes[0] != 1 || codes[0]+codes[3]+codes[4] != 4 {
		t.Errorf("removes ended with %v", codes)
	}
	// Concurrent creates with one name.
	clear(codes)
	each(4, 4, func(int) {
		r := h.run("sandbox", "create", "--name", "same", "host")
		mu.Lock()
		defer mu.Unlock()
		codes[r.code]++
	})
	if codes[0] != 1 || codes[4] != 3 {
		t.Errorf("creates of one name ended with %v", codes)
	}
}

// TestRegistryUnreachable tests that an unreachable registry soon causes the right kind of error and leaves nothing
// behind.
func TestRegistryUnreachable(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	address := freeAddress(t)
	h.configure("insecureRegistries: [" + address + "]")
	for _, args := range [][]string{
		{"sandbox", "create", address + "/some/image:1"}, {"image", "pull", address + "/some/image:1"}, {"exec", "--rm", address + "/some/image:1", "--", "true"},
	} {
		r := h.run(args...)
		if r.code != 7 || r.took > 60*time.Second {
			t.Errorf("%v", r)
		}
	}
	if got := h.ok("sandbox", "ls", "-q"); got != "" {
		t.Errorf("there are sandboxes: %s", got)
	}
}
