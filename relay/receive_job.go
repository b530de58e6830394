package relay

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
	"github.com/caisson-dev/caisson/worker"
)

// receiveJobs are the jobs of this package, for the table that the binary gives to [worker.Main].
func receiveJobs() []worker.Declared { return []worker.Declared{jobReceive} }

// A receiveTool runs the job of this package. It has no state of its own and is safe for concurrent use. It keeps none of the descriptors
// that it is given.
type receiveTool struct{ run worker.Starter }

// newReceiveTool returns a Tool whose jobs r runs. The binary that r starts must have the jobs of this package in its table.
func newReceiveTool(r worker.Starter) receiveTool { return receiveTool{run: r} }

// drainTime is for how long the rest of a request is read that is refused already, so that its sender reads why.
const drainTime = 30 * time.Second

// Receive answers one request of a git client that pushes to store, which borrows from view: the body of the request is read from
// conn to its end, the body of the answer is written to it, and then it is shut down. A push that is denied is no error; nothing of
// it stays. Conflict is told to the client while another push to the same store, or a Prepare, is under way. Errors: Exhausted if a limit
// of time ended it, Internal.
func (t receiveTool) Receive(ctx context.Context, store, view, conn *os.File, req ReceiveRequest) (*Received, error) {
	if err := checkRefs(req.Granted); err != nil {
		return nil, err
	}
	if err := req.Rules.Validate(); err != nil {
		return nil, err
	}
	l := req.Limits.withDefaults()
	r, err := jobReceive.Run(ctx, t.run, receiveArgs{ReceiveRequest: req, Granted: len(req.Granted)}, worker.Given{
		Root: store, Mounts: overMount(view), Files: []*os.File{conn}, Input: bytes.NewReader(appendRefs(nil, req.Granted)),
		Limits: worker.Limits{
			Time: l.Time + stall + 2*drainTime, CPU: 2 * l.Time, Memory: 2 << 30, FileSize: int64(l.Pack + l.Total),
		},
	})
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// receiveArgs are the arguments of the job; the granted refs, which may be many, come by its input.
type receiveArgs struct {
	ReceiveRequest
	Granted int
}

// jobReceive reads a push. Its root is a store.
var jobReceive = worker.Job[receiveArgs, Received]{
	Name: "relay.receive", Programs: true, Access: worker.WriteAsOwner, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, args receiveArgs) (Received, error) {
		req := args.ReceiveRequest
		granted, err := io.ReadAll(c.Input())
		if err != nil {
			return Received{}, err
		}
		if req.Granted, err = parseRefs(granted); err != nil {
			return Received{}, err
		}
		if len(req.Granted) != args.Granted {
			return Received{}, caisson.Errorf(caisson.Internal, "the job was not told all refs that are granted")
		}
		p, err := newPeer(c.Files[0])
		if err != nil {
			return Received{}, err
		}
		defer p.Close()
		r, err := receiveFrom(ctx, overView(), p, req)
		if err == nil {
			r.fit()
		}
		return worker.Value(r, err)
	},
	Valid: func(_ receiveArgs, r *Received) bool { return r.valid() },
}

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
