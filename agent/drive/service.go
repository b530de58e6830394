package drive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
)

// serviceSocket is where the supervisor of an agent's service says how the service is. It is an abstract name, so that nothing is left in
// the file system. Programs in the sandbox could take the name; what it says is shown, and ends a run that waits for the service.
const serviceSocket = "@caisson-service"

const (
	maxServiceOutput = 32 << 10        // of a service's last output that is kept, in bytes
	serviceAsk       = 2 * time.Second // for one answer of the supervisor
)

// A serviceState is what the supervisor says of a service.
type serviceState struct {
	Exit   *caisson.ExitStatus `json:"exit,omitempty"` // nil while it runs
	Output []byte              `json:"output,omitempty"`
}

// Serve starts the command in args, an agent's service, and answers on [serviceSocket] how it is until the sandbox ends. Signals that end
// programs are passed on. It returns only if it cannot answer, for example because another supervisor does.
func Serve(args []string) error {
	l, err := net.Listen("unix", serviceSocket)
	if err != nil {
		return err
	}
	s := &supervisor{}
	if err := s.start(args); err != nil {
		s.state = serviceState{Exit: &caisson.ExitStatus{Code: startCode(err)}, Output: []byte(err.Error() + "\n")}
	}
	return s.answer(l)
}

// startCode is the exit code that shells have for a program that cannot be started.
func startCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return 127
	}
	return 126
}

// A supervisor keeps what is known of a service.
type supervisor struct {
	mu    sync.Mutex
	state serviceState // guarded by mu
}

// Write keeps the end of what the service writes.
func (s *supervisor) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append(s.state.Output, b...)
	s.state.Output = append(out[:0:0], out[max(0, len(out)-maxServiceOutput):]...)
	return len(b), nil
}

func (s *supervisor) start(args []string) error {
	if len(args) == 0 {
		return errors.New("the service has no command")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = w, w // a file: Wait does not wait for what the service has left running
	if err := cmd.Start(); err != nil {
		r.Close()
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(s, r)
	}()
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig)
		}
	}()
	go func() {
		_ = cmd.Wait()
		select {
		case <-read:
		case <-time.After(linger):
		}
		exit := caisson.ExitStatus{Code: cmd.ProcessState.ExitCode()}
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			exit = caisson.ExitStatus{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.state.Exit = &exit
	}()
	return nil
}

// answer says to everyone who connects how the service is.
func (s *supervisor) answer(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		s.mu.Lock()
		data, err := json.Marshal(s.state)
		s.mu.Unlock()
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(serviceAsk))
			_, _ = conn.Write(data)
		}
		conn.Close()
	}
}

// service returns the state of the sandbox's service, nil if nothing tells it.
func service(ctx context.Context) *serviceState {
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", serviceSocket)
	if err != nil {
		return nil
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var s serviceState
	if json.NewDecoder(io.LimitReader(conn, 2*maxServiceOutput+1<<10)).Decode(&s) != nil {
		return nil
	}
	return &s
}

// failed returns how the service has failed, nil if it has not or is not known. One that has ended with 0 may have left a daemon behind.
func (s *serviceState) failed() error {
	if s == nil || s.Exit == nil || s.Exit.Success() {
		return nil
	}
	var last tailer
	_, _ = last.Write(s.Output)
	if said := strings.TrimSpace(last.String()); said != "" {
		return fmt.Errorf("the agent's service %s: %s", s.Exit, said)
	}
	return fmt.Errorf("the agent's service %s and wrote nothing", s.Exit)
}
