// Package receive answers git clients that push to a store.
package receive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate/check"
	"github.com/caisson-dev/caisson/relay/commit"
	"github.com/caisson-dev/caisson/relay/git"
	"github.com/caisson-dev/caisson/relay/quarantine"
)

// Limits bound one push. Zero fields mean the defaults.
type Limits struct {
	Objects int           // 500,000
	Pack    caisson.Size  // of what is sent; 512 MiB
	Total   caisson.Size  // of all objects, once they are inflated, which takes half a minute; 2 GiB
	Commits int           // that are new to the store; 1,000
	Store   caisson.Size  // of what all pushes have brought that were taken; 8 GiB
	Time    time.Duration // from the first byte to the answer; 10 minutes
}

func (l Limits) withDefaults() Limits {
	if l.Objects <= 0 {
		l.Objects = 500_000
	}
	if l.Pack <= 0 {
		l.Pack = 512 << 20
	}
	if l.Total <= 0 {
		l.Total = 2 << 30
	}
	if l.Commits <= 0 {
		l.Commits = 1000
	}
	if l.Store <= 0 {
		l.Store = 8 << 30
	}
	if l.Time <= 0 {
		l.Time = 10 * time.Minute
	}
	return l
}

// A Request is one request of a git client that pushes: for the list of refs, or with a push.
type Request struct {
	// Advertise asks for the body of GET /info/refs?service=git-receive-pack; what is read from the connection is then ignored.
	Advertise bool
	// Protocol is the client's Git-Protocol header. Pushes know version 0 only, which every client takes.
	Protocol string
	// Granted are the refs that the sandbox was given: they stay where they are, but for the branch it works on.
	Granted []git.Ref
	Branch  string // short name of the branch it works on
	Rules   check.Rules
	Limits  Limits
}

// An Update is a ref of the store that a push has moved.
type Update struct {
	Name string // in full
	Old  string // "" if it is new
	New  string // "" if it was removed
	// Findings are those of verdict ask about commits that are new to the store, at most 100.
	Findings []caisson.Finding
}

// Result is what has become of a push: all of it was taken, or nothing, except for refs that may not be pushed to, without which
// the others are taken unless the client asks for atomicity.
type Result struct {
	Updates []Update
	// Denied says why something was not taken; at most 100.
	Denied []caisson.Finding
}

// Receive answers one request. It reads body to its end, and nothing after the answer is written to conn.
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
	p := &receiving{store: store, body: body, req: req, refs: refs, idSize: idSize, said: commit.NewFindings(commit.MaxFindings)}
	if err := p.read(); err != nil {
		return p.refuseAll(ctx, conn, err)
	}
	if len(p.commands) == 0 {
		return &Result{}, nil // a client asks in this way whether it may push
	}
	if err := p.run(ctx); err != nil {
		return p.refuseAll(ctx, conn, err)
	}
	return p.result(), p.report(conn, "ok")
}

// A receiving is one push under way.
type receiving struct {
	store  git.Repo
	body   io.Reader
	req    Request
	refs   map[string]string // of the store
	idSize int

	commands []*pushCommand
	caps     map[string]bool
	said     *commit.Findings // denied
}

// A pushCommand moves a ref.
type pushCommand struct {
	name     string
	old, new string // as the client says them; all zeros for none
	refused  string // why it is not done; "" if it is
	findings *commit.Findings
}

func (c *pushCommand) removes() bool { return isZero(c.new) }

// run does everything between the commands and the answer. An error refuses the push.
func (p *receiving) run(ctx context.Context) error {
	p.judge(ctx)
	if p.caps["atomic"] && slices.ContainsFunc(p.commands, func(c *pushCommand) bool { return c.refused != "" }) {
		p.refuseOthers("another ref of this atomic push is refused")
	}
	q, err := quarantine.Open(ctx, p.store)
	if err != nil {
		return err
	}
	err = p.within(ctx, q)
	return errors.Join(err, q.Close())
}

func (p *receiving) within(ctx context.Context, q *quarantine.Quarantine) error {
	if len(p.accepted()) == 0 {
		return nil
	}
	if slices.ContainsFunc(p.commands, func(c *pushCommand) bool { return !c.removes() }) {
		if used, err := q.Used(); err != nil || used > p.req.Limits.Store {
			return errors.Join(err, quarantine.ErrPack("what this sandbox has pushed fills the %v that it may have", p.req.Limits.Store))
		}
		l := quarantine.Limits{
			Objects: p.req.Limits.Objects, Object: int64(p.req.Rules.WithDefaults().MaxFile), Total: int64(p.req.Limits.Total), IDSize: p.idSize,
		}
		if err := q.Take(ctx, p.body, l, int64(p.req.Limits.Pack)); err != nil {
			return err
		}
	}
	if err := p.examine(ctx, q, p.accepted()); err != nil {
		return err
	}
	if len(p.accepted()) == 0 {
		return nil
	}
	return p.commit(ctx, q, p.accepted())
}

func (p *receiving) accepted() []*pushCommand {
	var list []*pushCommand
	for _, c := range p.commands {
		if c.refused == "" {
			list = append(list, c)
		}
	}
	return list
}

func (p *receiving) refuseOthers(why string) {
	for _, c := range p.accepted() {
		c.refused = why
	}
}

// examine checks all commits that are new. If one of them is denied, nothing of the push is taken.
func (p *receiving) examine(ctx context.Context, q *quarantine.Quarantine, todo []*pushCommand) error {
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
	if err := q.Connected(ctx, tips); err != nil {
		return err
	}
	return p.check(ctx, q, o, todo)
}

func (p *receiving) check(ctx context.Context, q *quarantine.Quarantine, o *commit.Objects, todo []*pushCommand) error {
	checks := commit.NewChecker(o, p.req.Rules)
	bad := false
	for _, c := range todo {
		if c.removes() {
			continue
		}
		commits, err := q.Fresh(ctx, c.new, p.req.Limits.Commits)
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
		found, err := checks.Links(ctx, c.new, p.req.Granted)
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
		p.refuseOthers("another ref of this push has a commit that is denied")
	}
	for _, c := range todo {
		if bad {
			p.said.AddAll(slices.DeleteFunc(slices.Clone(c.findings.List), func(f caisson.Finding) bool { return f.Verdict == caisson.VerdictAsk }))
		}
	}
	p.said.List = compactFindings(p.said.List)
	return nil
}

// compactFindings removes what is there twice.
func compactFindings(list []caisson.Finding) []caisson.Finding {
	var out []caisson.Finding
	for _, f := range list {
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

func (p *receiving) result() *Result {
	r := &Result{Denied: p.said.List}
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

// refuseAll answers a push that failed as a whole. What the client is to blame for is no error.
func (p *receiving) refuseAll(ctx context.Context, conn io.Writer, err error) (*Result, error) {
	kind, why := caisson.KindOf(err), caisson.MessageOf(err)
	if ctx.Err() != nil {
		kind, why = caisson.Exhausted, fmt.Sprintf("the push took longer than %v; push fewer commits at a time", p.req.Limits.Time)
		err = caisson.Wrap(err, kind, "%s", why)
	}
	why = git.Plain(why, 400)
	for _, c := range p.commands {
		c.refused = "the push is refused: " + why
	}
	reported := p.report(conn, why)
	if kind != caisson.Denied && kind != caisson.Conflict && kind != caisson.Invalid {
		return nil, errors.Join(err, reported)
	}
	p.said.Add(commit.DeniedFinding(commit.CheckType, why))
	return &Result{Denied: p.said.List}, reported
}
