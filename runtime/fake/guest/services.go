package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/guestd"
	"github.com/caisson-dev/caisson/guest/service"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// listeners has the sockets for supervisors that were started and have not begun to run. The keys are the supervisors' processes
// (*fake.Proc); the values are channels that contain one listener each (chan *fake.Listener).
var listeners sync.Map

// listenerChannel returns the channel by which startSupervisor passes the listener to the supervisor process p.
func listenerChannel(p *fake.Proc) chan *fake.Listener {
	ch, _ := listeners.LoadOrStore(p, make(chan *fake.Listener, 1))
	return ch.(chan *fake.Listener)
}

// startSupervisor implements guestd's subcommand services: it starts the sandbox's supervisor unless one is running.
func startSupervisor(_ context.Context, p *fake.Proc) int {
	l, err := fake.Listen(p, "unix", service.Socket, 16)
	if errors.Is(err, syscall.EADDRINUSE) {
		return 0
	}
	if err != nil {
		return fail(p, exitUsage, err)
	}
	c, err := p.Spawn(fake.Child{Args: []string{Path, "supervise"}, Session: true})
	if err != nil {
		l.Close()
		return fail(p, exitUsage, err)
	}
	l.HandTo(c)
	listenerChannel(c) <- l
	return 0
}

// A supervisor runs services. The processes of services are goroutines of the supervisor, so a restored supervisor starts them
// again.
type supervisor struct {
	services *service.Supervisor // supervisor of package service; set by Run
	restored *supervisorMemory   // set by RestoreMemory; nil if the process was not restored
}

// supervisorMemory is the state of a supervisor that a checkpoint contains, as JSON.
type supervisorMemory struct {
	Revision int64             // revision of Services, which the host counts
	Services []caisson.Service // the services that the supervisor runs
}

func (s *supervisor) Run(ctx context.Context, p *fake.Proc) int {
	var l *fake.Listener
	s.services = service.New(serviceHost{ctx, p})
	if s.restored != nil {
		var err error
		if l, err = fake.Listen(p, "unix", service.Socket, 16); err != nil {
			return fail(p, exitUsage, err)
		}
		_ = s.services.Apply(s.restored.Revision, nil, s.restored.Services) // no error: the services were valid before the checkpoint
	} else {
		ch := listenerChannel(p)
		defer listeners.Delete(p)
		select {
		case l = <-ch:
		case <-ctx.Done():
			return exitFailure
		}
	}
	term := p.Catch(syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-term:
		case <-ctx.Done():
		}
		s.services.Close()
		l.Close()
	}()
	service.Serve(listener{ctx, l}, s.services)
	return 0
}

// Memory implements [fake.StatefulProgram].
func (s *supervisor) Memory() ([]byte, error) {
	m := supervisorMemory{}
	if s.services != nil {
		m.Revision, m.Services = s.services.Set()
	}
	return json.Marshal(m)
}

// RestoreMemory implements [fake.StatefulProgram].
func (s *supervisor) RestoreMemory(b []byte) error {
	s.restored = &supervisorMemory{}
	return json.Unmarshal(b, s.restored)
}

// A listener is a fake.Listener as a [net.Listener].
type listener struct {
	ctx context.Context // its end makes Accept return
	l   *fake.Listener
}

func (l listener) Accept() (net.Conn, error) {
	f, err := l.l.Accept(l.ctx)
	if err != nil {
		return nil, net.ErrClosed
	}
	return conn{f}, nil
}

func (l listener) Close() error   { return l.l.Close() }
func (l listener) Addr() net.Addr { return &net.UnixAddr{} }

// A conn is an end of a socket pair as a [net.Conn].
type conn struct{ *os.File }

func (conn) LocalAddr() net.Addr  { return &net.UnixAddr{} }
func (conn) RemoteAddr() net.Addr { return &net.UnixAddr{} }

// A serviceHost runs the services of the supervisor in the process p as goroutines, and connects to their ports.
type serviceHost struct {
	ctx context.Context // cancelled when p is terminated
	p   *fake.Proc      // the supervisor's process
}

// Dial implements [service.Environment].
func (h serviceHost) Dial(ctx context.Context, port int) (net.Conn, error) {
	f, err := fake.Connect(ctx, h.p, "tcp", fmt.Sprint(port))
	if err != nil {
		return nil, err
	}
	return conn{f}, nil
}

// Start implements [service.Environment] for services whose program is guestd, with a subcommand that package guestd implements.
func (h serviceHost) Start(s caisson.Service, out io.Writer) (service.Process, error) {
	if s.Command[0] != Path {
		return nil, errors.New(s.Command[0] + ": command not found")
	}
	root, err := os.OpenRoot(h.p.Root())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(h.ctx)
	sp := &serviceProcess{pid: h.p.PID(), cancel: cancel, done: make(chan struct{})}
	proc := &guestd.ProcessEnv{Args: s.Command[1:], In: strings.NewReader(""), Out: out, Err: out, Root: root, Dir: s.Cwd}
	proc.Listen = func(network, address string, backlog int) (guestd.Listener, error) {
		return fake.Listen(h.p, network, address, backlog)
	}
	for k, v := range s.Env {
		proc.Env = append(proc.Env, k+"="+v)
	}
	slices.Sort(proc.Env)
	go func() {
		defer close(sp.done)
		defer root.Close()
		sp.exit.Code = guestd.Run(ctx, proc)
		if ctx.Err() != nil {
			sp.exit = caisson.ExitStatus{Code: 143, Signal: int(syscall.SIGTERM)}
		}
	}()
	return sp, nil
}

// A serviceProcess is a goroutine that runs a service.
type serviceProcess struct {
	pid    int                // PID of the supervisor, which the service shares
	cancel context.CancelFunc // ends the goroutine
	done   chan struct{}      // closed when the goroutine has ended
	exit   caisson.ExitStatus // set before done is closed
}

func (p *serviceProcess) PID() int                 { return p.pid }
func (p *serviceProcess) Done() <-chan struct{}    { return p.done }
func (p *serviceProcess) Exit() caisson.ExitStatus { return p.exit }
func (p *serviceProcess) Terminate()               { p.cancel() }
func (p *serviceProcess) Kill()                    { p.cancel() }
