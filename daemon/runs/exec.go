package runs

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/excerpt"
)

// guestExec executes programs in sandboxes.
type guestExec struct {
	processes caisson.Processes
	lifecycle caisson.Sandboxes // creates, changes and removes sandboxes
	services  caisson.Services  // services in sandboxes
	grace     time.Duration     // time that an agent has to exit after a request to stop
	log       *slog.Logger
}

// signalTimeout is the timeout for signalling an agent to stop.
const signalTimeout = 3 * time.Second

// runDriver lets the driver in a sandbox execute a task. It calls say for each line of the driver's output except the last
// line, which it returns.
func (g *guestExec) runDriver(ctx context.Context, box caisson.ID, t *task.Task, say func(*task.Line)) (*task.Line, error) {
	data, err := task.Encode(t)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "%v", err)
	}
	p, err := g.processes.Exec(ctx, string(box), caisson.ExecRequest{Command: []string{task.ProgramPath, "drive"}, Stdin: true, Workdir: "/"})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	go func() {
		_, err := p.Stdin().Write(append(data, '\n'))
		if err = errors.Join(err, p.Stdin().Close()); err != nil {
			g.log.DebugContext(ctx, "a task could not be sent to its sandbox", "sandbox", box, "err", err)
		}
	}()
	stderr := make(chan string, 1)
	go func() { stderr <- excerpt.ReadTail(p.Stderr(), maxShownOutput) }()
	// When ctx ends, the driver is signalled to stop, and gives the agent the grace period. If the driver does not exit,
	// closing the exec session kills it.
	ended := make(chan struct{})
	defer close(ended)
	defer context.AfterFunc(ctx, func() {
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalTimeout)
		defer cancel()
		if err := p.Signal(sctx, int(unix.SIGTERM)); err != nil {
			g.log.DebugContext(ctx, "the program in a sandbox could not be signalled", "sandbox", box, "err", err)
		}
		select {
		case <-ended:
		case <-time.After(2 * g.grace):
			p.Close()
		}
	})()
	r := task.NewReader(p.Stdout(), t.Output)
	for {
		l, err := r.Next()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, io.ErrUnexpectedEOF):
			why := endReason(ctx, p)
			select {
			case said := <-stderr:
				if said = strings.TrimSpace(said); said != "" {
					why += "; its last words were " + strconv.Quote(said)
				}
			case <-time.After(reasonTimeout): // a process that the driver has started may keep stderr open
			}
			return nil, &failure{code: caisson.RunAgentError, msg: why}
		case err != nil:
			p.Close()
			return nil, &failure{code: caisson.RunAgentError, msg: "the output from the sandbox is malformed", err: err}
		case l.Type == task.LineEnd:
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return &l, nil
		}
		say(&l)
	}
}

// endReason returns the reason why the driver in a sandbox has ended too early.
func endReason(ctx context.Context, p caisson.Process) string {
	ctx, cancel := context.WithTimeout(ctx, reasonTimeout)
	defer cancel()
	status, err := p.Wait(ctx)
	switch {
	case err == nil && !status.Unknown:
		return "the driver in the agent's sandbox " + status.String() + " before the agent had ended"
	case err == nil && status.Reason != "":
		return "the agent's sandbox ended before the agent did: " + status.Reason
	}
	return "the agent's sandbox ended before the agent did, for an unknown reason"
}

const (
	reasonTimeout  = 2 * time.Second // timeout for reading the reason why a driver or sandbox ended
	maxShownOutput = 400             // maximum size in bytes of the part of a driver's output that is shown in an error
)

// recordProcesses records which processes are in a kept sandbox before the prompt. They are not the agent's, and are not killed
// when the attempt ends.
func (g *guestExec) recordProcesses(ctx context.Context, x *attempt) error {
	if x.box.removable {
		return nil
	}
	list, err := g.processes.ListProcesses(ctx, string(x.box.sandbox.ID))
	if err != nil {
		return err // earlierPIDs stays nil: if it were empty, all processes would count as the agent's
	}
	x.box.earlierPIDs = make(map[int]bool, len(list))
	for _, p := range list {
		x.box.earlierPIDs[p.PID] = true
	}
	return nil
}

