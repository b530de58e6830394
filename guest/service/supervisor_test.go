package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-dev/caisson"
)

// A child is a process that a test ends.
type child struct {
	service    caisson.Service
	out        io.Writer
	began      time.Time
	stubborn   bool // it ignores Terminate
	once       sync.Once
	done       chan struct{}
	exit       caisson.ExitStatus
	terminated atomic.Bool
}

func (c *child) PID() int                 { return 7 }
func (c *child) Done() <-chan struct{}    { return c.done }
func (c *child) Exit() caisson.ExitStatus { return c.exit }
func (c *child) Kill()                    { c.end(caisson.ExitStatus{Code: 137, Signal: 9}) }

func (c *child) Terminate() {
	c.terminated.Store(true)
	if !c.stubborn {
		c.end(caisson.ExitStatus{Code: 143, Signal: 15})
	}
}

func (c *child) end(exit caisson.ExitStatus) {
	c.once.Do(func() { c.exit = exit; close(c.done) })
}

// children is a [Host] that keeps what it has started.
type children struct {
	mu   sync.Mutex
	list []*child
	each func(c *child) error // called for each new one
}

func (s *children) Dial(ctx context.Context, port int) (net.Conn, error) { return Dial(ctx, port) }

func (s *children) Start(svc caisson.Service, out io.Writer) (Process, error) {
	c := &child{service: svc, out: out, began: time.Now(), done: make(chan struct{})}
	s.mu.Lock()
	s.list = append(s.list, c)
	each := s.each
	s.mu.Unlock()
	if each != nil {
		if err := each(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (s *children) all() []*child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// newSupervisor returns a supervisor that is closed at the end of the test.
func newSupervisor(t *testing.T, each func(c *child) error) (*Supervisor, *children) {
	started := &children{each: each}
	s := New(started)
	t.Cleanup(s.Close)
	return s, started
}

func apply(t *testing.T, s *Supervisor, revision int64, list ...caisson.Service) {
	t.Helper()
	if err := s.Apply(revision, nil, list); err != nil {
		t.Fatal(err)
	}
}

// only returns the condition of the only service.
func only(t *testing.T, s *Supervisor) Condition {
	t.Helper()
	synctest.Wait()
	list, _ := s.Conditions()
	if len(list) != 1 {
		t.Fatalf("conditions: %+v", list)
	}
	return list[0]
}

func web(restart caisson.RestartPolicy) caisson.Service {
	return caisson.Service{ID: "web", Command: []string{"web"}, Restart: restart}
}

func TestCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, started := newSupervisor(t, func(c *child) error {
			c.end(caisson.ExitStatus{Code: 3})
			return nil
		})
		began := time.Now()
		apply(t, s, 1, web(caisson.RestartAlways))
		c := only(t, s)
		if c.State != caisson.ServiceBackoff || c.Exit.Code != 3 || c.Failures != 1 || c.PID != 0 || !c.RetryAt.Equal(began.Add(minBackoff)) {
			t.Errorf("after the first crash: %+v", c)
		}
		time.Sleep(10 * time.Minute)
		c = only(t, s)
		var at []string
		for _, p := range started.all() {
			at = append(at, p.began.Sub(began).String())
		}
		want := "[0s 500ms 1.5s 3.5s 7.5s 15.5s 31.5s 1m3.5s 2m3.5s 3m3.5s 4m3.5s 5m3.5s 6m3.5s 7m3.5s 8m3.5s 9m3.5s]"
		if fmt.Sprint(at) != want {
			t.Errorf("started at %v, not %s", at, want)
		}
		if c.State != caisson.ServiceBackoff || c.Restarts != len(at)-1 || c.Failures != len(at) {
			t.Errorf("in the loop: %+v", c)
		}
		// A service that has run for a while does not wait long.
		started.mu.Lock()
		started.each = nil
		started.mu.Unlock()
		time.Sleep(time.Minute)
		if c := only(t, s); c.State != caisson.ServiceReady || c.PID != 7 {
			t.Errorf("when it runs: %+v", c)
		}
		started.all()[len(started.all())-1].end(caisson.ExitStatus{Code: 1})
		if c := only(t, s); c.State != caisson.ServiceBackoff || c.Failures != 1 {
			t.Errorf("after it has run for a while: %+v", c)
		}
	})
}

