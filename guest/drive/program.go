package drive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/excerpt"
)

// Timeouts at the end of a program.
const (
	lingerTimeout = 200 * time.Millisecond // for more output after the program has exited, if another process keeps the pipe open
	exitTimeout   = 2 * time.Second        // for the program to exit by itself after it has reported the end of its turn
)

// A Program is a program that a driver has started, in a new process group.
type Program struct {
	Stdin  *os.File // standard input; nil if the program has none
	stdout *os.File // reading end of the pipe that is the program's standard output
	stderr *os.File // reading end of the pipe that is the program's standard error

	process   *os.Process        // the program's process
	ended     chan struct{}      // closed when the program has exited
	exit      caisson.ExitStatus // exit status; set before ended is closed
	exited    atomic.Bool        // the program has exited and exit is set
	closeOnce sync.Once          // makes later calls of Close have no effect
}

// Start starts the program args[0] with arguments in t's working directory and with t's environment. If stdin is true, the caller
// writes the program's standard input to the field Stdin; otherwise the input is empty. The caller must read the output with
// [Program.Output] and call [Program.Close].
func Start(t *task.Task, args []string, stdin bool) (*Program, error) {
	if len(args) == 0 || args[0] == "" {
		return nil, errors.New("the agent has no command")
	}
	for _, arg := range args {
		if strings.IndexByte(arg, 0) >= 0 {
			return nil, errors.New("an argument of the agent's command has a NUL byte")
		}
	}
	p := &Program{ended: make(chan struct{})}
	var theirs []*os.File // the program's standard input, output and error, which are closed in this process
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err != nil {
			return nil, nil, fmt.Errorf("open a pipe to the agent: %w", err)
		}
		return r, w, nil
	}
	in, err := os.Open(os.DevNull)
	if stdin {
		in, p.Stdin, err = pipe()
	}
	if err != nil {
		return nil, err
	}
	theirs = append(theirs, in)
	out, errs := (*os.File)(nil), (*os.File)(nil)
	if p.stdout, out, err = pipe(); err == nil {
		theirs = append(theirs, out)
		if p.stderr, errs, err = pipe(); err == nil {
			theirs = append(theirs, errs)
		}
	}
	if err == nil {
		err = p.start(t, args, theirs)
	}
	if err != nil {
		p.closeFiles()
		return nil, err
	}
	return p, nil
}

// start starts the program. files are its standard input, output and error.
func (p *Program) start(t *task.Task, args []string, files []*os.File) error {
	path, err := lookPath(args[0], t.Env["PATH"])
	if err != nil {
		return fmt.Errorf("start %s: %w", args[0], err)
	}
	cmd := exec.Cmd{
		Path: path, Args: args, Dir: t.Workdir, Env: os.Environ(), Stdin: files[0], Stdout: files[1], Stderr: files[2],
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	for name, value := range t.Env {
		cmd.Env = append(cmd.Env, name+"="+value) // overrides an earlier value of the same variable
	}
	startedChildren.mu.Lock()
	defer startedChildren.mu.Unlock()
	err = cmd.Start()
	switch {
	case errors.Is(err, syscall.E2BIG):
		return fmt.Errorf("start %s: the prompt is longer than an argument may be; let the agent have it by stdin or file", args[0])
	case err != nil:
		return fmt.Errorf("start %s: %w", args[0], err)
	}
	p.process = cmd.Process
	startedChildren.own[p.process.Pid] = true
	go p.wait()
	return nil
}

// lookPath returns the path of a program. A name without a slash is looked up in the directories of path; if that is empty, in
// PATH of this process.
func lookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") || path == "" {
		return exec.LookPath(name)
	}
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			continue
		}
		if found, err := exec.LookPath(dir + "/" + name); err == nil {
			return found, nil
		}
	}
	return "", exec.ErrNotFound
}

