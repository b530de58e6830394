package test_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/testneed"
)

// each calls f for 0 to n-1, at most parallel at a time, and waits for all calls.
func each(n, parallel int, f func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}

// sockets returns the inodes of a process's sockets, and its descriptors of network namespaces, TAPs and other files of
// the data directory.
func sockets(t *testing.T, pid int) map[string]bool {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && (strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "pipe:")) {
			found[to] = true
		}
	}
	return found
}

// TestConcurrentCreatesShareNoSockets tests that concurrent creates, with processes and waits in progress, do not leak
// sockets of one sandbox to another: those of gVisor lack CLOEXEC.
func TestConcurrentCreatesShareNoSockets(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve()
	const n = 20
	ids := make([]string, n)
	each(n, n, func(i int) {
		ids[i] = h.ok("sandbox", "create", "host", "--", "sh", "-c", "echo started; sleep 1000")
		if r := h.run("exec", "-d", ids[i], "--", "sleep", "1000"); r.code != 0 {
			t.Errorf("%v", r)
		}
	})
	if t.Failed() {
		return
	}
	owner := map[string]string{} // Owners of sockets and pipes.
	note := func(who string, pid int) {
		for s := range sockets(t, pid) {
			if other, ok := owner[s]; ok && other != who {
				t.Errorf("%s is held by %s and by %s", s, other, who)
			}
			owner[s] = who
		}
	}
	count := 0
	for pid, args := range h.sandboxProcesses() {
		for _, id := range ids {
			if strings.Contains(args, id) {
				note(id, pid)
				count++
				for _, fd := range openFiles(t, pid) {
					if strings.Contains(fd, "/sandboxes/sb-") && !strings.Contains(fd, id) {
						t.Errorf("%s holds %s", id, fd)
					}
				}
			}
		}
	}
	if count < 2*n {
		t.Errorf("found %d processes of %d sandboxes", count, n)
	}
	// The daemon shares pipes with its wire process, but nothing with a sandbox.
	ours := []int{d.cmd.Process.Pid}
	for pid, args := range children(d.cmd.Process.Pid) {
		if strings.HasPrefix(args, "caisson-wire") {
			ours = append(ours, pid)
		}
	}
	for _, pid := range ours {
		note("Caisson", pid)
	}
}

func openFiles(t *testing.T, pid int) (list []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			list = append(list, to)
		}
	}
	return list
}

// TestManySandboxesAtOnce tests that very many sandboxes can run, be used and be removed concurrently.
func TestManySandboxesAtOnce(t *testing.T) {
	n := 40
	if testneed.All() {
		n = 300 // Takes a minute and 6 GB of memory.
	}
	h := newHost(t)
	d := h.serve()
	ids := make([]string, n)
	begin, free := time.Now(), available(t)
	each(n, 8, func(i int) {
		if r := h.run("sandbox", "create", "--memory", "256M", "host"); r.code != 0 {
			t.Errorf("%v", r)
		} else {
			ids[i] = strings.TrimSpace(r.stdout)
		}
	})
	if t.Failed() {
		return
	}
	t.Logf("%d sandboxes after %v, %d MiB each; the daemon has %s", n, time.Since(begin), (free-available(t))/int64(n)>>20, memory(d.cmd.Process.Pid))
	begin = time.Now()
	each(n, 8, func(i int) {
		if r := h.run("exec", ids[i], "--", "hostname"); r.code != 0 || strings.TrimSpace(r.stdout) != ids[i] {
			t.Errorf("%v", r)
		}
	})
	t.Logf("%d processes after %v", n, time.Since(begin))
	begin = time.Now()
	each(n/20, 4, func(i int) {
		if r := h.run(append([]string{"sandbox", "rm"}, ids[20*i:20*i+20]...)...); r.code != 0 {
			t.Errorf("%v", r)
		}
	})
	t.Logf("%d removed after %v; the daemon has %s", n, time.Since(begin), memory(d.cmd.Process.Pid))
}

// available returns the available memory of the host in bytes.
func available(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n << 10
}

// memory returns the anonymous memory of a process in the kernel's notation.
func memory(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // For a log only.
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return "?"
}
