package coder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	shellProgram = "/bin/sh"              // program that executes commands
	shellTime    = 2 * time.Minute        // default timeout of a command
	maxShellTime = time.Hour              // longest timeout of a command that the model can choose
	shellGrace   = 2 * time.Second        // time between SIGTERM and SIGKILL for a command that has timed out
	lingerTime   = 250 * time.Millisecond // how long output of background processes is read after the command has exited
	maxCommand   = 128 << 10              // maximum length of a command, in bytes: the kernel's limit on an argument
	headOutput   = 10 << 10               // number of bytes that are kept from the beginning of a command's output
	tailOutput   = 20 << 10               // number of bytes that are kept from the end of a command's output
)

// shell implements the tool shell, which runs commands. It does not restrict them, because they are isolated by the sandbox.
type shell struct {
	dir string // working directory of the commands

	mu         sync.Mutex   // guards openGroups
	openGroups map[int]bool // ids of process groups in which a process still has the output of its command open
}

// tool returns the tool shell.
func (s *shell) tool() tool {
	return tool{
		name: "shell",
		about: "Run a command with /bin/sh -c in the workspace and return its exit code and output (standard output and error together; of long output the beginning and the end). " +
			"Every call is a new shell: cd and variables do not last. There is no terminal and no input. " +
			"A command in the background goes on until the task ends; send its output to a file.",
		schema: `{"type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"integer","description":"seconds; default 120, at most 3600"}},"required":["command"]}`,
		run:    s.run,
	}
}

// run executes a call of the tool shell.
func (s *shell) run(ctx context.Context, args []byte) result {
	var in struct {
		Command string `json:"command"`
		Timeout number `json:"timeout"`
	}
	if err := decodeArguments(args, &in); err != nil {
		return failedResult("%v", err)
	}
	limit := shellTime
	if in.Timeout > 0 {
		limit = min(time.Duration(in.Timeout), maxShellTime/time.Second) * time.Second
	}
	switch {
	case in.Command == "":
		return failedResult("command is empty; give one")
	case len(in.Command) > maxCommand:
		return failedResult("the command has more than %d KiB; write a file with it and run that", maxCommand>>10)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return failedResult("%v", err)
	}
	cmd := exec.Command(shellProgram, "-c", in.Command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return startFailure(err, s.dir)
	}
	out := newOutputBuffer(headOutput, tailOutput)
	copied := s.copyOutput(cmd.Process.Pid, r, out)
	late := s.wait(ctx, cmd, limit)
	linger := time.After(lingerTime)
	background := false
	select {
	case <-copied:
	case <-linger:
		background = true
	}
	return shellResult(cmd.ProcessState, out, late, limit, background, ctx.Err() != nil)
}

// startFailure returns the tool result for a command that could not be started in the directory dir.
func startFailure(err error, dir string) result {
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err != nil {
			return failedResult("The workspace is gone: %v", err)
		}
		return failedResult("There is no %s in this sandbox, so no command can be run. Use the other tools.", shellProgram)
	}
	return failedResult("The command could not be started: %v", err)
}

// copyOutput starts to copy the output of a process group from the pipe r to out, and returns a channel that is closed at the end
// of the output. Background processes of a command may write to the pipe for as long as they run.
func (s *shell) copyOutput(group int, r *os.File, out io.Writer) <-chan struct{} {
	s.mu.Lock()
	if s.openGroups == nil {
		s.openGroups = map[int]bool{}
	}
	s.openGroups[group] = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.Close()
		io.Copy(out, r) // an error is treated as the end of the output
		s.mu.Lock()
		delete(s.openGroups, group)
		s.mu.Unlock()
	}()
	return done
}

// wait waits until the command has exited. It kills the command after limit, or when ctx is done. late means that limit passed.
func (s *shell) wait(ctx context.Context, cmd *exec.Cmd, limit time.Duration) (late bool) {
	group := -cmd.Process.Pid
	ended := make(chan struct{})
	go func() {
		cmd.Wait() // the exit status is in cmd.ProcessState
		close(ended)
	}()
	select {
	case <-ended:
		return false
	case <-time.After(limit):
		late = true
		syscall.Kill(group, syscall.SIGTERM)
	case <-ctx.Done():
	}
	if late {
		select {
		case <-ended:
		case <-time.After(shellGrace):
		case <-ctx.Done():
		}
	}
	syscall.Kill(group, syscall.SIGKILL)
	<-ended
	return late
}

// close kills the background processes of commands, except those that have left the process group of their command.
func (s *shell) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for group := range s.openGroups {
		syscall.Kill(-group, syscall.SIGKILL)
	}
}

// shellResult returns the tool result for a command that has exited. late means that the command timed out after limit,
// background that another process still has its output open, and aborted that the task was cancelled.
func shellResult(state *os.ProcessState, out *outputBuffer, late bool, limit time.Duration, background, aborted bool) result {
	r := result{changed: true}
	status := state.Sys().(syscall.WaitStatus)
	head := fmt.Sprintf("exit %d", status.ExitStatus())
	switch {
	case late:
		head, r.failed = fmt.Sprintf("timed out after %v and was ended; run it in the background, or with a longer timeout", limit), true
	case aborted:
		head, r.failed = "ended with the task", true
	case status.Signaled():
		head, r.failed = fmt.Sprintf("killed by signal %d (%v)", status.Signal(), status.Signal()), true
	case status.ExitStatus() != 0:
		r.failed = true
	}
	if background {
		head += "; something that it started is still running"
	}
	r.text = head + "\n" + out.String()
	return r
}
