// Package receive answers git clients that push to a store.
package receive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/quarantine"
)

// Limits bound one push. Zero fields mean the defaults.
type Limits struct {
	Objects int           // objects in the pack; default 500,000
	Pack    caisson.Size  // bytes of the pack as it is sent; default 512 MiB
	Total   caisson.Size  // bytes of all objects, inflated; default 2 GiB, which take half a minute to inflate
	Commits int           // new commits; default 1,000
	Store   caisson.Size  // bytes of all accepted pushes together; default 8 GiB
	Time    time.Duration // from the first byte of the request to the answer; default 10 minutes
}

// withDefaults returns l with defaults for zero and negative fields.
func (l Limits) withDefaults() Limits {
	l.Objects = cmp.Or(max(l.Objects, 0), 500_000)
	l.Pack = cmp.Or(max(l.Pack, 0), 512<<20)
	l.Total = cmp.Or(max(l.Total, 0), 2<<30)
	l.Commits = cmp.Or(max(l.Commits, 0), 1000)
	l.Store = cmp.Or(max(l.Store, 0), 8<<30)
	l.Time = cmp.Or(max(l.Time, 0), 10*time.Minute)
	return l
}

// A Request is one request of a git client that pushes: a request for the list of refs, or a push.
type Request struct {
	// Advertise requests the body of GET /info/refs?service=git-receive-pack. Data read from the connection is then ignored.
	Advertise bool
	// Protocol is the client's Git-Protocol header. Pushes use version 0 only, which every client supports.
	Protocol string
	// Granted are the refs that the sandbox was granted. A push cannot move them, except the working branch.
	Granted []git.Ref
	Branch  string      // short name of the working branch, to which the sandbox may push
	Rules   check.Rules // rules that new commits are checked by
	Limits  Limits
}

// An Update is a ref of the store that a push moved.
type Update struct {
	Name string // full name of the ref
	Old  string // commit before the push; "" if the ref is new
	New  string // commit after the push; "" if the ref was removed
	// Findings are the findings with verdict ask about commits that are new to the store, at most 100.
	Findings []caisson.Finding
}

// Result is the result of a push. Either all of a push is accepted or nothing, with one exception: if some of the refs must not
// be pushed to, the others are accepted unless the client requests an atomic push.
type Result struct {
	Updates []Update // refs that the push has moved
	// Denied has the reasons for which refs or commits were refused, at most 100.
	Denied []caisson.Finding
}

// Receive answers one request of a git client that pushes. It reads body to its end. After the answer, it writes nothing to conn.
func Receive(ctx context.Context, store git.Repo, body io.Reader, conn io.Writer, req Request) (*Result, error) {
	req.Limits = req.Limits.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, req.Limits.Time)
	defer cancel()
	refs, idSize, err := storeRefs(ctx, store)
	if err != nil {
		return nil, err
	}
	if req.Advertise {
		return &Result{}, advertise(conn, refs, idSize)
	}
	p := &pushState{store: store, body: body, req: req, refs: refs, idSize: idSize, denials: commit.NewFindings(commit.MaxFindings)}
	if err := p.readCommands(); err != nil {
		return p.refuseAll(ctx, conn, err)
	}
	if len(p.commands) == 0 {
		return &Result{}, nil // clients send an empty request to probe whether they may push
	}
	if err := p.run(ctx); err != nil {
		return p.refuseAll(ctx, conn, err)
	}
	return p.result(), p.report(conn, "ok")
}

// pushState is a push in progress.
type pushState struct {
	store  git.Repo  // the repository that is pushed to
	body   io.Reader // body of the request: commands and a pack
	req    Request
	refs   map[string]string // commits of the refs of the store, by full name
	idSize int               // length of an object name in bytes

	commands []*pushCommand   // commands, in the order of the request
	caps     map[string]bool  // capabilities that the client requested
	denials  *commit.Findings // reasons for denials
}

// A pushCommand is a request to move a ref.
type pushCommand struct {
	name     string           // full name of the ref
	old, new string           // commits before and after the push, as the client sent them; all zeros for no ref
	refused  string           // reason for the refusal; "" if the command is accepted
	findings *commit.Findings // findings about the new commits of the ref
}

// removes reports whether the command removes the ref.
func (c *pushCommand) removes() bool { return isZero(c.new) }

// run executes the commands. If it returns an error, the whole push is refused.
func (p *pushState) run(ctx context.Context) error {
	p.checkRefs(ctx)
	if p.caps["atomic"] && slices.ContainsFunc(p.commands, func(c *pushCommand) bool { return c.refused != "" }) {
		p.refuseAccepted("another ref of this atomic push is refused")
	}
	q, err := quarantine.Open(ctx, p.store)
	if err != nil {
		return err
	}
	err = p.runIn(ctx, q)
	return errors.Join(err, q.Close())
}

