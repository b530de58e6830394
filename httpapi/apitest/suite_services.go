package apitest

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// portService returns a service that is ready when port 8000 accepts a connection. Its program, an echo server, listens on port.
func portService(id, port string) caisson.Service {
	return caisson.Service{ID: id, Port: 8000, Command: []string{"/.caisson/inside", "test", "serve", "tcp", port, "echo"}}
}

// awaitService waits until as returns true for the status of the service with this id, and returns that status.
func awaitService(t *testing.T, ctx context.Context, c Cores, ref, id string, as func(caisson.ServiceStatus) bool) (s caisson.ServiceStatus) {
	t.Helper()
	poll.Until(t, time.Minute, func() bool {
		for _, s = range must(c.Services.ListServices(ctx, ref))(t) {
			if s.ID == id {
				return as(s)
			}
		}
		return false
	})
	return s
}

// inState returns a condition for awaitService: that a service has the state want.
func inState(want caisson.ServiceState) func(caisson.ServiceStatus) bool {
	return func(s caisson.ServiceStatus) bool { return s.State == want }
}

func testServices(t *testing.T, ctx context.Context, c Cores) {
	sb := createSandbox(t, ctx, c, caisson.CreateRequest{Services: []caisson.Service{portService("web", "8000")}})
	ref := string(sb.ID)
	awaitService(t, ctx, c, ref, "web", inState(caisson.ServiceReady))

	bad := caisson.Service{ID: "bad", Command: []string{"/.caisson/inside", "test", "exit", "3"}}
	list := must(c.Services.ApplyServices(ctx, ref, caisson.ServicesRequest{Services: []caisson.Service{bad}}))(t)
	if len(list) != 2 || list[0].ID != "bad" || list[1].State != caisson.ServiceReady {
		t.Errorf("%+v", list)
	}
	s := awaitService(t, ctx, c, ref, "bad", inState(caisson.ServiceBackoff))
	if s.Exit == nil || s.Exit.Code != 3 || s.Failures == 0 || s.RetryAt.IsZero() {
		t.Errorf("%+v", s)
	}
	succeeds(t, c.Services.RestartService(ctx, ref, "bad"))

	log := must(c.Services.ServiceLogs(ctx, ref, "web", false))(t)
	if b := must(io.ReadAll(log))(t); string(b) != "ready\n" {
		t.Errorf("the log is %q", b)
	}
	succeeds(t, log.Close())

	for _, tt := range []struct {
		service caisson.Service
		field   string
	}{
		{caisson.Service{Port: 1}, "services[0].id"},
		{caisson.Service{ID: "A", Port: 1}, "services[0].id"},
		{caisson.Service{ID: caisson.AgentService, Port: 1}, "services[0].id"},
		{caisson.Service{ID: "a"}, "services[0].port"},
		{caisson.Service{ID: "a", Port: 65536}, "services[0].port"},
		{caisson.Service{ID: "a", Command: []string{""}}, "services[0].command"},
		{caisson.Service{ID: "a", Command: []string{"a\x00"}}, "services[0].command"},
		{caisson.Service{ID: "a", Port: 1, Cwd: "tmp"}, "services[0].cwd"},
		{caisson.Service{ID: "a", Port: 1, User: "a b"}, "services[0].user"},
		{caisson.Service{ID: "a", Port: 1, Restart: "sometimes"}, "services[0].restart"},
		{caisson.Service{ID: "a", Port: 1, Env: map[string]string{"=": ""}}, "services[0].env"},
		{caisson.Service{ID: "a", Port: 1, Readiness: &caisson.Readiness{}}, "services[0].readiness"},
		{caisson.Service{ID: "a", Port: 1, Readiness: &caisson.Readiness{TCP: true, HTTP: "/"}}, "services[0].readiness"},
		{caisson.Service{ID: "a", Port: 1, Readiness: &caisson.Readiness{HTTP: "/ HTTP/1.1\r\nX: y"}}, "services[0].readiness.http"},
		{caisson.Service{ID: "a", Command: []string{"x"}, Readiness: &caisson.Readiness{TCP: true}}, "services[0].readiness"},
		{caisson.Service{ID: "a", Port: 1, Readiness: &caisson.Readiness{TCP: true, Interval: 1}}, "services[0].readiness.interval"},
	} {
		_, err := c.Services.ApplyServices(ctx, ref, caisson.ServicesRequest{Services: []caisson.Service{tt.service}})
		if field := caisson.FieldOf(err); caisson.KindOf(err) != caisson.Invalid || !strings.HasPrefix(field, tt.field) {
			t.Errorf("%+v: %v, field %q", tt.service, err, field)
		}
	}
	many := make([]caisson.Service, 33)
	for i := range many {
		many[i] = caisson.Service{ID: string(rune('a'+i%26)) + string(rune('a'+i/26)), Port: 1}
	}
	_, err := c.Services.ApplyServices(ctx, ref, caisson.ServicesRequest{Services: many})
	Fails(t, err, caisson.Invalid, "services")
	_, err = c.Services.ApplyServices(ctx, ref, caisson.ServicesRequest{Services: []caisson.Service{bad, bad}})
	Fails(t, err, caisson.Invalid, "services[1].id")

	_, err = c.Services.ServiceLogs(ctx, ref, "nobody", true)
	Fails(t, err, caisson.NotFound, "")
	Fails(t, c.Services.RemoveService(ctx, ref, "nobody"), caisson.NotFound, "")
	Fails(t, c.Services.RestartService(ctx, ref, "nobody"), caisson.NotFound, "")
	_, err = c.Services.ListServices(ctx, "nowhere")
	Fails(t, err, caisson.NotFound, "")

	// Services can be replaced, and changed while their sandbox is stopped. They run again when the sandbox starts.
	list = must(c.Services.ApplyServices(ctx, ref, caisson.ServicesRequest{Services: []caisson.Service{portService("web", "8000")}, Prune: true}))(t)
	if len(list) != 1 || list[0].State != caisson.ServiceReady {
		t.Errorf("%+v", list)
	}
	must(c.Sandboxes.Stop(ctx, ref, 0))(t)
	if list = must(c.Services.ListServices(ctx, ref))(t); len(list) != 1 || list[0].State != caisson.ServiceStopped {
		t.Errorf("%+v", list)
	}
	Fails(t, c.Services.RestartService(ctx, ref, "web"), caisson.Conflict, "")
	must(c.Services.ApplyServices(ctx, ref, caisson.ServicesRequest{Services: []caisson.Service{{ID: "other", Port: 8000}}}))(t)
	must(c.Sandboxes.Start(ctx, ref))(t)
	awaitService(t, ctx, c, ref, "web", inState(caisson.ServiceReady))
	awaitService(t, ctx, c, ref, "other", inState(caisson.ServiceReady))
	succeeds(t, c.Services.RemoveService(ctx, ref, "web"))
	if list = must(c.Services.ListServices(ctx, ref))(t); len(list) != 1 {
		t.Errorf("%+v", list)
	}
}