// wait waits until the program has exited, stores its exit status and closes ended.
func (p *Program) wait() {
	state, err := p.process.Wait()
	startedChildren.mu.Lock()
	delete(startedChildren.own, p.process.Pid)
	startedChildren.mu.Unlock()
	p.exit = caisson.ExitStatus{Code: -1, Unknown: true}
	if err == nil {
		status, _ := state.Sys().(syscall.WaitStatus)
		p.exit = caisson.ExitStatus{Code: status.ExitStatus()}
		if status.Signaled() {
			p.exit = caisson.ExitStatus{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
		}
	}
	p.exited.Store(true)
	close(p.ended)
}

// Ended returns a channel that is closed when the program has exited, even if processes that it has started still run.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Exit returns the exit status of the program, or nil if it has not exited.
func (p *Program) Exit() *caisson.ExitStatus {
	select {
	case <-p.ended:
		exit := p.exit
		return &exit
	default:
		return nil
	}
}

// Output reads the program's output until the program has exited and all output was read. Standard output is passed to read,
// which must return at the end of it. Standard error goes to out's log, and the last lines of it are returned.
//
// When ctx is done, or when exitTimeout has passed since done was closed, the program's process group gets SIGTERM. If the
// program has not exited after grace, it is killed. All processes that it has started are killed at the end.
func (p *Program) Output(ctx context.Context, out Out, grace time.Duration, done <-chan struct{}, read func(io.Reader)) (tail string) {
	var readers sync.WaitGroup
	last := excerpt.Tail{Limit: 4 << 10}
	readers.Go(func() { read(&pipeReader{f: p.stdout, p: p}) })
	readers.Go(func() {
		_, _ = io.Copy(io.MultiWriter(logWriter{out, caisson.LogStderr}, &last), &pipeReader{f: p.stderr, p: p})
	})
	drained := make(chan struct{})
	go func() {
		readers.Wait()
		close(drained)
	}()
	select {
	case <-p.ended:
	case <-ctx.Done():
	case <-done:
		select {
		case <-p.ended:
		case <-ctx.Done():
		case <-time.After(exitTimeout):
		}
	}
	p.Stop(grace)
	select {
	case <-drained:
	case <-time.After(lingerTimeout):
	}
	p.Kill() // kills the processes that the program has started, so that no process writes output any more
	now := time.Now().Add(lingerTimeout)
	_, _ = p.stdout.SetReadDeadline(now), p.stderr.SetReadDeadline(now) // cannot fail: pipes support deadlines
	<-drained
	return lastLines(last.String())
}

// Stop sends SIGTERM to the program's process group, unless the program has exited. If the program has not exited after grace, it
// and all processes that it has started are killed.
func (p *Program) Stop(grace time.Duration) {
	if p.exited.Load() {
		return
	}
	_ = syscall.Kill(-p.process.Pid, syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(grace):
		p.Kill()
		<-p.ended
	}
}

// Kill kills the program and all processes that it has started, except background programs.
func (p *Program) Kill() {
	root := p.process.Pid
	if isSubreaper.Load() {
		root = os.Getpid() // kills all descendants of this process, because all of them belong to the program
	}
	if !isSubreaper.Load() || background.Load() == nil { // with background programs, the process group may contain such a program
		_ = syscall.Kill(-p.process.Pid, syscall.SIGKILL) // the id of a process group is not reused while the group has a process
	}
	if !p.exited.Load() {
		_ = p.process.Kill()
	}
	if isSubreaper.Load() || !p.exited.Load() {
		_ = killDescendants(root) // the error is ignored: Main calls killDescendants again, and reports remaining processes
	}
}

// Close kills the program and the processes that it has started, and closes the pipes to it.
func (p *Program) Close() {
	p.closeOnce.Do(func() {
		p.Kill()
		<-p.ended
		p.closeFiles()
	})
}

// closeFiles closes this process's ends of the pipes to the program.
func (p *Program) closeFiles() {
	for _, f := range []*os.File{p.Stdin, p.stdout, p.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// pipeReader reads the output of a program from a pipe. After the program has exited, a read waits at most lingerTimeout for more
// output; data that is already in the pipe is always read.
type pipeReader struct {
	f *os.File // reading end of the pipe
	p *Program // the program that writes to the pipe
}

// Read implements [io.Reader].
func (r *pipeReader) Read(b []byte) (int, error) {
	for {
		if r.p.exited.Load() {
			if err := r.f.SetReadDeadline(time.Now().Add(lingerTimeout)); err != nil {
				return 0, io.EOF
			}
		}
		n, err := r.f.Read(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && r.hasData():
			continue // the deadline expired although the pipe has data, because the caller was slow to read again
		case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, fs.ErrClosed):
			return 0, io.EOF
		}
		return n, err
	}
}

// hasData reports whether the pipe has data, so that a read would not block.
func (r *pipeReader) hasData() (ok bool) {
	raw, err := r.f.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		ok = err == nil && n > 0 && ready[0].Revents&unix.POLLIN != 0
	})
	return ok && err == nil
}

// logWriter is an [io.Writer] that appends to one of the agent's logs.
type logWriter struct {
	out    Out    // receives the data
	stream string // name of the log
}

// Write appends b to the log.
func (w logWriter) Write(b []byte) (int, error) {
	w.out.Log(w.stream, b)
	return len(b), nil
}

// lastLines returns the last 8 lines of text as plain text.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(plainText(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}
