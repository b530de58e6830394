package relay

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/worker"
)

// Names of the jobs for pushes.
const (
	jobReceive = "relay.receive"
	jobPrepare = "relay.prepare"
)

// ReceiveJobs are the jobs that read pushes and make commits of them. Their root is a store and /view is its view.
func ReceiveJobs() []worker.Job {
	return []worker.Job{{Name: jobReceive, Run: runReceive}, {Name: jobPrepare, Run: runPrepare}}
}

// drainTime is for how long the rest of a request is read that is refused already, so that its sender reads why.
const drainTime = 30 * time.Second

// Receive answers one request of a git client that pushes to store, which borrows from view: the body of the request is read from
// conn to its end, the body of the answer is written to it, and then it is shut down. A push that is denied is no error; nothing of
// it stays. Conflict is told to the client while another push to the same store, or a Prepare, is under way. Errors: Exhausted if a limit
// of time ended it, Internal.
func (t *Tool) Receive(ctx context.Context, store, view, conn *os.File, req ReceiveRequest) (*Received, error) {
	if err := checkRefs(req.Granted); err != nil {
		return nil, err
	}
	if err := req.Rules.Validate(); err != nil {
		return nil, err
	}
	l := req.Limits.withDefaults()
	var r Received
	err := t.run.Run(ctx, worker.Request{
		Job: jobReceive, Args: receiveArgs{ReceiveRequest: req, Granted: len(req.Granted)}, Files: []*os.File{conn}, Input: grantedInput(req.Granted),
		Root: store, Access: worker.WriteAsOwner, Programs: true, Mounts: []worker.Mount{{Dir: view, At: viewDir}},
		Limits: worker.Limits{
			Time: l.Time + stall + 2*drainTime, CPU: 2 * l.Time, Memory: 2 << 30, FileSize: int64(l.Pack + l.Total),
		},
	}, &r)
	if err != nil {
		return nil, err
	}
	if !r.valid() {
		return nil, caisson.Errorf(caisson.Internal, "a job of the relay answered nonsense")
	}
	return &r, nil
}

// receiveArgs are the arguments of the job; the granted refs, which may be many, come by its input.
type receiveArgs struct {
	ReceiveRequest
	Granted int
}

func grantedInput(refs []Ref) io.Reader { return strings.NewReader(string(appendRefs(nil, refs))) }

func runReceive(ctx context.Context, c *worker.Call) (any, error) {
	var args receiveArgs
	if err := c.Args(&args); err != nil {
		return nil, err
	}
	conn, err := c.File(0)
	if err != nil {
		return nil, err
	}
	req := args.ReceiveRequest
	granted, err := io.ReadAll(c.Input())
	if err != nil {
		return nil, err
	}
	if req.Granted, err = parseRefs(granted); err != nil {
		return nil, err
	}
	if len(req.Granted) != args.Granted {
		return nil, caisson.Errorf(caisson.Internal, "the job was not told all refs that are granted")
	}
	p, err := newPeer(conn)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	r, err := receiveFrom(ctx, storeRepo(), p, req)
	if err != nil {
		return nil, err
	}
	r.fit()
	return r, nil
}

// storeRepo is a store as its jobs see it.
func storeRepo() repo { return repo{dir: workDir, view: viewDir, tmp: "/tmp"} }

// receiveFrom is receive over a connection, which it ends.
func receiveFrom(ctx context.Context, store repo, p *peer, req ReceiveRequest) (*Received, error) {
	l := req.Limits.withDefaults()
	timed, cancel := context.WithTimeout(ctx, l.Time)
	defer cancel()
	stop := context.AfterFunc(timed, p.endReads)
	defer stop()
	var in io.Reader = strings.NewReader("")
	if !req.Advertise {
		var err error
		if in, err = body(p, int64(l.Pack)+maxCommandBytes+1<<20); err != nil {
			return nil, requestError(err)
		}
	}
	r, err := receive(timed, store, in, p, req)
	if c, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
	if !req.Advertise {
		stop()
		drain(p, int64(l.Pack))
	}
	return r, err
}

// drain reads what is left of a request: a socket that is closed before takes the answer with it.
func drain(p *peer, limit int64) {
	p.Conn.SetReadDeadline(time.Now().Add(drainTime))
	io.CopyN(struct{ io.Writer }{io.Discard}, p.Conn, limit)
}

// Bounds of what a job answers.
const (
	maxAnswered = 64 << 10 // bytes of messages; JSON can make six of one
	maxCheck    = 40
)

// fit shortens the findings so that they can be answered: of each list at least the first one stays.
func (r *Received) fit() {
	left := maxAnswered
	lists := []*[]caisson.Finding{&r.Denied}
	for i := range r.Updates {
		lists = append(lists, &r.Updates[i].Findings)
	}
	for _, list := range lists {
		*list = fitFindings(*list, &left)
	}
}

// fitFindings keeps as much of a list as there is room for.
func fitFindings(list []caisson.Finding, left *int) []caisson.Finding {
	for i, f := range list {
		if *left -= len(f.Message); *left < 0 && i > 0 {
			last := list[i]
			last.Message = fmt.Sprintf("and %d more", len(list)-i)
			return append(slices.Clip(list[:i]), last)
		}
	}
	return list
}

// valid reports whether r is what a job answers that does what it should.
func (r *Received) valid() bool {
	if len(r.Updates) > maxCommands || !validFindings(r.Denied) {
		return false
	}
	for _, u := range r.Updates {
		moved := (u.Old == "" || validCommit(u.Old)) && (u.New == "" || validCommit(u.New)) && u.Old+u.New != ""
		if !moved || !refname.ValidFull(u.Name) || !strings.HasPrefix(u.Name, "refs/heads/") || !validFindings(u.Findings) {
			return false
		}
		if slices.ContainsFunc(u.Findings, func(f caisson.Finding) bool { return f.Verdict != caisson.VerdictAsk }) {
			return false
		}
	}
	return true
}

// validFindings reports whether findings are bounded text with verdicts that are known.
func validFindings(list []caisson.Finding) bool {
	verdicts := []string{caisson.VerdictAsk, caisson.VerdictDeny}
	for _, f := range list {
		if !slices.Contains(verdicts, f.Verdict) || len(f.Check) > maxCheck || plain(f.Check, maxCheck) != f.Check || f.Line < 0 ||
			len(f.Message) > maxFindingMessage+len("…") || plain(f.Message, maxFindingMessage+len("…")) != f.Message {
			return false
		}
	}
	return len(list) <= maxFindings
}
