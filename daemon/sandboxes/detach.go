package sandboxes

import (
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// execDetached starts a command through guestd in a new Linux session (setsid): the process outlives the exec session,
// and survives pauses and forks. The returned exec session has already ended.
func (p *Processes) execDetached(ctx context.Context, id caisson.ID, e caisson.RuntimeExec) (caisson.Process, error) {
	command := e.Command[0]
	argv := []string{guestdPath, "run", "--detach", "--user", e.User}
	if e.Workdir != "" {
		argv = append(argv, "--cwd", e.Workdir)
	}
	e.Command = append(append(argv, "--"), e.Command...)
	e.User, e.Workdir = "", ""
	out, said, status, err := runGuestd(ctx, p.runtime, id, e)
	if err != nil {
		return nil, err
	}
	if !status.Success() {
		return nil, caisson.Errorf(caisson.Invalid, "cannot start %.100q in the sandbox: %.200q", command, said)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "the sandbox did not report which process it started")
	}
	return detachedProcess{pid}, nil
}

// maxReply is the maximum size in bytes of the standard output that [runGuestd] reads.
const maxReply = 1 << 20

// runGuestd runs a guestd command in a sandbox to its end. It returns the command's standard output as out, and the beginning of
// its standard error as said. Both are untrusted.
func runGuestd(ctx context.Context, runtime execer, id caisson.ID, e caisson.RuntimeExec) (out []byte, said string, _ caisson.ExitStatus, err error) {
	proc, err := execIn(ctx, runtime, id, e)
	if err != nil {
		return nil, "", caisson.ExitStatus{}, err
	}
	defer proc.Close()
	defer context.AfterFunc(ctx, func() { proc.Close() })() // Closing the process unblocks the reads of its outputs.
	messages := make(chan string, 1)
	go func() { messages <- readShort(proc.Stderr()) }()
	out, err = io.ReadAll(io.LimitReader(proc.Stdout(), maxReply))
	if err != nil {
		out = nil
	}
	status, err := proc.Wait(ctx)
	if err != nil {
		return nil, "", status, err
	}
	return out, strings.TrimSpace(<-messages), status, nil
}

// readShort returns the first 4096 bytes of the standard error of a guestd command, or "" if reading fails.
func readShort(r io.Reader) string {
	b, err := io.ReadAll(io.LimitReader(r, 4096))
	if err != nil {
		return ""
	}
	return string(b)
}

// detachedProcess is the exec session of a process that continues to run after the session. The session has no output, and has
// ended with status 0. pid is the process's id inside the sandbox.
type detachedProcess struct{ pid int }

// PID returns the id of the process inside the sandbox.
func (s detachedProcess) PID() int { return s.pid }

// Stdin returns nil, because the process has no standard input.
func (s detachedProcess) Stdin() io.WriteCloser { return nil }

// Stdout returns an empty reader, because the output of the process is discarded.
func (s detachedProcess) Stdout() io.Reader { return strings.NewReader("") }

// Stderr returns an empty reader, because the output of the process is discarded.
func (s detachedProcess) Stderr() io.Reader { return strings.NewReader("") }

// Close does nothing; the process continues to run.
func (s detachedProcess) Close() error { return nil }

// Resize returns a Conflict error, because the process has no terminal.
func (s detachedProcess) Resize(rows, cols uint16) error {
	return caisson.Errorf(caisson.Conflict, "a detached process has no terminal")
}

// Signal returns a Conflict error, because the exec session has ended.
func (s detachedProcess) Signal(context.Context, int) error {
	return caisson.Errorf(caisson.Conflict, "the session of a detached process has ended; use kill with its pid")
}

// Wait returns the exit status 0 at once, and does not wait for the process.
func (s detachedProcess) Wait(context.Context) (caisson.ExitStatus, error) {
	return caisson.ExitStatus{}, nil
}
