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

// serviceSocket is the socket on which the supervisor of an agent's service reports the service's state. It is an abstract
// name, so that no file is left behind. Other programs in the sandbox could bind the name; a false state is displayed, and can
// end a run that waits for the service.
const serviceSocket = "@caisson-service"

const (
	maxServiceOutput = 32 << 10        // bytes of a service's last output that are kept
	serviceTimeout   = 2 * time.Second // timeout of one request to the supervisor
)

// A serviceState is the state of a service, as reported by its supervisor.
type serviceState struct {
	Exit   *caisson.ExitStatus `json:"exit,omitempty"` // nil while the service runs
	Output []byte              `json:"output,omitempty"`
}

// Serve starts the command in args, an agent's service, and reports its state on [serviceSocket] until the sandbox stops. It
// passes termination signals on to the service. It returns only if it cannot listen, for example because another supervisor
// does.
func Serve(args []string) error {
	l, err := net.Listen("unix", serviceSocket)
	if err != nil {
		return err
	}
	s := &supervisor{}
	if err := s.start(args); err != nil {
		s.state = serviceState{Exit: &caisson.ExitStatus{Code: startCode(err)}, Output: []byte(err.Error() + "\n")}
	}
	return s.serveState(l)
}

// startCode returns the exit code that shells use for a program that cannot be started.
func startCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return 127
	}
	return 126
}

// A supervisor records the state of a service.
type supervisor struct {
	mu    sync.Mutex
	state serviceState // guarded by mu
}

// Write keeps the last bytes of the service's output.
func (s *supervisor) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append(s.state.Output, b...)
	s.state.Output = append(out[:0:0], out[max(0, len(out)-maxServiceOutput):]...)
	return len(b), nil
}

// start starts the service, and records its output and its exit status in the background.
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
	cmd.Stdout, cmd.Stderr = w, w // a file, so that Wait does not wait for processes that the service leaves behind
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
		case <-time.After(lingerTimeout):
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

// serveState sends the state of the service to each client that connects.
func (s *supervisor) serveState(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		s.mu.Lock()
		data, err := json.Marshal(s.state)
		s.mu.Unlock()
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(serviceTimeout))
			_, _ = conn.Write(data)
		}
		conn.Close()
	}
}

// queryService returns the state of the sandbox's service, or nil if no supervisor answers.
func queryService(ctx context.Context) *serviceState {
	ctx, cancel := context.WithTimeout(ctx, serviceTimeout)
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

// failed returns an error if the service has failed; nil if it has not or its state is unknown. A service that exits with 0 may
// have left a daemon running.
func (s *serviceState) failed() error {
	if s == nil || s.Exit == nil || s.Exit.Success() {
		return nil
	}
	var last tailBuffer
	_, _ = last.Write(s.Output)
	if said := strings.TrimSpace(last.String()); said != "" {
		return fmt.Errorf("the agent's service %s: %s", s.Exit, said)
	}
	return fmt.Errorf("the agent's service %s and wrote nothing", s.Exit)
}
