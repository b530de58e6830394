package sandboxes

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/service"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/keylock"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// supervisors starts the supervisors of services in sandboxes, sends the lists of services to them, and follows the conditions of
// the services.
type supervisors struct {
	runtime interface {
		caisson.Dialer
		execer
		doneReporter
	}
	states     states            // stored records of sandboxes
	programs   caisson.Programs  // sets of programs that this daemon supports
	background *background.Group // background goroutines of the core
	log        *slog.Logger
	applying   keylock.Locks // locks by sandbox; held while services are sent to its supervisor

	mu        sync.Mutex
	followers map[caisson.ID]*followerHandle // goroutines that follow the conditions of services, by sandbox; guarded by mu
}

// followerHandle identifies the running goroutine of a [follower]; cancel ends the goroutine.
type followerHandle struct{ cancel context.CancelFunc }

// follow starts a goroutine that follows the conditions of a sandbox's services; it first ends an earlier one.
func (s *supervisors) follow(sb *caisson.Sandbox) {
	s.unfollow(sb.ID)
	s.ensureFollowed(sb)
}

// ensureFollowed starts a goroutine that follows the conditions of a running sandbox's services, unless there is one.
func (s *supervisors) ensureFollowed(sb *caisson.Sandbox) {
	if len(sb.Spec.Services) == 0 || !s.programs.Supports(sb.Build) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followers[sb.ID] != nil {
		return
	}
	ctx, cancel := context.WithCancel(s.background.Context())
	handle := &followerHandle{cancel}
	f := &follower{
		supervisors: s, id: sb.ID, handle: handle, began: time.Now(), published: map[string]caisson.ServiceState{},
		events: rate.NewLimiter(rate.Every(serviceEventPause), serviceEventBurst),
	}
	if s.background.Start(func(context.Context) { f.run(ctx) }) {
		s.followers[sb.ID] = handle
	}
}

// unfollow ends the goroutine that follows the conditions of a sandbox's services, if there is one.
func (s *supervisors) unfollow(id caisson.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.followers[id]; f != nil {
		f.cancel()
		delete(s.followers, id)
	}
}

// forget removes f, the handle of a follower whose goroutine is about to end, and cancels the context of the follower.
func (s *supervisors) forget(id caisson.ID, f *followerHandle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.cancel()
	if s.followers[id] == f {
		delete(s.followers, id)
	}
}

const (
	supervisorTimeout = time.Minute      // timeout for the start of a supervisor and for each answer
	dialTimeout       = 10 * time.Second // timeout for connecting to a supervisor
)

// dial connects to the supervisor of a sandbox. The sandbox may be hostile, and never accept the connection.
func (s *supervisors) dial(ctx context.Context, id caisson.ID) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return s.runtime.Dial(ctx, id, "unix", service.Socket)
}

// connect connects to the supervisor of a running sandbox. If none runs, connect starts one and sends it the stored services.
func (s *supervisors) connect(ctx context.Context, id caisson.ID) (*os.File, error) {
	conn, err := s.dial(ctx, id)
	if caisson.KindOf(err) != caisson.Unavailable {
		return conn, err
	}
	if err := s.apply(ctx, id); err != nil {
		return nil, err
	}
	return s.dial(ctx, id)
}

// start starts the supervisor in a sandbox, unless it runs already.
func (s *supervisors) start(ctx context.Context, id caisson.ID) error {
	_, said, status, err := runGuestd(ctx, s.runtime, id, caisson.RuntimeExec{Command: []string{guestdPath, "services"}})
	if err == nil && !status.Success() {
		err = caisson.Errorf(caisson.Unavailable, "the supervisor of the sandbox's services cannot be started: %.200s", safetext.Line(said))
	}
	return err
}

// apply sends the stored services of a running sandbox to its supervisor. If no supervisor runs, apply starts one.
func (s *supervisors) apply(ctx context.Context, id caisson.ID) error {
	ctx, cancel := context.WithTimeout(ctx, supervisorTimeout)
	defer cancel()
	release, err := s.applying.Acquire(ctx, string(id))
	if err != nil {
		return err
	}
	defer release()
	sb, err := s.states.get(ctx, id)
	if err != nil {
		return err
	}
	conn, err := s.dial(ctx, id)
	if caisson.KindOf(err) == caisson.Unavailable {
		if err := s.start(ctx, id); err != nil {
			return err
		}
		conn, err = s.dial(ctx, id)
	}
	if err != nil {
		return err
	}
	return service.Apply(ctx, conn, sb.Spec.ServicesRevision, sb.Spec.Env, completeServices(sb))
}

// list returns the conditions of the services of a running sandbox.
func (s *supervisors) list(ctx context.Context, id caisson.ID) ([]service.Condition, error) {
	ctx, cancel := context.WithTimeout(ctx, supervisorTimeout)
	defer cancel()
	conn, err := s.connect(ctx, id)
	if err != nil {
		return nil, err
	}
	return service.List(ctx, conn)
}