func TestRestartPolicy(t *testing.T) {
	for _, tt := range []struct {
		policy caisson.RestartPolicy
		code   int
		want   caisson.ServiceState
	}{
		{caisson.RestartAlways, 0, caisson.ServiceBackoff},
		{caisson.RestartAlways, 1, caisson.ServiceBackoff},
		{caisson.RestartOnFailure, 0, caisson.ServiceStopped},
		{caisson.RestartOnFailure, 1, caisson.ServiceBackoff},
		{caisson.RestartNever, 0, caisson.ServiceStopped},
		{caisson.RestartNever, 1, caisson.ServiceFailed},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, started := newSupervisor(t, func(c *child) error {
				c.end(caisson.ExitStatus{Code: tt.code})
				return nil
			})
			apply(t, s, 1, web(tt.policy))
			if c := only(t, s); c.State != tt.want || c.Exit.Code != tt.code {
				t.Errorf("%s, exit %d: %+v", tt.policy, tt.code, c)
			}
			// Whatever the policy is, a request starts it again, at once.
			if err := s.Restart("web"); err != nil {
				t.Fatal(err)
			}
			if only(t, s); len(started.all()) != 2 {
				t.Errorf("%s, exit %d: started %d times", tt.policy, tt.code, len(started.all()))
			}
		})
	}
}

func TestCannotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSupervisor(t, func(*child) error { return errors.New("no\x1b[2Jsuch program") })
		apply(t, s, 1, web(caisson.RestartNever))
		c := only(t, s)
		if c.State != caisson.ServiceFailed || c.Exit.Code != 127 || c.Message != "it cannot be started: no [2Jsuch program" {
			t.Errorf("%+v", c)
		}
		if err := s.Restart("other"); caisson.KindOf(err) != caisson.NotFound {
			t.Errorf("restart of another: %v", err)
		}
	})
}

func TestReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var code atomic.Int64 // of the check
		code.Store(1)
		s, started := newSupervisor(t, func(c *child) error {
			if c.service.Command[0] == "check" {
				io.WriteString(c.out, "not yet")
				c.end(caisson.ExitStatus{Code: int(code.Load())})
			} else {
				c.stubborn = true
			}
			return nil
		})
		svc := web(caisson.RestartAlways)
		svc.Readiness = &caisson.Readiness{Exec: []string{"check"}, Interval: caisson.Duration(time.Second), Timeout: caisson.Duration(10 * time.Second)}
		apply(t, s, 1, svc)
		if c := only(t, s); c.State != caisson.ServiceStarting || c.Message != "the check exited with 1: not yet" {
			t.Errorf("before it is ready: %+v", c)
		}
		time.Sleep(10*time.Second + stopGrace)
		// It ignores the signal, and is killed.
		if c := only(t, s); c.State != caisson.ServiceBackoff || c.Message != "not ready within 10s: the check exited with 1: not yet" || c.Exit.Signal != 9 {
			t.Errorf("after its time: %+v", c)
		}
		code.Store(0)
		time.Sleep(minBackoff)
		if c := only(t, s); c.State != caisson.ServiceReady || c.Message != "" || c.Restarts != 1 {
			t.Errorf("when it is ready: %+v", c)
		}
		n := len(started.all())
		if time.Sleep(time.Hour); len(started.all()) != n {
			t.Error("a ready service is still checked")
		}
	})
}

func TestApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, started := newSupervisor(t, func(c *child) error { c.stubborn = true; return nil })
		a, b := web(caisson.RestartAlways), web(caisson.RestartAlways)
		a.ID, b.ID = "a", "b"
		apply(t, s, 1, a, b)
		synctest.Wait()
		first := started.all()
		changed := b
		changed.Env = map[string]string{"X": "1"}
		apply(t, s, 2, a, changed)
		synctest.Wait()
		if len(started.all()) != 2 || !slices.ContainsFunc(first, func(c *child) bool { return c.service.ID == "b" && c.terminated.Load() }) {
			t.Error("the changed service was started before the old one had ended")
		}
		time.Sleep(stopGrace)
		synctest.Wait()
		if now := started.all(); len(now) != 3 || now[2].service.Env["X"] != "1" {
			t.Errorf("%d processes were started", len(now))
		}
		if err := s.Apply(1, nil, nil); caisson.KindOf(err) != caisson.Conflict {
			t.Errorf("an older set: %v", err)
		}
		if err := s.Apply(3, nil, []caisson.Service{a, a}); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("the same id twice: %v", err)
		}
		apply(t, s, 3)
		time.Sleep(stopGrace)
		synctest.Wait()
		for _, c := range started.all() {
			select {
			case <-c.done:
			default:
				t.Errorf("%s still runs", c.service.ID)
			}
		}
	})
}
