package sandboxes

import (
	"cmp"
	"context"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Processes implements [caisson.Processes].
type Processes struct {
	finder  finder // finds sandboxes of the caller's account
	states  states // stored records of sandboxes
	runtime interface {
		execer
		Signal(ctx context.Context, id caisson.ID, pid, signal int) error
		Processes(ctx context.Context, id caisson.ID) ([]caisson.ProcessInfo, error)
		Stats(ctx context.Context, id caisson.ID) (*caisson.Stats, error)
	}
	activity *activity // records uses of sandboxes
	traffic  Traffic   // returns traffic counters of wires; nil: statistics contain no traffic
	logs     *logs     // logs of the sandboxes' commands
}

var _ caisson.Processes = (*Processes)(nil)

// Exec starts a process in a sandbox, and does not wait for its end.
func (p *Processes) Exec(ctx context.Context, ref string, req caisson.ExecRequest) (caisson.Process, error) {
	if err := cmp.Or(
		validateCommand("command", req.Command), validateEnv("env", req.Env), validatePath("workdir", req.Workdir), validateUser("user", req.User),
	); err != nil {
		return nil, err
	}
	switch {
	case len(req.Command) == 0:
		return nil, caisson.Invalidf("command", "name the program to run")
	case req.Detach && (req.TTY || req.Stdin):
		return nil, caisson.Invalidf("detach", "a detached process has no terminal and no standard input")
	case req.Detach && req.Timeout != 0:
		return nil, caisson.Invalidf("timeout", "a detached process has no time limit")
	case req.Timeout < 0:
		return nil, caisson.Invalidf("timeout", "is negative")
	}
	sb, end, err := p.activity.use(ctx, p.finder, ref, caisson.VerbExec)
	if err != nil {
		return nil, err
	}
	proc, err := p.exec(ctx, sb, &req)
	if err != nil || req.Detach {
		end()
		return proc, err
	}
	return reasonedProcess{proc, p.states, sb.ID, end}, nil
}

// exec starts a process in a running sandbox for a request that has been validated.
func (p *Processes) exec(ctx context.Context, sb *caisson.Sandbox, req *caisson.ExecRequest) (caisson.Process, error) {
	e := caisson.RuntimeExec{
		Command: req.Command, Env: env(sb.Spec.Env, req.Env), Workdir: workdir(sb, req),
		User: cmp.Or(req.User, sb.Spec.User), TTY: req.TTY, Rows: req.Rows, Cols: req.Cols, Stdin: req.Stdin,
	}
	if req.Detach {
		return p.execDetached(ctx, sb.ID, e)
	}
	proc, err := execIn(ctx, p.runtime, sb.ID, e)
	if err != nil {
		return nil, err
	}
	if req.Timeout != 0 {
		proc = limitTime(proc, time.Duration(req.Timeout))
	}
	return proc, nil
}

// reasonedProcess is a Process whose exit status contains the reason why the sandbox ended, if the sandbox ended together with
// the process. The sandbox counts as in use until the process is closed.
type reasonedProcess struct {
	caisson.Process
	states states     // stored records of sandboxes
	id     caisson.ID // id of the sandbox
	end    func()     // ends the use of the sandbox
}

// Close ends the exec session, which kills the process if it still runs, and the use of the sandbox.
func (e reasonedProcess) Close() error {
	defer e.end()
	return e.Process.Close()
}

// Wait returns how the process ended. If its exit code is unknown, the status has the reason why the sandbox ended, if it did.
func (e reasonedProcess) Wait(ctx context.Context) (caisson.ExitStatus, error) {
	status, err := e.Process.Wait(ctx)
	if err == nil && status.Unknown {
		status.Reason = e.reason(ctx, status.Reason)
	}
	return status, err
}

// The store is polled for the reason why a sandbox ended, every reasonInterval and for at most reasonTimeout.
const (
	reasonTimeout  = 2 * time.Second
	reasonInterval = 10 * time.Millisecond
)

// reason returns why the process and its sandbox ended. said is the reason that the runtime returned; if it is "", only the
// process ended. If a sandbox ends unexpectedly, the reason is stored shortly after its processes have ended, so reason polls the
// store.
func (e reasonedProcess) reason(ctx context.Context, said string) string {
	ctx, cancel := context.WithTimeout(ctx, reasonTimeout)
	defer cancel()
	for {
		sb, err := e.states.get(ctx, e.id)
		switch {
		case caisson.KindOf(err) == caisson.NotFound:
			return "the sandbox was removed"
		case err != nil:
			return said
		case sb.State == caisson.Failed:
			return cmp.Or(sb.Reason, said)
		case sb.State == caisson.Removing:
			return "the sandbox was removed"
		case sb.State == caisson.Stopping, sb.State == caisson.Stopped:
			return "the sandbox was stopped"
		case sb.State == caisson.Pausing, sb.State == caisson.Paused:
			return "the sandbox was paused"
		case said == "":
			return ""
		}
		select {
		case <-time.After(reasonInterval):
		case <-ctx.Done():
			return said
		}
	}
}

// workdir returns the working directory of a process. If the process runs as another user than the sandbox's, the
// default is "/" instead of /root, which other users may not be able to access.
func workdir(sb *caisson.Sandbox, req *caisson.ExecRequest) string {
	if req.Workdir == "" && req.User != "" && req.User != sb.Spec.User && sb.Spec.Workdir == "/root" {
		return "/"
	}
	return cmp.Or(req.Workdir, sb.Spec.Workdir)
}

// timeLimited is a Process that is killed when its time limit is reached.
type timeLimited struct {
	caisson.Process
	timer   *time.Timer // sets expired and kills the process
	expired atomic.Bool // whether the time limit was reached
}

// limitTime returns p with a time limit that is counted from now.
func limitTime(p caisson.Process, limit time.Duration) caisson.Process {
	t := &timeLimited{Process: p}
	t.timer = time.AfterFunc(limit, func() {
		t.expired.Store(true)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = p.Signal(ctx, int(unix.SIGKILL)) // The process may have ended by itself just before.
	})
	return t
}

// Wait returns how the process ended. The status has the reason "time limit" if the process was killed at its time limit.
func (t *timeLimited) Wait(ctx context.Context) (caisson.ExitStatus, error) {
	status, err := t.Process.Wait(ctx)
	if err == nil {
		t.timer.Stop()
		if t.expired.Load() && status.Signal == int(unix.SIGKILL) {
			status.Reason = "time limit"
		}
	}
	return status, err
}

// Close ends the exec session, which kills the process if it still runs, and stops the timer of its time limit.
func (t *timeLimited) Close() error {
	t.timer.Stop()
	return t.Process.Close()
}

// ListProcesses returns the processes in a sandbox.
func (p *Processes) ListProcesses(ctx context.Context, ref string) ([]caisson.ProcessInfo, error) {
	sb, err := p.finder.findFor(ctx, ref, caisson.VerbPrograms)
	if err != nil {
		return nil, err
	}
	return p.runtime.Processes(ctx, sb.ID)
}

// Kill sends a signal to a process of a sandbox, whose id there is pid, or to all processes of the sandbox if pid is -1.
func (p *Processes) Kill(ctx context.Context, ref string, pid, signal int) error {
	sb, err := p.finder.findFor(ctx, ref, caisson.VerbPrograms)
	if err != nil {
		return err
	}
	if pid == 1 {
		return caisson.Invalidf("pid", "process 1 is the sandbox's init; stop or remove the sandbox instead")
	}
	return p.runtime.Signal(ctx, sb.ID, pid, signal)
}

// Stats returns the resource usage of a running sandbox, with the traffic of its wire.
func (p *Processes) Stats(ctx context.Context, ref string) (*caisson.Stats, error) {
	sb, err := p.finder.findFor(ctx, ref, caisson.VerbStats)
	if err != nil {
		return nil, err
	}
	st, err := p.runtime.Stats(ctx, sb.ID)
	if err != nil || p.traffic == nil {
		return st, err
	}
	switch st.Network, err = p.traffic.Network(ctx, sb.ID); caisson.KindOf(err) {
	case caisson.NotFound, caisson.Unavailable:
		return st, nil // The sandbox has no wire, or its wire is temporarily unavailable.
	}
	return st, err
}

// Logs returns the output of a sandbox's command. If follow is true, the output continues until the sandbox stops or ctx ends.
func (p *Processes) Logs(ctx context.Context, ref string, follow bool) (io.ReadCloser, error) {
	sb, err := p.finder.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return p.logs.open(ctx, sb, follow)
}

// execIn starts a process in a sandbox that was running when the caller checked its state.
func execIn(ctx context.Context, runtime execer, id caisson.ID, e caisson.RuntimeExec) (caisson.Process, error) {
	p, err := runtime.Exec(ctx, id, e)
	if caisson.KindOf(err) == caisson.NotFound { // The sandbox is not found, though the caller has just read its record.
		return nil, caisson.Wrap(err, caisson.Conflict, "the sandbox has just ceased to run; look at its state")
	}
	return p, err
}