// runIn executes the commands with the quarantine q, which gets the objects of the push.
func (p *pushState) runIn(ctx context.Context, q *quarantine.Quarantine) error {
	if len(p.accepted()) == 0 {
		return nil
	}
	if slices.ContainsFunc(p.commands, func(c *pushCommand) bool { return !c.removes() }) {
		if used, err := q.StoreSize(); err != nil || used > p.req.Limits.Store {
			return errors.Join(err, quarantine.Deniedf("what this sandbox has pushed fills the %v that it may have", p.req.Limits.Store))
		}
		l := quarantine.Limits{
			Objects: p.req.Limits.Objects, Object: int64(p.req.Rules.WithDefaults().MaxFile), Total: int64(p.req.Limits.Total), IDSize: p.idSize,
		}
		if err := q.ReceivePack(ctx, p.body, l, int64(p.req.Limits.Pack)); err != nil {
			return err
		}
	}
	if err := p.checkCommits(ctx, q, p.accepted()); err != nil {
		return err
	}
	if len(p.accepted()) == 0 {
		return nil
	}
	return p.commit(ctx, q, p.accepted())
}

// accepted returns the commands that were not refused.
func (p *pushState) accepted() []*pushCommand {
	return slices.DeleteFunc(slices.Clone(p.commands), func(c *pushCommand) bool { return c.refused != "" })
}

// refuseAccepted refuses all commands that were not refused before.
func (p *pushState) refuseAccepted(why string) {
	for _, c := range p.accepted() {
		c.refused = why
	}
}

// checkCommits checks all new commits. If one of them is denied, the whole push is refused.
func (p *pushState) checkCommits(ctx context.Context, q *quarantine.Quarantine, todo []*pushCommand) error {
	var tips []string
	for _, c := range todo {
		if !c.removes() {
			tips = append(tips, c.new)
		}
	}
	if len(tips) == 0 {
		return nil
	}
	o, err := commit.OpenObjects(ctx, q.Repo)
	if err != nil {
		return err
	}
	defer o.Close()
	for _, tip := range tips {
		if _, err := o.Read(tip, "commit", 16*commit.MaxCommitObject); err != nil {
			return caisson.Wrap(err, caisson.Denied, "%s is no commit of this push or this repository; branches lead to commits", commit.ShortID(tip))
		}
	}
	if err := q.CheckConnected(ctx, tips); err != nil {
		return err
	}
	return p.findFaults(ctx, q, o, todo)
}

// findFaults checks the new commits and the symlinks of each command in todo, and records the findings. If a finding has verdict
// deny, all commands are refused.
func (p *pushState) findFaults(ctx context.Context, q *quarantine.Quarantine, o *commit.Objects, todo []*pushCommand) error {
	checks := commit.NewChecker(o, p.req.Rules)
	bad := false
	for _, c := range todo {
		if c.removes() {
			continue
		}
		commits, err := q.NewCommits(ctx, c.new, p.req.Limits.Commits)
		if err != nil {
			return err
		}
		for _, id := range commits {
			found, err := checks.Check(ctx, id)
			if err != nil {
				return err
			}
			if commit.Denied(found) {
				bad = true
				c.refused = "a commit is denied; see above"
			}
			c.findings.AddAll(found)
		}
		found, err := checks.CheckLinks(ctx, c.new, p.req.Granted)
		if err != nil {
			return err
		}
		if commit.Denied(found) {
			bad = true
			c.refused = "a symlink is denied; see above"
		}
		c.findings.AddAll(found)
	}
	if bad {
		p.refuseAccepted("another ref of this push has a commit that is denied")
	}
	for _, c := range todo {
		if bad {
			p.denials.AddAll(slices.DeleteFunc(slices.Clone(c.findings.List), func(f caisson.Finding) bool { return f.Verdict == caisson.VerdictAsk }))
		}
	}
	p.denials.List = dedupFindings(p.denials.List)
	return nil
}

// dedupFindings removes duplicates.
func dedupFindings(list []caisson.Finding) []caisson.Finding {
	var out []caisson.Finding
	for _, f := range list {
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// result returns the result of an executed push.
func (p *pushState) result() *Result {
	r := &Result{Denied: p.denials.List}
	for _, c := range p.accepted() {
		u := Update{Name: c.name, Findings: c.findings.List}
		if !isZero(c.old) {
			u.Old = c.old
		}
		if !c.removes() {
			u.New = c.new
		}
		r.Updates = append(r.Updates, u)
	}
	return r
}

// refuseAll answers a push that failed as a whole. It does not return an error if the client caused the failure.
func (p *pushState) refuseAll(ctx context.Context, conn io.Writer, err error) (*Result, error) {
	kind, why := caisson.KindOf(err), caisson.MessageOf(err)
	if ctx.Err() != nil {
		kind, why = caisson.Exhausted, fmt.Sprintf("the push took longer than %v; push fewer commits at a time", p.req.Limits.Time)
		err = caisson.Wrap(err, kind, "%s", why)
	}
	why = git.OneLine(why, 400)
	for _, c := range p.commands {
		c.refused = "the push is refused: " + why
	}
	reported := p.report(conn, why)
	if kind != caisson.Denied && kind != caisson.Conflict && kind != caisson.Invalid {
		return nil, errors.Join(err, reported)
	}
	p.denials.Add(commit.DeniedFinding(commit.CheckType, why))
	return &Result{Denied: p.denials.List}, reported
}
