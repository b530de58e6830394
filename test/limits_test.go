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

// lastPort is the latest port that a test was given.
var lastPort atomic.Int32

// freeAddress returns an address on loopback that nobody listens on now, and that nobody is given by chance: the kernel takes the ports of
// connections, and of who does not mind which, from above these.
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

// A fork bomb stops at the sandbox's limit; the sandbox and its neighbours go on.
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
	// As root inside as well as as anybody else.
	h.ok("sandbox", "stop", "--grace", "0s", "a")
	h.ok("sandbox", "start", "a")
	h.ok("exec", "-u", "1000", "-w", "/", "a", "--", "true")
}

// Who takes more memory than the limit ends for that reason, which is said; the neighbours go on.
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

// The disk of a sandbox ends at its limit with the error that programs know, and removing files makes room again.
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
	r := h.run("cp", h.write("big", strings.Repeat("x", 64<<20)), "a:/root/big")
	if r.code == 0 || !strings.Contains(r.stderr, "space") {
		t.Errorf("64M were copied into 32M: %v", r)
	}
	if got := h.sh("a", "ls /root"); got != "file" {
		t.Errorf("of the failed copy there is %q", got)
	}
}

// What is written to a workspace is in a directory of the host's: who goes beyond its limit is ended, says why, and what it has changed
// can still be had. The neighbour, with as much, goes on.
func TestPromise9WorkspaceFillsDisk(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir := h.userDir("project", map[string]string{"a.txt": "a\n"})
	id := h.ok("sandbox", "create", "--name", "a", "--disk", "64M", "--workspace", dir)
	h.ok("sandbox", "create", "--name", "b", "--disk", "64M", "--workspace", h.userDir("other", nil))
	h.sh("a", "echo b >> /workspace/a.txt; head -c 1000000 /dev/zero > /workspace/few")
	h.sh("b", "head -c 50000000 /dev/zero > /workspace/many")
	h.fails(1, "caisson: the sandbox was ended: what it has written to its workspace takes ",
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

// Output that nobody asked for in a stream is cut at 2 MiB, and the answer says so.
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

// The log of a command that never stops writing is bounded, and keeps the newest.
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

// On a full disk every change is refused or undone with an error that says so; the daemon and what runs go on, and when
// there is room again everything works.
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

// fillUp writes a file until no byte more fits.
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

// Of commands that race for one sandbox each wins or is told why not, and the end is what one of them wanted.
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
	// A remove wins against everything, once.
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
	// One name, many makers.
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

// A registry that cannot be reached is an error of that kind, and soon; nothing is half-made.
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
