package sandboxes_test

import (
	"context"
	"encoding/binary"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/service"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/runtime/fake"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
)

// A liar is a supervisor that reports changes without end, to each request.
type liar struct{ answers atomic.Int64 }

func (l *liar) program(args []string) fake.Program {
	switch strings.Join(args[1:], " ") {
	case "services":
		return fake.Func(func(ctx context.Context, p *fake.Proc) int {
			if _, err := p.Spawn(fake.Child{Args: []string{guest.Path, "lie"}, Session: true}); err != nil {
				return 1
			}
			for { // until it listens
				probe, err := fake.Listen(p, "unix", service.Socket, 1)
				if err != nil {
					return 0
				}
				probe.Close()
				if p.Sleep(time.Millisecond) != nil {
					return 1
				}
			}
		})
	case "lie":
		return fake.Func(func(ctx context.Context, p *fake.Proc) int {
			listener, err := fake.Listen(p, "unix", service.Socket, 16)
			for ; err != nil; listener, err = fake.Listen(p, "unix", service.Socket, 16) {
				if p.Sleep(time.Millisecond) != nil {
					return 1
				}
			}
			for {
				conn, err := listener.Accept(ctx)
				if err != nil {
					return 1
				}
				go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with conn
				go func() {
					defer conn.Close()
					for {
						for _, state := range []string{`"ready"`, `"failed","exit":{"code":1}`} {
							text := `{"conditions":[{"id":"web","state":` + state + `,"since":"2999-01-01T00:00:00Z"},{"id":"other","state":` + state + `}]}`
							if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
								return
							}
							l.answers.Add(1)
						}
					}
				}()
			}
		})
	}
	return guest.Programs()[guest.Path](args)
}

// TestLyingSupervisor lets a supervisor report changes without end. They are recorded at a bounded rate, and nothing hangs.
func TestLyingSupervisor(t *testing.T) {
	t.Parallel()
	l := &liar{}
	w := plan{programs: map[string]func([]string) fake.Program{guest.Path: l.program}}.world(t)
	sb := w.create(caisson.CreateRequest{Services: []caisson.Service{{ID: "web", Port: 80}}})
	began := time.Now()
	count := func() (n int) {
		for _, e := range w.record(string(sb.ID)) {
			if strings.HasPrefix(e.Type, "service.") {
				if n++; e.Data["service"] != "web" {
					t.Errorf("an event about a service that is not there: %+v", e)
				}
			}
		}
		return n
	}
	poll.Until(t, time.Minute, func() bool { return count() >= 20 })
	seen := l.answers.Load()
	poll.Until(t, time.Minute, func() bool { return l.answers.Load() > seen+20 })
	if n, most := count(), 20+int(time.Since(began)/(10*time.Second))+1; n > most {
		t.Errorf("%d events, not at most %d", n, most)
	}
	list, err := w.Services().ListServices(w.ctx(), string(sb.ID))
	if err != nil || len(list) != 1 || list[0].ID != "web" {
		t.Errorf("%+v, %v", list, err)
	}
	// Another account has no part in it.
	for name, err := range map[string]error{
		"list": func() error { _, err := w.Services().ListServices(w.as("other"), string(sb.ID)); return err }(),
		"apply": func() error {
			_, err := w.Services().ApplyServices(w.as("other"), string(sb.ID), caisson.ServicesRequest{})
			return err
		}(),
		"remove":  w.Services().RemoveService(w.as("other"), string(sb.ID), "web"),
		"restart": w.Services().RestartService(w.as("other"), string(sb.ID), "web"),
		"logs": func() error {
			_, err := w.Services().ServiceLogs(w.as("other"), string(sb.ID), "web", true)
			return err
		}(),
	} {
		if caisson.KindOf(err) != caisson.NotFound {
			t.Errorf("%s by another account: %v", name, err)
		}
	}
	must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
}

// TestServicesOverLives shows that services start once in each life of a sandbox, and that a change of a sandbox that does not run is kept.
func TestServicesOverLives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	svc := caisson.Service{ID: "web", Command: []string{guest.Path, "test", "serve", "tcp", "80", "echo"}, Port: 80}
	sb := w.create(caisson.CreateRequest{Services: []caisson.Service{svc}})
	ready := func(id caisson.ID) {
		t.Helper()
		poll.Until(t, time.Minute, func() bool {
			list, err := w.Services().ListServices(w.ctx(), string(id))
			return err == nil && len(list) == 1 && list[0].State == caisson.ServiceReady
		})
	}
	ready(sb.ID)
	poll.Until(t, time.Minute, func() bool { return strings.Contains(strings.Join(w.events(string(sb.ID)), " "), "service.ready") })
	for _, change := range []func() error{
		func() error { _, err := w.Sandboxes().Pause(w.ctx(), string(sb.ID)); return err },
		func() error { _, err := w.Sandboxes().Resume(w.ctx(), string(sb.ID)); return err },
		func() error { _, err := w.Sandboxes().Suspend(w.ctx(), string(sb.ID)); return err },
		func() error { w.restart(); return nil },
		func() error { _, err := w.Sandboxes().Wake(w.ctx(), string(sb.ID)); return err },
		func() error { _, err := w.Sandboxes().Stop(w.ctx(), string(sb.ID), 0); return err },
		func() error { _, err := w.Sandboxes().Start(w.ctx(), string(sb.ID)); return err },
		func() error { w.restart(); return nil },
	} {
		must(t, change())
		if w.state(sb.ID) == caisson.Running {
			ready(sb.ID)
		}
	}
	forks, err := w.Snapshots().Fork(w.ctx(), string(sb.ID), caisson.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ready(forks[0].ID)
	ready(sb.ID)
}

// TestServeAgent shows that callers cannot have a service with the id of an agent's, and that theirs can be replaced beside it.
func TestServeAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := []caisson.Service{{ID: caisson.AgentService, Port: 80}}
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Services: own})
	wantKind(t, err, caisson.Invalid)
	_, err = w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "t", Image: "host", Services: own})
	wantKind(t, err, caisson.Invalid)
	sb := w.create(caisson.CreateRequest{Services: []caisson.Service{{ID: "web", Port: 80}}})
	must(t, w.Services().ServeAgent(w.ctx(), string(sb.ID), caisson.Service{Command: []string{guest.Path, "test", "sleep", "1h"}}))
	list := got(w.Services().ApplyServices(w.ctx(), string(sb.ID), caisson.ServicesRequest{Services: []caisson.Service{{ID: "db", Port: 81}}, Prune: true}))(t)
	if len(list) != 2 || list[0].ID != caisson.AgentService || list[0].State != caisson.ServiceReady || list[1].ID != "db" {
		t.Errorf("%+v", list)
	}
	wantKind(t, w.Services().ServeAgent(w.ctx(), string(sb.ID), caisson.Service{}), caisson.Invalid)
	must(t, w.Services().RemoveService(w.ctx(), string(sb.ID), caisson.AgentService))
}
