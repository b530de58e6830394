package guestd

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// expect reads events until one is op at path.
func expect(t *testing.T, events <-chan caisson.FileEvent, op, path string) {
	t.Helper()
	timeout := time.After(time.Minute)
	var seen []caisson.FileEvent
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				t.Fatalf("the watch ended; want %s %s, saw %v", op, path, seen)
			}
			if ev.Op == op && ev.Path == path {
				return
			}
			seen = append(seen, ev)
		case <-timeout:
			t.Fatalf("want %s %s, saw %v", op, path, seen)
		}
	}
}

func ended(t *testing.T, events <-chan caisson.FileEvent) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the watch did not end")
		}
	}
}

func TestWatch(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		ctx, cancel := context.WithCancel(testContext(t))
		write(t, g, "w/old/x", "1")
		events := must[<-chan caisson.FileEvent](t)(g.WatchFiles(ctx, g.path("w"), true))
		os.WriteFile(g.file("w/a"), []byte("1"), 0o600)
		expect(t, events, "create", g.path("w/a"))
		expect(t, events, "write", g.path("w/a"))
		os.Chmod(g.file("w/a"), 0o644)
		expect(t, events, "chmod", g.path("w/a"))
		os.Remove(g.file("w/a"))
		expect(t, events, "remove", g.path("w/a"))
		os.WriteFile(g.file("w/old/x"), []byte("22"), 0o600)
		expect(t, events, "write", g.path("w/old/x"))

		// New directories are watched too, even if they are filled at once.
		os.MkdirAll(g.file("w/n/e/w"), 0o755)
		os.WriteFile(g.file("w/n/e/w/f"), nil, 0o600)
		expect(t, events, "create", g.path("w/n/e/w/f"))
		os.WriteFile(g.file("w/n/e/w/f"), []byte("1"), 0o600)
		expect(t, events, "write", g.path("w/n/e/w/f"))

		// A directory that is renamed is reported by its new name afterwards.
		os.Rename(g.file("w/n"), g.file("w/m"))
		expect(t, events, "rename", g.path("w/n"))
		expect(t, events, "create", g.path("w/m"))
		expect(t, events, "create", g.path("w/m/e/w/f"))
		os.WriteFile(g.file("w/m/e/w/g"), nil, 0o600)
		expect(t, events, "create", g.path("w/m/e/w/g"))

		// A directory that is moved out is not reported any more.
		os.Rename(g.file("w/m"), g.file("gone"))
		expect(t, events, "rename", g.path("w/m"))
		os.WriteFile(g.file("gone/e/w/silent"), nil, 0o600)
		os.WriteFile(g.file("w/last"), nil, 0o600)
		for {
			ev := <-events
			if strings.Contains(ev.Path, "silent") {
				t.Errorf("reported %v", ev)
			}
			if ev.Path == g.path("w/last") {
				break
			}
		}
		cancel()
		ended(t, events)
	})
}

func TestWatchNotRecursive(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		ctx := testContext(t)
		write(t, g, "w/sub/x", "1")
		events := must[<-chan caisson.FileEvent](t)(g.WatchFiles(ctx, g.path("w"), false))
		single := must[<-chan caisson.FileEvent](t)(g.WatchFiles(ctx, g.path("w/sub/x"), true))
		os.WriteFile(g.file("w/sub/x"), []byte("22"), 0o600)
		os.WriteFile(g.file("w/y"), nil, 0o600)
		if ev := <-events; ev != (caisson.FileEvent{Op: "create", Path: g.path("w/y")}) {
			t.Errorf("first event is %v", ev)
		}
		expect(t, single, "write", g.path("w/sub/x"))
		os.RemoveAll(g.file("w"))
		expect(t, events, "remove", g.path("w"))
		ended(t, events) // the watched path was removed
		ended(t, single)
	})
}

func TestWatchOverflow(t *testing.T) {
	w := &watcher{paths: map[int32]string{1: ""}}
	ev := make([]byte, 16)
	ev[0], ev[1], ev[2], ev[3] = 0xff, 0xff, 0xff, 0xff // descriptor -1
	ev[5] = 0x40                                        // IN_Q_OVERFLOW
	w.handleEvents(append(ev, 1, 2, 3))                 // and an incomplete event
	if len(w.changes) != 1 || w.changes[0].Op != changeOverflow {
		t.Errorf("changes: %v", w.changes)
	}
}

func TestWatchOfSlowReader(t *testing.T) {
	dir := t.TempDir()
	c := NewClient(inProcess(t, dir))
	defer c.Close()
	g := guest{Client: c, host: dir}
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil || len(strings.TrimSpace(string(limit))) > 5 {
		testneed.Skip(t, "inotify-queue", "the kernel's queue is endless or too long to overflow here")
	}
	events := must[<-chan caisson.FileEvent](t)(c.WatchFiles(testContext(t), "/", false))
	names := []string{g.file("a"), g.file("b")}
	for i := range 15_000 { // no receiver reads meanwhile
		os.WriteFile(names[i%2], nil, 0o600)
		os.Remove(names[i%2])
	}
	expect(t, events, "overflow", "/")
}
