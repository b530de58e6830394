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
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/worker"
)

// drainTime is how long the rest of a refused request is read, so that the client can read the answer.
const drainTime = 30 * time.Second

// Run answers one request of a git client that pushes to store, which borrows objects from view. It reads the body of the request
// from conn until its end, writes the body of the answer to conn, and shuts conn down. A denied push is not an error, and none of
// it is stored. While another push to the same store, or a job of package prepare, is in progress, the client receives a
// conflict. Errors are Invalid for a request that is invalid or cannot be read, Exhausted if a limit was exceeded, else Internal.
func Run(ctx context.Context, run worker.Starter, store, view, conn *os.File, req Request) (*Result, error) {
	if err := git.CheckRefs(req.Granted); err != nil {
		return nil, err
	}
	if err := req.Rules.Validate(); err != nil {
		return nil, err
	}
	l := req.Limits.withDefaults()
	r, err := Job.Run(ctx, run, receiveArgs{Request: req, Granted: len(req.Granted)}, worker.RunInput{
		Root: store, Mounts: git.ViewMount(view), Files: []*os.File{conn}, Input: bytes.NewReader(git.AppendRefs(nil, req.Granted)),
		Limits: worker.Limits{
			Time: l.Time + git.StallTimeout + 2*drainTime, CPU: 2 * l.Time, Memory: 2 << 30, FileSize: int64(l.Pack + l.Total),
		},
	})
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// receiveArgs are the arguments of the job that receives a push. The granted refs can be many, so they are in the job's input.
type receiveArgs struct {
	Request
	Granted int // number of granted refs
}

// Job answers one request of a git client that pushes to the store at /work.
var Job = worker.Job[receiveArgs, Result]{
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
		p, err := git.NewClientConn(c.Files[0])
		if err != nil {
			return Result{}, err
		}
		defer p.Close()
		r, err := receiveFrom(ctx, git.StoreRepo(), p, req)
		if err == nil {
			r.fit()
		}
		return worker.Value(r, err)
	},
	Valid: func(_ receiveArgs, r *Result) bool { return r.valid() },
}

// receiveFrom answers the request that arrives over p, and shuts p down for writing afterwards.
func receiveFrom(ctx context.Context, store git.Repo, p *git.ClientConn, req Request) (*Result, error) {
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

// drain reads the rest of a request: closing a socket that has unread data would discard the answer.
func drain(p *git.ClientConn, limit int64) {
	p.Conn.SetReadDeadline(time.Now().Add(drainTime))
	io.CopyN(struct{ io.Writer }{io.Discard}, p.Conn, limit)
}

// fit shortens the findings, so that they fit into the reply of a job. At least the first finding of each list is kept.
func (r *Result) fit() {
	left := commit.MaxReplyBytes
	lists := []*[]caisson.Finding{&r.Denied}
	for i := range r.Updates {
		lists = append(lists, &r.Updates[i].Findings)
	}
	for _, list := range lists {
		*list = commit.FitFindings(*list, &left)
	}
}

// valid reports whether the reply of a job is valid.
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
