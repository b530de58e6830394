package receive

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/relay/commit"
	"github.com/caisson-dev/caisson/relay/git"
	"github.com/caisson-dev/caisson/worker"
)

// Jobs are the jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared { return []worker.Declared{jobReceive} }

// A Tool runs the job of this package. It has no state of its own and is safe for concurrent use. It keeps none of the descriptors
// that it is given.
type Tool struct{ run worker.Starter }

// NewTool returns a Tool whose jobs r runs. The binary that r starts must have the jobs of this package in its table.
func NewTool(r worker.Starter) Tool { return Tool{run: r} }

// drainTime is for how long the rest of a request is read that is refused already, so that its sender reads why.
const drainTime = 30 * time.Second

// Receive answers one request of a git client that pushes to store, which borrows from view: the body of the request is read from
// conn to its end, the body of the answer is written to it, and then it is shut down. A push that is denied is no error; nothing of
// it stays. Conflict is told to the client while another push to the same store, or a Prepare, is under way. Errors: Exhausted if a limit
// of time ended it, Internal.
func (t Tool) Receive(ctx context.Context, store, view, conn *os.File, req Request) (*Result, error) {
	if err := git.CheckRefs(req.Granted); err != nil {
		return nil, err
	}
	if err := req.Rules.Validate(); err != nil {
		return nil, err
	}
	l := req.Limits.withDefaults()
	r, err := jobReceive.Run(ctx, t.run, receiveArgs{Request: req, Granted: len(req.Granted)}, worker.Given{
		Root: store, Mounts: git.ViewMount(view), Files: []*os.File{conn}, Input: bytes.NewReader(git.AppendRefs(nil, req.Granted)),
		Limits: worker.Limits{
			Time: l.Time + git.Stall + 2*drainTime, CPU: 2 * l.Time, Memory: 2 << 30, FileSize: int64(l.Pack + l.Total),
		},
	})
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// receiveArgs are the arguments of the job; the granted refs, which may be many, come by its input.
type receiveArgs struct {
	Request
	Granted int
}

// jobReceive reads a push. Its root is a store.
var jobReceive = worker.Job[receiveArgs, Result]{
	Name: "relay.receive", Programs: true, Access: worker.WriteAsOwner, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, args receiveArgs) (Result, error) {
		req := args.Request
		granted, err := io.ReadAll(c.Input())
		if err != nil {
			return Result{}, err
		}
		if req.Granted, err = git.ParseRefs(granted); err != nil {
			return Result{}, err
		}
		if len(req.Granted) != args.Granted {
			return Result{}, caisson.Errorf(caisson.Internal, "the job was not told all refs that are granted")
		}
		p, err := git.NewPeer(c.Files[0])
		if err != nil {
			return Result{}, err
		}
		defer p.Close()
		r, err := receiveFrom(ctx, git.JobStore(), p, req)
		if err == nil {
			r.fit()
		}
		return worker.Value(r, err)
	},
	Valid: func(_ receiveArgs, r *Result) bool { return r.valid() },
}

// receiveFrom is receive over a connection, which it ends.
func receiveFrom(ctx context.Context, store git.Repo, p *git.Peer, req Request) (*Result, error) {
	l := req.Limits.withDefaults()
	timed, cancel := context.WithTimeout(ctx, l.Time)
	defer cancel()
	stop := context.AfterFunc(timed, p.EndReads)
	defer stop()
	var in io.Reader = strings.NewReader("")
	if !req.Advertise {
		var err error
		if in, err = git.Body(p, int64(l.Pack)+maxCommandBytes+1<<20); err != nil {
			return nil, git.RequestError(err)
		}
	}
	r, err := Receive(timed, store, in, p, req)
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
func drain(p *git.Peer, limit int64) {
	p.Conn.SetReadDeadline(time.Now().Add(drainTime))
	io.CopyN(struct{ io.Writer }{io.Discard}, p.Conn, limit)
}

// fit shortens the findings so that they can be answered: of each list at least the first one stays.
func (r *Result) fit() {
	left := commit.MaxAnswered
	lists := []*[]caisson.Finding{&r.Denied}
	for i := range r.Updates {
		lists = append(lists, &r.Updates[i].Findings)
	}
	for _, list := range lists {
		*list = commit.FitFindings(*list, &left)
	}
}

// valid reports whether r is what a job answers that does what it should.
func (r *Result) valid() bool {
	if len(r.Updates) > maxCommands || !commit.ValidFindings(r.Denied) {
		return false
	}
	for _, u := range r.Updates {
		moved := (u.Old == "" || git.ValidCommit(u.Old)) && (u.New == "" || git.ValidCommit(u.New)) && u.Old+u.New != ""
		if !moved || !refname.ValidFull(u.Name) || !strings.HasPrefix(u.Name, "refs/heads/") || !commit.ValidFindings(u.Findings) {
			return false
		}
		if slices.ContainsFunc(u.Findings, func(f caisson.Finding) bool { return f.Verdict != caisson.VerdictAsk }) {
			return false
		}
	}
	return true
}
