// Package service runs the services of a sandbox. It has the code for the sandbox and for the host.
// [Supervisor] runs in the sandbox, and [Serve] answers requests to it on a unix socket. The host sends requests with [Apply],
// [List], [Watch], [Restart] and [Logs], which treat all answers as hostile.
package service

import (
	"context"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// A Process is a process of a service, or of a check of a service's readiness, that was started.
type Process interface {
	PID() int // returns the id of the process
	// Done returns a channel that is closed when the process and all processes that it has started have ended, and its output has
	// been read.
	Done() <-chan struct{}
	// Exit returns the exit status of the process. It must be called after Done has been closed.
	Exit() caisson.ExitStatus
	// Terminate requests the end of the process and of the processes that it has started.
	Terminate()
	Kill() // kills the process and the processes that it has started
}

// An Environment is the environment in which a [Supervisor] runs services: it starts their processes and connects to their ports.
type Environment interface {
	// Start starts the command of a service, and writes its output to out until the process has ended.
	Start(s caisson.Service, out io.Writer) (Process, error)
	// Dial connects to a TCP port of the sandbox.
	Dial(ctx context.Context, port int) (net.Conn, error)
}

// A Supervisor keeps a set of services running. Its methods are safe for concurrent use.
type Supervisor struct {
	host Environment // starts the processes of services, and connects to their ports

	mu       sync.Mutex       // guards the fields below except running
	revision int64            // number of the current set of services; later sets have higher ones
	units    map[string]*unit // one for each service of the set, which runs it and tracks its condition; by id of the service
	changed  chan struct{}    // closed at the next change of a condition or of the set
	closed   bool             // Close was called
	running  sync.WaitGroup   // the goroutines that run the services
}

// New returns a supervisor without services.
func New(host Environment) *Supervisor {
	return &Supervisor{host: host, units: map[string]*unit{}, changed: make(chan struct{})}
}

// Apply replaces the set of services, and adds env to their environment. Services that have not changed keep running. A changed
// one is ended, and then started as described in list. Returns Conflict if the revision is lower than the current one.
func (s *Supervisor) Apply(revision int64, env map[string]string, list []caisson.Service) error {
	list = slices.Clone(list)
	for i, svc := range list {
		list[i].Env = maps.Clone(env)
		if list[i].Env == nil {
			list[i].Env = map[string]string{}
		}
		maps.Copy(list[i].Env, svc.Env)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return caisson.Errorf(caisson.Conflict, "the sandbox is being stopped")
	case revision < s.revision:
		return caisson.Errorf(caisson.Conflict, "the services have been changed again meanwhile")
	case len(list) > MaxServices:
		return caisson.Errorf(caisson.Invalid, "more than %d services", MaxServices)
	}
	next := map[string]*unit{}
	for _, svc := range list {
		if _, twice := next[svc.ID]; twice {
			return caisson.Errorf(caisson.Invalid, "service %.70q occurs twice", svc.ID)
		}
		next[svc.ID] = nil
	}
	s.revision = revision
	for _, svc := range list {
		old := s.units[svc.ID]
		if old != nil && sameService(old.service, svc) {
			next[svc.ID] = old
			continue
		}
		next[svc.ID] = newUnit(s, svc, old)
	}
	for id, u := range s.units {
		if next[id] != u {
			u.remove()
		}
	}
	for id, u := range next {
		if s.units[id] != u {
			s.running.Go(u.run)
		}
	}
	s.units = next
	s.notify()
	return nil
}

// Set returns the current set of services and its revision. Env of each service includes the variables for all services.
func (s *Supervisor) Set() (revision int64, list []caisson.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.units {
		list = append(list, u.service)
	}
	return s.revision, list
}

// notify closes the channel that Conditions has returned. The caller must hold mu.
func (s *Supervisor) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// setCondition calls change, which changes the condition of u, and notifies watchers if u belongs to the current set of services.
func (s *Supervisor) setCondition(u *unit, change func(c *caisson.ServiceCondition)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := u.condition.State
	change(&u.condition)
	if u.condition.State != was {
		u.condition.Since = time.Now().UTC()
	}
	if s.units[u.service.ID] == u {
		s.notify()
	}
}

// Conditions returns the conditions of all services, sorted by id, and a channel that is closed at the next change.
func (s *Supervisor) Conditions() (list []Condition, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, u := range s.units {
		list = append(list, Condition{id, u.condition})
	}
	slices.SortFunc(list, func(a, b Condition) int { return strings.Compare(a.ID, b.ID) })
	return list, s.changed
}

// unit returns the unit that runs the service id. Returns NotFound if there is no such service.
func (s *Supervisor) unit(id string) (*unit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.units[id]; u != nil {
		return u, nil
	}
	return nil, caisson.Errorf(caisson.NotFound, "the sandbox has no service %.70q", id)
}

// Restart requests that a service is ended, if it runs, and started again. It returns before that has happened.
func (s *Supervisor) Restart(id string) error {
	u, err := s.unit(id)
	if err != nil {
		return err
	}
	if len(u.service.Command) == 0 {
		return caisson.Errorf(caisson.Conflict, "service %s has no command to start again", id)
	}
	select {
	case u.restart <- struct{}{}:
	default: // a restart was requested before and has not begun
	}
	return nil
}

// Close ends all services and returns when they have ended.
func (s *Supervisor) Close() {
	s.mu.Lock()
	s.closed = true
	for _, u := range s.units {
		u.remove()
	}
	s.mu.Unlock()
	s.running.Wait()
}
