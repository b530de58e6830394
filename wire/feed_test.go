package wire

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
)

// A slowLedger cannot begin a journal, and returns that error only when release is closed.
type slowLedger struct {
	release    chan struct{}
	begun, now atomic.Int64
}

func (l *slowLedger) Begin(context.Context) (caisson.ID, *os.File, error) {
	l.now.Add(1) // first, because a test that has seen the begin reads this
	l.begun.Add(1)
	<-l.release
	l.now.Add(-1)
	return "", nil, errors.New("the disk is full")
}
func (l *slowLedger) Lessor(caisson.ID) caisson.Lessor         { return nil }
func (l *slowLedger) JournalGrew()                             {}
func (l *slowLedger) Finish(context.Context, caisson.ID) error { return nil }

// hear runs the engine's end of a feed, and returns the other end and a channel with its error.
func hear(t *testing.T, cfg Config, handlers Handlers) (*Manager, *net.UnixConn, <-chan error) {
	t.Helper()
	engine, process := connected(t)
	m := &Manager{
		cfg: cfg, handlers: handlers, log: slog.New(slog.DiscardHandler),
		wires: map[caisson.ID]*wireState{}, detached: lru.New[caisson.ID, caisson.Guest](maxDetached), streams: newStreams(),
	}
	done := make(chan error, 1)
	go func() {
		done <- (&processState{m: m, link: &link{}, tools: newToolLimiter(), pendingStreams: newStreamLimiter()}).listen(context.Background(), engine)
	}()
	return m, process, done
}

func say(t *testing.T, c *net.UnixConn, m feedMessage) {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

// TestRotateFlood checks that a wire process that requests journals without end receives one at a time.
func TestRotateFlood(t *testing.T) {
	t.Parallel()
	l := &slowLedger{release: make(chan struct{})}
	_, process, done := hear(t, Config{Ledger: l}, Handlers{})
	for range 1000 {
		say(t, process, feedMessage{Rotate: true})
	}
	process.Close() // returns from listen only after all requests were read
	eventually(t, func() error {
		if l.begun.Load() == 0 {
			return errors.New("no journal was begun")
		}
		return nil
	})
	if n := l.now.Load(); n != 1 {
		t.Errorf("%d journals were begun at once", n)
	}
	close(l.release)
	<-done
	if n := l.begun.Load(); n > 2 {
		t.Errorf("%d journals were begun in no time", n)
	}
}

// TestRotateInterval checks that a request is not lost while a journal is begun, and is answered after at least a second.
func TestRotateInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &slowLedger{release: make(chan struct{})}
		close(l.release)
		s := &processState{m: &Manager{cfg: Config{Ledger: l}, log: slog.New(slog.DiscardHandler)}, link: &link{}, tools: newToolLimiter()}
		asked, done := make(chan struct{}, 1), make(chan struct{})
		go s.rotate(t.Context(), asked, done)
		for range 2 {
			asked <- struct{}{}
			synctest.Wait()
		}
		if n := l.begun.Load(); n != 1 {
			t.Errorf("at first %d journals", n)
		}
		time.Sleep(rotateInterval)
		synctest.Wait()
		if n := l.begun.Load(); n != 2 {
			t.Errorf("after a second %d journals", n)
		}
		close(done)
	})
}

// TestDecisionsAreBounded checks that a compromised wire process cannot flood the record of events.
func TestDecisionsAreBounded(t *testing.T) {
	t.Parallel()
	id := caisson.NewID(caisson.SandboxPrefix)
	var heard atomic.Int64
	m, process, done := hear(t, Config{}, Handlers{Decided: func(_ caisson.Guest, list []caisson.Decision) { heard.Add(int64(len(list))) }})
	m.mu.Lock()
	m.detached.Put(id, caisson.Guest{Sandbox: id})
	m.mu.Unlock()
	list := slices.Repeat([]caisson.Decision{{Kind: "name", Rule: -1, Count: 1}}, maxDecisions)
	start := time.Now()
	for range 200 {
		say(t, process, feedMessage{Sandbox: id, Decisions: list})
	}
	say(t, process, feedMessage{Sandbox: id, Decisions: append(list, list[0])})
	if err := <-done; !errors.Is(err, errMessage) {
		t.Errorf("%d decisions in a message: %v, want %v", len(list)+1, err, errMessage)
	}
	most := decisionsBurst + int64(time.Since(start).Seconds()*decisionsRate) + 1
	if n := heard.Load(); n < decisionsBurst-maxDecisions || n > most {
		t.Errorf("%d decisions were taken, want about %d", n, decisionsBurst)
	}
}

// TestUsesAreBounded checks that reports of use arrive in parts, and that a larger one than the wire process may send ends it.
func TestUsesAreBounded(t *testing.T) {
	t.Parallel()
	var heard atomic.Int64
	_, process, done := hear(t, Config{}, Handlers{Used: func(list []caisson.IngressUse) { heard.Add(int64(len(list))) }})
	list := slices.Repeat([]caisson.IngressUse{{Sandbox: caisson.NewID(caisson.SandboxPrefix), Active: true}}, 2*maxUses+1)
	newFeed(process).reportUses(list)
	say(t, process, feedMessage{Uses: list[:maxUses+1]})
	if err := <-done; !errors.Is(err, errMessage) {
		t.Errorf("%d uses in a message: %v, want %v", maxUses+1, err, errMessage)
	}
	if n := heard.Load(); n != int64(len(list)) {
		t.Errorf("%d uses were taken, want %d", n, len(list))
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	var q decisionQuota
	now := time.Unix(1000, 0)
	take := func(n int64, ok bool, dropped int64) {
		t.Helper()
		if gotOK, got := q.take(now, n); gotOK != ok || got != dropped {
			t.Errorf("%t, %d, want %t, %d", gotOK, got, ok, dropped)
		}
	}
	take(decisionsBurst, true, 0)
	take(1, false, 1)
	take(7, false, 0)
	now = now.Add(time.Second)
	take(decisionsRate, true, 0)
	take(1, false, 0)
	now = now.Add(droppedInterval)
	take(1, true, 8)
	take(1, true, 0)
}