// execute runs a program in a sandbox, and returns an error if the program fails.
func (g *guestExec) execute(ctx context.Context, box caisson.ID, command []string) error {
	p, err := g.processes.Exec(ctx, string(box), caisson.ExecRequest{Command: command, Timeout: caisson.Duration(time.Minute), Workdir: "/"})
	if err != nil {
		return err
	}
	defer p.Close()
	out := make(chan string, 2)
	go func() { out <- excerpt.ReadTail(p.Stdout(), maxShownOutput) }()
	go func() { out <- excerpt.ReadTail(p.Stderr(), maxShownOutput) }()
	status, err := p.Wait(ctx)
	if err != nil || status.Success() {
		return err
	}
	return caisson.Errorf(caisson.Unavailable, "%s %s; its last output: %.200q", command[0], status, <-out+<-out)
}

// killNew kills the processes of a sandbox, except those whose ids are in before, those of services, and the background
// processes that the agent declares. If processes survive, it stops the sandbox, which keeps its files.
func (g *guestExec) killNew(ctx context.Context, id caisson.ID, a *caisson.Agent, before map[int]bool) (stopped bool, err error) {
	// A hostile sandbox may not report its services. Requests for the list of services take at most killTimeout in total, and
	// are not repeated after an error.
	asking, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	var unknown error
	for wait := time.Millisecond; wait < killTimeout/2; wait *= 2 {
		list, err := g.processes.ListProcesses(ctx, string(id))
		if err != nil {
			return false, err
		}
		isOld := func(p caisson.ProcessInfo) bool {
			return before[p.PID] || p.PID == 1 || slices.Contains(a.Background, p.Command)
		}
		if !slices.ContainsFunc(list, func(p caisson.ProcessInfo) bool { return !isOld(p) }) {
			return false, nil
		}
		var ofServices map[int]bool
		if unknown == nil {
			if ofServices, unknown = g.serviceProcesses(asking, id, list); unknown != nil {
				g.log.WarnContext(ctx, "the services of a sandbox are not known; those that started during a run end with it",
					"sandbox", id, "err", unknown)
			}
		}
		left := 0
		for _, p := range list {
			if isOld(p) || ofServices[p.PID] {
				continue
			}
			left++
			if err := caisson.IgnoreNotFound(g.processes.Kill(ctx, string(id), p.PID, int(unix.SIGKILL))); err != nil {
				return false, err
			}
		}
		if left == 0 {
			return false, nil
		}
		time.Sleep(wait) // Killed processes do not disappear at once.
	}
	g.log.WarnContext(ctx, "processes that an agent left running could not be killed; its sandbox is stopped", "sandbox", id)
	_, err = g.lifecycle.Stop(ctx, string(id), 0)
	return err == nil, err
}

// serviceProcesses returns which processes of list belong to the sandbox's services: the main process of each service, the
// supervisor, and the processes that services have started. Processes that the agent's own service has started belong to the
// agent and are not included. list must have been read before the call, so that each service with a process in list is known.
// The sandbox reports its services, and a hostile one can report other processes, which then keep running at the sandbox's
// expense, like background processes.
func (g *guestExec) serviceProcesses(ctx context.Context, id caisson.ID, list []caisson.ProcessInfo) (map[int]bool, error) {
	services, err := g.services.ListServices(ctx, string(id))
	if err != nil {
		return nil, err
	}
	parents := make(map[int]int, len(list))
	for _, p := range list {
		parents[p.PID] = p.PPID
	}
	found, whole := map[int]bool{}, map[int]bool{}
	for _, s := range services {
		if s.PID > 1 {
			found[s.PID], found[parents[s.PID]] = true, true
			whole[s.PID] = s.ID != caisson.AgentService
		}
	}
	for _, p := range list {
		for pid, depth := p.PID, 0; pid > 1 && depth < len(list); pid, depth = parents[pid], depth+1 {
			if whole[pid] {
				found[p.PID] = true
			}
		}
	}
	return found, nil
}

// killTimeout is how long the processes that an agent has left in a sandbox may take to exit after they were killed.
const killTimeout = 2 * time.Second
