package sandboxes

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/service"
)

// ServiceService implements [caisson.Services].
type ServiceService struct {
	finder      finder       // finds sandboxes of the caller's account
	states      states       // stored records of sandboxes
	locks       *locks       // one lock for each sandbox
	supervisors *supervisors // connects to supervisors of services
}

var _ caisson.Services = (*ServiceService)(nil)

// ListServices implements [caisson.Services].
func (s *ServiceService) ListServices(ctx context.Context, ref string) ([]caisson.ServiceStatus, error) {
	sb, err := s.finder.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return s.statuses(ctx, sb)
}

// statuses returns the services of a sandbox with their conditions.
func (s *ServiceService) statuses(ctx context.Context, sb *caisson.Sandbox) ([]caisson.ServiceStatus, error) {
	list := []caisson.ServiceStatus{}
	for _, svc := range sb.Spec.Services {
		list = append(list, caisson.ServiceStatus{Service: svc, ServiceCondition: caisson.ServiceCondition{State: caisson.ServiceStopped}})
	}
	if len(list) == 0 || sb.State != caisson.Running {
		return list, nil
	}
	if err := s.finder.allow(sb, caisson.VerbExec); err != nil {
		return nil, err
	}
	conditions, err := s.supervisors.list(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i].State = caisson.ServiceStarting // replaced below, unless the supervisor does not have the service yet
		for _, c := range conditions {
			if c.ID == list[i].ID {
				list[i].ServiceCondition = c.ServiceCondition
			}
		}
	}
	return list, nil
}

// ApplyServices implements [caisson.Services].
func (s *ServiceService) ApplyServices(ctx context.Context, ref string, req caisson.ServicesRequest) ([]caisson.ServiceStatus, error) {
	if err := validateRequested("services", req.Services); err != nil {
		return nil, err
	}
	sb, err := s.change(ctx, ref, func(old []caisson.Service) ([]caisson.Service, error) {
		if req.Prune {
			old = slices.DeleteFunc(slices.Clone(old), func(svc caisson.Service) bool { return svc.ID != caisson.AgentService })
		}
		return mergeServices(old, req.Services), nil
	})
	if err != nil {
		return nil, err
	}
	return s.statuses(ctx, sb)
}