// completeServices returns the services of a sandbox with defaults in the fields that are not set.
func completeServices(sb *caisson.Sandbox) []caisson.Service {
	list := make([]caisson.Service, 0, len(sb.Spec.Services))
	for _, s := range sb.Spec.Services {
		s.Cwd = workdir(sb, &caisson.ExecRequest{Workdir: s.Cwd, User: s.User})
		s.User = cmp.Or(s.User, sb.Spec.User, "0:0")
		if s.Restart == "" {
			s.Restart = caisson.RestartAlways
		}
		if s.Readiness == nil && s.Port != 0 {
			s.Readiness = &caisson.Readiness{TCP: true}
		}
		if s.Readiness != nil {
			r := *s.Readiness
			if r.Interval == 0 {
				r.Interval = caisson.DefaultReadinessInterval
			}
			if r.Timeout == 0 {
				r.Timeout = caisson.DefaultReadinessTimeout
			}
			s.Readiness = &r
		}
		list = append(list, s)
	}
	return list
}

// A follower follows the conditions of the services of one sandbox and publishes events about them, until the sandbox ends or is
// suspended.
type follower struct {
	supervisors *supervisors                    // connects to supervisors of services
	id          caisson.ID                      // id of the sandbox
	handle      *followerHandle                 // entry of this follower in supervisors.followers
	began       time.Time                       // time at which the follower was started
	published   map[string]caisson.ServiceState // state in the last event about each service: ready or failed
	events      *rate.Limiter                   // limits the rate of events
}

const (
	followPause    = time.Second // pause before a lost connection to a supervisor is made again; doubles each time
	maxFollowPause = time.Minute // maximum of this pause; it is followPause again after a connection that lasted longer than this
	// crashLoop is the number of consecutive failures of a service after which an event is published.
	crashLoop = 3
	// Rate limit of the events about the services of one sandbox: after serviceEventBurst events, one in each serviceEventPause.
	// Further events are dropped.
	serviceEventPause = 10 * time.Second
	serviceEventBurst = 20 // number of events before the rate is limited
)

// run follows the conditions that the supervisor reports. After the connection to the supervisor was lost, it connects again, and
// starts a supervisor if none runs.
func (f *follower) run(ctx context.Context) {
	defer f.supervisors.forget(f.id, f.handle)
	done := f.supervisors.runtime.Done(f.id)
	go func() {
		select {
		case <-done:
			f.handle.cancel()
		case <-ctx.Done(): // run ends ctx when it returns, so that this goroutine does not outlive it
		}
	}()
	for pause := followPause; ; pause = min(2*pause, maxFollowPause) {
		sb, err := f.supervisors.states.get(ctx, f.id)
		if err != nil || sb.State == caisson.Suspended || len(sb.Spec.Services) == 0 {
			return // Another follower is started when the sandbox is woken or gets services.
		}
		if sb.State == caisson.Running { // Otherwise the sandbox is being stopped or paused.
			began := time.Now()
			err := f.watch(ctx)
			if ctx.Err() != nil {
				return
			}
			f.supervisors.log.DebugContext(ctx, "the services of a sandbox are not followed at present", "sandbox", f.id, "err", err)
			if time.Since(began) > maxFollowPause {
				pause = followPause
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// watch sends the stored services to the supervisor, and follows their conditions until the connection ends.
func (f *follower) watch(ctx context.Context) error {
	if err := f.supervisors.apply(ctx, f.id); err != nil {
		return err
	}
	conn, err := f.supervisors.connect(ctx, f.id)
	if err != nil {
		return err
	}
	return service.Watch(ctx, conn, func(list []service.Condition) { f.observe(ctx, list) })
}

// observe publishes events for the conditions of services that a supervisor reports.
func (f *follower) observe(ctx context.Context, list []service.Condition) {
	sb, err := f.supervisors.states.get(ctx, f.id)
	if err != nil {
		return
	}
	known := map[string]bool{}
	for _, svc := range sb.Spec.Services {
		known[svc.ID] = true
	}
	for _, c := range list {
		var now caisson.ServiceState
		switch {
		case !known[c.ID]:
			continue
		case c.State == caisson.ServiceFailed, c.Failures >= crashLoop:
			now = caisson.ServiceFailed
		case c.State == caisson.ServiceReady && (c.Failures == 0 || f.published[c.ID] == ""):
			now = caisson.ServiceReady
		}
		if now == "" || now == f.published[c.ID] {
			continue
		}
		if f.published[c.ID] == "" && c.Since.Before(f.began) { // The condition is older than this follower.
			f.published[c.ID] = now
			continue
		}
		if !f.events.Allow() {
			continue
		}
		f.published[c.ID] = now
		data := map[string]string{"service": c.ID}
		if now == caisson.ServiceFailed {
			data["failures"] = strconv.Itoa(c.Failures)
			data["reason"] = exitReason(&c)
		}
		f.supervisors.states.event(ctx, sb, "service."+string(now), data)
	}
}

// exitReason returns a description of how a service has ended. It contains no text from the sandbox: events must not have any.
func exitReason(c *service.Condition) string {
	switch {
	case c.Exit == nil:
		return "not ready"
	case strings.HasPrefix(c.Message, "not ready"):
		return "not ready in time"
	}
	return c.Exit.String()
}
