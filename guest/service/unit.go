package service

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

const (
	minBackoff     = 500 * time.Millisecond // delay before the first restart of a service; doubled after each further failure
	maxBackoff     = time.Minute            // longest delay before a service is restarted
	stableTime     = 30 * time.Second       // a service that has run so long has no consecutive failures any more
	stopGrace      = 10 * time.Second       // time between asking a process to end and killing it
	portCheckPause = 10 * time.Second       // minimum time between two checks of a service that is ready and has no command
)

// A unit runs one service of a supervisor and tracks its condition.
type unit struct {
	supervisor *Supervisor              // supervisor that the unit belongs to
	service    caisson.Service          // the service that the unit runs
	log        *ring                    // the end of the service's output
	condition  caisson.ServiceCondition // condition of the service; guarded by supervisor.mu

	predecessorDone <-chan struct{}    // closed when the unit that this unit replaces has ended; nil if it replaces none
	ctx             context.Context    // ends when remove is called
	remove          context.CancelFunc // ends the service for good
	restart         chan struct{}      // contains an element if a restart was requested
	done            chan struct{}      // closed when the unit has ended
}

// newUnit returns a unit to run the service svc. If old is not nil, the new unit replaces it: it keeps old's log, and starts the
// service when old has ended.
func newUnit(s *Supervisor, svc caisson.Service, old *unit) *unit {
	u := &unit{supervisor: s, service: svc, log: newRing(), restart: make(chan struct{}, 1), done: make(chan struct{})}
	u.ctx, u.remove = context.WithCancel(context.Background())
	if old != nil {
		u.log, u.predecessorDone = old.log, old.done
	}
	u.condition = caisson.ServiceCondition{State: caisson.ServiceStarting, Since: time.Now().UTC()}
	return u
}