// ServeAgent adds svc, the service of a sandbox's agent, or changes it, and sets the id of svc. The Readiness of svc must be nil.
// When ServeAgent returns, the service's process has been started, so that it can be distinguished from processes that the agent
// starts.
func (s *ServiceService) ServeAgent(ctx context.Context, ref string, svc caisson.Service) error {
	svc.ID = caisson.AgentService
	sb, err := s.change(ctx, ref, func(old []caisson.Service) ([]caisson.Service, error) {
		return mergeServices(old, []caisson.Service{svc}), nil
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, supervisorTimeout)
	defer cancel()
	for {
		list, err := s.statuses(ctx, sb)
		if err != nil || !slices.ContainsFunc(list, func(o caisson.ServiceStatus) bool { return o.ID == svc.ID && o.State == caisson.ServiceStarting }) {
			return err
		}
		select {
		case <-time.After(startPause):
		case <-ctx.Done():
			return caisson.Wrap(context.Cause(ctx), caisson.Unavailable, "the agent's service does not start; try again")
		}
	}
}

// startPause is the time between two checks whether an agent's service has been started.
const startPause = 10 * time.Millisecond

// RemoveService implements [caisson.Services].
func (s *ServiceService) RemoveService(ctx context.Context, ref, id string) error {
	_, err := s.change(ctx, ref, func(old []caisson.Service) ([]caisson.Service, error) {
		rest := slices.DeleteFunc(slices.Clone(old), func(svc caisson.Service) bool { return svc.ID == id })
		if len(rest) == len(old) {
			return nil, noService(id)
		}
		return rest, nil
	})
	return err
}

// change replaces the services of a sandbox by those that the function to returns for them. It stores the new services, and sends
// them to the sandbox if the sandbox runs.
func (s *ServiceService) change(ctx context.Context, ref string, to func(old []caisson.Service) ([]caisson.Service, error)) (*caisson.Sandbox, error) {
	sb, err := s.finder.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	changed, err := s.store(ctx, sb, to)
	if err != nil {
		return nil, err
	}
	s.states.event(ctx, changed, "services.set", map[string]string{"services": strconv.Itoa(len(changed.Spec.Services))})
	if changed.State == caisson.Running {
		// If the sandbox does not answer now, the goroutine that follows its services sends them later. The sandbox is not locked
		// during the request, because it may never answer. If two sets of services are sent at the same time, the one with the
		// higher revision is in force.
		s.supervisors.ensureFollowed(changed)
		if err := s.supervisors.apply(ctx, changed.ID); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// store stores the services that the function to returns for the current services of a sandbox.
func (s *ServiceService) store(ctx context.Context, sb *caisson.Sandbox, to func(old []caisson.Service) ([]caisson.Service, error)) (*caisson.Sandbox, error) {
	release, err := s.locks.acquireSoon(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.states.update(ctx, sb.ID, func(sb *caisson.Sandbox) error {
		if sb.Pooled {
			return caisson.Errorf(caisson.Conflict, "this sandbox is in a pool and has not been claimed yet")
		}
		if sb.State == caisson.Running {
			if err := s.finder.allow(sb, caisson.VerbExec); err != nil {
				return err
			}
		}
		next, err := to(sb.Spec.Services)
		if err != nil {
			return err
		}
		if err := validateAll("services", next); err != nil { // old and new services may be too many together
			return err
		}
		sb.Spec.Services = next
		sb.Spec.ServicesRevision++
		return nil
	})
}

// RestartService implements [caisson.Services].
func (s *ServiceService) RestartService(ctx context.Context, ref, id string) error {
	sb, err := s.findService(ctx, ref, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, supervisorTimeout)
	defer cancel()
	conn, err := s.supervisors.connect(ctx, sb.ID)
	if err != nil {
		return err
	}
	return service.Restart(ctx, conn, id)
}

// ServiceLogs implements [caisson.Services].
func (s *ServiceService) ServiceLogs(ctx context.Context, ref, id string, follow bool) (io.ReadCloser, error) {
	sb, err := s.findService(ctx, ref, id)
	if err != nil {
		return nil, err
	}
	conn, err := s.supervisors.connect(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	return service.Logs(ctx, conn, id, follow)
}

// findService returns the sandbox that ref names, and an error if it has no service with that id or does not run.
func (s *ServiceService) findService(ctx context.Context, ref, id string) (*caisson.Sandbox, error) {
	sb, err := s.finder.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(sb.Spec.Services, func(svc caisson.Service) bool { return svc.ID == id }) {
		return nil, noService(id)
	}
	return sb, s.finder.allow(sb, caisson.VerbExec)
}

// noService returns the error for a service that a sandbox does not have.
func noService(id string) error {
	return caisson.Errorf(caisson.NotFound, "the sandbox has no service %.70q; caisson service ls lists them", id)
}

// mergeServices returns the services of both lists, sorted by id. A service of over replaces a service of list with the same id.
func mergeServices(list, over []caisson.Service) []caisson.Service {
	all := slices.Clone(list)
	for _, svc := range over {
		all = slices.DeleteFunc(all, func(s caisson.Service) bool { return s.ID == svc.ID })
		all = append(all, svc)
	}
	slices.SortFunc(all, func(a, b caisson.Service) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Limits of services.
const (
	maxServicesSize     = 256 << 10                     // maximum bytes of the commands and environments of one sandbox's services
	maxReadinessTimeout = caisson.Duration(24 * 3600e9) // longest timeout of readiness checks, and time between two: 24 h
	minReadinessPause   = caisson.Duration(100e6)       // shortest time between two readiness checks: 100 ms
	maxReadinessPath    = 1024                          // longest path of an HTTP check for readiness, in bytes
)

// validateRequested checks the services of a request as validateAll does. None may have the id of the agent's service.
func validateRequested(field string, list []caisson.Service) error {
	for i, svc := range list {
		if svc.ID == caisson.AgentService {
			return caisson.Invalidf(fmt.Sprintf("%s[%d].id", field, i), "%s is the id of the service of an agent; choose another one", svc.ID)
		}
	}
	return validateAll(field, list)
}

// validateAll returns an Invalid error if a service of a sandbox is not valid, if two have the same id, or if there are too
// many services, or their commands and environments are too long. The agent's service may be among them.
func validateAll(field string, list []caisson.Service) error {
	if len(list) > service.MaxServices {
		return caisson.Invalidf(field, "more than %d services", service.MaxServices)
	}
	seen, size := map[string]bool{}, 0
	for i, svc := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := validateService(at, &svc); err != nil {
			return err
		}
		if seen[svc.ID] {
			return caisson.Invalidf(at+".id", "there are two services %s", svc.ID)
		}
		seen[svc.ID] = true
		for _, a := range svc.Command {
			size += len(a)
		}
		if svc.Readiness != nil {
			for _, a := range svc.Readiness.Exec {
				size += len(a)
			}
		}
		for k, v := range svc.Env {
			size += len(k) + len(v)
		}
	}
	if size > maxServicesSize {
		return caisson.Invalidf(field, "more than %s of commands and environments", caisson.Size(maxServicesSize))
	}
	return nil
}

// validateService returns an Invalid error if s is not valid. at is the name of the request's field that contains s, for errors.
func validateService(at string, s *caisson.Service) error {
	if s.ID == "" {
		return caisson.Invalidf(at+".id", "an id is required")
	}
	if err := cmp.Or(
		validateName(at+".id", s.ID), validateCommand(at+".command", s.Command), validateEnv(at+".env", s.Env), validatePath(at+".cwd", s.Cwd),
		validateUser(at+".user", s.User), validateReadiness(at+".readiness", s),
	); err != nil {
		return err
	}
	switch s.Restart {
	case "", caisson.RestartAlways, caisson.RestartOnFailure, caisson.RestartNever:
	default:
		return caisson.Invalidf(at+".restart", "%.40q is not one of always, on-failure and never", s.Restart)
	}
	if s.Port < 0 || s.Port > 65535 {
		return caisson.Invalidf(at+".port", "%d is not between 1 and 65535", s.Port)
	}
	if s.Port == 0 && len(s.Command) == 0 {
		return caisson.Invalidf(at+".port", "a service without a command is a port that another program serves; give one of them")
	}
	return nil
}

// validateReadiness returns an Invalid error if the field Readiness of a service is not valid. at is the name of this field in
// the request, for errors.
func validateReadiness(at string, s *caisson.Service) error {
	r := s.Readiness
	if r == nil {
		return nil
	}
	kinds := 0
	for _, is := range []bool{r.HTTP != "", r.TCP, len(r.Exec) > 0} {
		if is {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return caisson.Invalidf(at, "give one of http, tcp and exec")
	case len(r.Exec) == 0 && s.Port == 0:
		return caisson.Invalidf(at, "the service has no port to check")
	case r.HTTP != "" && (r.HTTP[0] != '/' || len(r.HTTP) > maxReadinessPath || strings.ContainsFunc(r.HTTP, func(c rune) bool { return c <= ' ' || c >= 0x7f })):
		return caisson.Invalidf(at+".http", "%.100q is not a path such as /health", r.HTTP)
	case r.Interval != 0 && (r.Interval < minReadinessPause || r.Interval > maxReadinessTimeout):
		return caisson.Invalidf(at+".interval", "%s is not between %s and %s", r.Interval, minReadinessPause, maxReadinessTimeout)
	case r.Timeout < 0 || r.Timeout > maxReadinessTimeout:
		return caisson.Invalidf(at+".timeout", "%s is not between 1s and %s", r.Timeout, maxReadinessTimeout)
	}
	return validateCommand(at+".exec", r.Exec)
}
