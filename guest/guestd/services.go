package guestd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/service"
)

// serviceMark is the environment variable that all processes of a service inherit. Its value is the id of the service.
const serviceMark = "CAISSON_SERVICE"

// listenerFD is the descriptor of the listener that "guestd supervise" inherits.
const listenerFD = 3

// startSupervisor implements "guestd services": it starts the supervisor in a new session of processes, and returns when
// connections to it are accepted. If a supervisor runs already, it does nothing.
func startSupervisor() error {
	if conn, err := net.Dial("unix", service.Socket); err == nil {
		return conn.Close()
	}
	if err := os.MkdirAll(path.Dir(service.Socket), 0o700); err != nil {
		return err
	}
	if err := os.Remove(service.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: service.Socket, Net: "unix"})
	if err != nil {
		return err
	}
	defer ln.Close()
	ln.SetUnlinkOnClose(false)
	if err := os.Chmod(service.Socket, 0o600); err != nil {
		return err
	}
	f, err := ln.File()
	if err != nil {
		return err
	}
	defer f.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := os.StartProcess(self, []string{self, "supervise"}, &os.ProcAttr{
		Dir: "/", Env: []string{"PATH=" + defaultPath}, Files: []*os.File{null, null, null, f}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	return p.Release()
}

// supervise implements "guestd supervise", the supervisor. On SIGTERM it ends all services, and returns when they have ended.
func supervise() error {
	f := os.NewFile(listenerFD, "listener")
	ln, err := net.FileListener(f)
	if err != nil {
		return err
	}
	f.Close()
	killMarked("") // kill services that are left of an earlier supervisor, which may have been killed
	s := service.New(serviceHost{})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		s.Close()
		ln.Close()
	}()
	service.Serve(ln, s)
	return nil
}

// lingerTimeout is how long the output of a service is still read after its processes have been killed.
const lingerTimeout = time.Second

// A serviceProcess is a service or check that was started as a process, which leads a new session of processes.
type serviceProcess struct {
	p    *os.Process        // the first process of the service or check
	id   string             // id of the service
	done chan struct{}      // closed when all processes have ended and the output was read
	exit caisson.ExitStatus // exit status; set before done is closed

	mu    sync.Mutex // guards ended
	ended bool       // the process p was reaped, so its pid may be another process's
}

// serviceHost implements [service.Environment]: it starts services as processes in the sandbox.
type serviceHost struct{}

// Dial implements [service.Environment]: it connects to the port on the loopback device.
func (serviceHost) Dial(ctx context.Context, port int) (net.Conn, error) {
	return service.Dial(ctx, port)
}

// Start implements [service.Environment]: it starts the command of s in a new session of processes, as the user s.User.
func (serviceHost) Start(s caisson.Service, out io.Writer) (service.Process, error) {
	id, err := resolveUser(os.DirFS("/etc"), s.User)
	if err != nil {
		return nil, err
	}
	env := map[string]string{"PATH": defaultPath, "HOME": id.home, "PWD": s.Cwd}
	for k, v := range s.Env {
		env[k] = v
	}
	env[serviceMark] = s.ID
	program, err := lookPath(s.Command[0], env["PATH"])
	if err != nil {
		return nil, errors.New(s.Command[0] + ": " + errorText(err))
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		r.Close()
		return nil, err
	}
	defer null.Close()
	attr := &os.ProcAttr{Dir: s.Cwd, Files: []*os.File{null, w, w}, Sys: &syscall.SysProcAttr{Setsid: true, Credential: id.credential()}}
	for k, v := range env {
		attr.Env = append(attr.Env, k+"="+v)
	}
	p, err := os.StartProcess(program, s.Command, attr)
	if err != nil {
		r.Close()
		return nil, errors.New(s.Command[0] + ": " + errorText(err))
	}
	sp := &serviceProcess{p: p, id: s.ID, done: make(chan struct{})}
	go sp.wait(r, out)
	return sp, nil
}

// credential returns id in the form that package syscall requires for starting a process with this user and these groups.
func (id *identity) credential() *syscall.Credential {
	c := &syscall.Credential{Uid: uint32(id.uid), Gid: uint32(id.gid)}
	for _, g := range id.groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

// wait copies the output of the process from r to out and waits for its end. Then it kills the processes that are left of the
// service, and closes p.done.
func (p *serviceProcess) wait(r *os.File, out io.Writer) {
	defer close(p.done)
	defer r.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(out, r)
	}()
	state, err := p.p.Wait()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.exit = caisson.ExitStatus{Code: exitFailure}
	if err == nil {
		status, _ := state.Sys().(syscall.WaitStatus)
		if p.exit.Code = status.ExitStatus(); status.Signaled() {
			p.exit = caisson.ExitStatus{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
		}
	}
	killMarked(p.id)
	select {
	case <-read:
		return
	case <-time.After(lingerTimeout): // a process that has removed serviceMark from its environment keeps the output open
	}
	_ = r.SetReadDeadline(time.Now())
	<-read
}

func (p *serviceProcess) PID() int                 { return p.p.Pid }
func (p *serviceProcess) Done() <-chan struct{}    { return p.done }
func (p *serviceProcess) Exit() caisson.ExitStatus { return p.exit }
func (p *serviceProcess) Terminate()               { p.signal(syscall.SIGTERM) }
func (p *serviceProcess) Kill()                    { p.signal(syscall.SIGKILL) }

// signal sends a signal to the process group of the service's first process, which may not contain all processes of the service.
func (p *serviceProcess) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		_ = syscall.Kill(-p.p.Pid, sig)
	}
}

// killMarked kills the processes of the service with this id, or of all services if id is "". It recognises them by serviceMark
// in their environment, and returns when it finds no more that it can kill.
func killMarked(id string) {
	for range 20 { // list the processes repeatedly, because they can start others meanwhile
		list, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			return
		}
		found := false
		for _, name := range list {
			pid, err := strconv.Atoi(path.Base(path.Dir(name)))
			if err != nil || pid == os.Getpid() || !hasServiceMark(name, id) {
				continue
			}
			found = syscall.Kill(pid, syscall.SIGKILL) == nil || found
		}
		if !found {
			return
		}
	}
}

// hasServiceMark reports whether the environment of a process contains serviceMark with this id, or with any id if id is "". name
// is the path of the process's file environ in /proc.
func hasServiceMark(name, id string) bool {
	env, err := os.ReadFile(name) // the file is empty for a zombie
	if err != nil {
		return false
	}
	want := []byte(serviceMark + "=" + id)
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(kv, want) || id == "" && bytes.HasPrefix(kv, want) {
			return true
		}
	}
	return false
}