// sameService reports whether two services are equal. A command that is nil equals an empty command.
func sameService(a, b caisson.Service) bool {
	if len(a.Command) == 0 && len(b.Command) == 0 {
		a.Command, b.Command = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// run runs the service, and starts it again as its restart policy says, until it is removed.
func (u *unit) run() {
	defer close(u.done)
	if u.predecessorDone != nil {
		<-u.predecessorDone
	}
	if len(u.service.Command) == 0 {
		u.checkPort()
		return
	}
	for failures := 0; u.ctx.Err() == nil; {
		began := time.Now()
		end := u.runOnce()
		if u.ctx.Err() != nil {
			return
		}
		if end.restart || time.Since(began) >= stableTime {
			failures = 0
		}
		if !end.restart {
			failures++
			end.restart = u.awaitRestart(end, failures)
			if end.restart {
				failures = 0
			}
		}
		u.supervisor.setCondition(u, func(c *caisson.ServiceCondition) { c.Restarts, c.Failures = c.Restarts+1, failures })
	}
}

// An outcome is how one execution of a service's command has ended.
type outcome struct {
	exit    caisson.ExitStatus // exit status of the command
	message string             // reason of a failure; "" if it is the exit status
	restart bool               // the command was ended because a restart was requested
}

// failed reports whether the execution has failed.
func (e outcome) failed() bool { return e.message != "" || !e.exit.Success() }

// awaitRestart waits until the service is to be started again: after a delay, if its restart policy says that it is restarted, or
// until a restart is requested; then requested is true. It also returns when the service is removed. failures is the number of
// consecutive failures.
func (u *unit) awaitRestart(e outcome, failures int) (requested bool) {
	var retry <-chan time.Time
	again := u.service.Restart == caisson.RestartAlways || u.service.Restart == caisson.RestartOnFailure && e.failed()
	wait := min(minBackoff<<min(failures-1, 16), maxBackoff)
	if again {
		retry = time.After(wait)
	}
	u.supervisor.setCondition(u, func(c *caisson.ServiceCondition) {
		c.PID, c.Exit, c.Message, c.Failures = 0, &e.exit, e.message, failures
		switch {
		case again:
			c.State, c.RetryAt = caisson.ServiceBackoff, time.Now().Add(wait).UTC()
		case e.failed():
			c.State = caisson.ServiceFailed
		default:
			c.State, c.Failures = caisson.ServiceStopped, 0
		}
	})
	select {
	case <-retry:
		return false
	case <-u.restart:
		return true
	case <-u.ctx.Done():
		return false
	}
}

// runOnce starts the service's command and returns when the command has ended.
func (u *unit) runOnce() outcome {
	if u.portTaken() {
		message := fmt.Sprintf("port %d is already in use by another process of the sandbox: end that process, or give the service another port", u.service.Port)
		fmt.Fprintln(u.log, "[caisson: "+message+"]")
		return outcome{exit: caisson.ExitStatus{Code: 1}, message: message}
	}
	p, err := u.supervisor.host.Start(u.service, u.log)
	if err != nil {
		message := "it cannot be started: " + shortText(err)
		fmt.Fprintln(u.log, "[caisson: "+message+"]")
		return outcome{exit: caisson.ExitStatus{Code: 127}, message: message}
	}
	u.supervisor.setCondition(u, func(c *caisson.ServiceCondition) {
		c.State, c.PID, c.Message, c.RetryAt = caisson.ServiceStarting, p.PID(), "", time.Time{}
	})
	ctx, cancel := context.WithCancel(u.ctx)
	checked := make(chan error, 1)
	var checks sync.WaitGroup
	checks.Go(func() { checked <- u.awaitReady(ctx) })
	e := u.follow(p, checked)
	cancel()
	checks.Wait()
	e.exit = p.Exit()
	return e
}

// portTaken reports whether another process accepts connections at the service's port, before the service is started. Otherwise
// the readiness check would succeed because of that process.
func (u *unit) portTaken() bool {
	if u.service.Port == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(u.ctx, checkTimeout)
	defer cancel()
	conn, err := u.supervisor.host.Dial(ctx, u.service.Port)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// follow waits until the process p has ended. It ends p when the service is removed, restarted or not ready in time. checked
// receives the result of awaitReady.
func (u *unit) follow(p Process, checked <-chan error) (e outcome) {
	stable := time.After(stableTime)
	for {
		select {
		case <-p.Done():
			return e
		case <-u.ctx.Done():
			stopProcess(p)
			return e
		case <-u.restart:
			stopProcess(p)
			e.restart = true
			return e
		case <-stable:
			u.supervisor.setCondition(u, func(c *caisson.ServiceCondition) { c.Failures = 0 })
		case err := <-checked:
			checked = nil
			if err != nil {
				e.message = shortText(err)
				stopProcess(p)
				return e
			}
			u.supervisor.setCondition(u, func(c *caisson.ServiceCondition) { c.State, c.Message = caisson.ServiceReady, "" })
		}
	}
}

// stopProcess calls Terminate, and Kill if the process has not ended after stopGrace. It returns when the process has ended.
func stopProcess(p Process) {
	p.Terminate()
	select {
	case <-p.Done():
		return
	case <-time.After(stopGrace):
	}
	p.Kill()
	<-p.Done()
}

// awaitReady checks the service until it is ready. Returns an error if that takes longer than its timeout, and nil if ctx ends.
func (u *unit) awaitReady(ctx context.Context) error {
	r := u.service.Readiness
	if r == nil {
		return nil
	}
	for clock := u.newClock(); ; {
		err := check(ctx, u.supervisor.host, u.service)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case clock.expired():
			return fmt.Errorf("not ready within %v: %w", time.Duration(r.Timeout), err)
		}
		u.supervisor.setCondition(u, func(c *caisson.ServiceCondition) { c.Message = shortText(err) })
		if !sleep(ctx, time.Duration(r.Interval)) {
			return nil
		}
	}
}

// checkPort checks a service without a command, a port that another process serves, until the service is removed.
func (u *unit) checkPort() {
	r := u.service.Readiness
	if r == nil { // does not happen: a service without a command always has a readiness check
		return
	}
	for clock := u.newClock(); ; {
		err := check(u.ctx, u.supervisor.host, u.service)
		if u.ctx.Err() != nil {
			return
		}
		expired, pause := clock.expired(), time.Duration(r.Interval)
		u.supervisor.setCondition(u, func(c *caisson.ServiceCondition) {
			switch {
			case err == nil:
				c.State, c.Message = caisson.ServiceReady, ""
				pause = max(pause, portCheckPause)
				return
			case c.State == caisson.ServiceReady: // the service is not ready any more; its timeout begins again
				c.State, clock = caisson.ServiceStarting, u.newClock()
			case expired:
				c.State = caisson.ServiceFailed
			}
			c.Message = shortText(err)
		})
		if !sleep(u.ctx, pause) {
			return
		}
	}
}

// A readyClock measures how long a service has not been ready. The time between two checks counts at most with the longest time
// that a check and the pause before it can take, because the clock jumps forward when a paused sandbox is resumed.
type readyClock struct {
	left, maxStep time.Duration // rest of the timeout; longest time that one check and the pause before it can take
	last          time.Time     // time of the last call of expired
}

// newClock returns a clock that expires after the timeout of the service's readiness check.
func (u *unit) newClock() *readyClock {
	r := u.service.Readiness
	return &readyClock{time.Duration(r.Timeout), time.Duration(r.Interval) + checkTimeout, time.Now()}
}

// expired subtracts the time since the last call from the rest of the timeout, and reports whether none is left.
func (c *readyClock) expired() bool {
	now := time.Now()
	c.left -= min(now.Sub(c.last), c.maxStep)
	c.last = now
	return c.left <= 0
}

// sleep waits for the duration d, and returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// shortText returns the text of err as one line of at most maxMessage bytes.
func shortText(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*caisson.Error](err); ok {
		text = e.Msg
	}
	return safetext.Short(safetext.Line(text), maxMessage)
}
