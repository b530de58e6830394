package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate/check"
)

// PushLimits bound one push. Zero fields mean the defaults.
type PushLimits struct {
	Objects int           // 500,000
	Pack    caisson.Size  // of what is sent; 512 MiB
	Total   caisson.Size  // of all objects, once they are inflated, which takes half a minute; 2 GiB
	Commits int           // that are new to the store; 1,000
	Store   caisson.Size  // of what all pushes have brought that were taken; 8 GiB
	Time    time.Duration // from the first byte to the answer; 10 minutes
}

func (l PushLimits) withDefaults() PushLimits {
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

// A ReceiveRequest is one request of a git client that pushes: for the list of refs, or with a push.
type ReceiveRequest struct {
	// Advertise asks for the body of GET /info/refs?service=git-receive-pack; what is read from the connection is then ignored.
	Advertise bool
	// Protocol is the client's Git-Protocol header. Pushes know version 0 only, which every client takes.
	Protocol string
	// Granted are the refs that the sandbox was given: they stay where they are, but for the branch it works on.
	Granted []Ref
	Branch  string // short name of the branch it works on
	Rules   check.Rules
	Limits  PushLimits
}

// An Update is a ref of the store that a push has moved.
type Update struct {
	Name string // in full
	Old  string // "" if it is new
	New  string // "" if it was removed
	// Findings are those of verdict ask about commits that are new to the store, at most 100.
	Findings []caisson.Finding
}

// Received is what has become of a push: all of it was taken, or nothing, except for refs that may not be pushed to, without which
// the others are taken unless the client asks for atomicity.
type Received struct {
	Updates []Update
	// Denied says why something was not taken; at most 100.
	Denied []caisson.Finding
}

// receive answers one request. It reads body to its end, and nothing after the answer is written to conn.
func receive(ctx context.Context, store repo, body io.Reader, conn io.Writer, req ReceiveRequest) (*Received, error) {
	req.Limits = req.Limits.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, req.Limits.Time)
	defer cancel()
	refs, idSize, err := storeRefs(ctx, store)
	if err != nil {
		return nil, err
	}
	if req.Advertise {
		return &Received{}, advertise(conn, refs, idSize)
	}
	p := &receiving{store: store, body: body, req: req, refs: refs, idSize: idSize, said: newFindings(maxFindings)}
	if err := p.read(); err != nil {
		return p.refuseAll(ctx, conn, err)
	}
	if len(p.commands) == 0 {
		return &Received{}, nil // a client asks in this way whether it may push
	}
	if err := p.run(ctx); err != nil {
		return p.refuseAll(ctx, conn, err)
	}
	return p.result(), p.report(conn, "ok")
}

// A receiving is one push under way.
type receiving struct {
	store  repo
	body   io.Reader
	req    ReceiveRequest
	refs   map[string]string // of the store
	idSize int

	commands []*pushCommand
	caps     map[string]bool
	said     *findings // denied
}

// A pushCommand moves a ref.
type pushCommand struct {
	name     string
	old, new string // as the client says them; all zeros for none
	refused  string // why it is not done; "" if it is
	findings *findings
}

func (c *pushCommand) removes() bool { return isZero(c.new) }

// run does everything between the commands and the answer. An error refuses the push.
func (p *receiving) run(ctx context.Context) error {
	p.judge(ctx)
	if p.caps["atomic"] && slices.ContainsFunc(p.commands, func(c *pushCommand) bool { return c.refused != "" }) {
		p.refuseOthers("another ref of this atomic push is refused")
	}
	q, err := openQuarantine(ctx, p.store)
	if err != nil {
		return err
	}
	err = p.within(ctx, q)
	return errors.Join(err, q.close())
}

func (p *receiving) within(ctx context.Context, q *quarantine) error {
	if len(p.accepted()) == 0 {
		return nil
	}
	if slices.ContainsFunc(p.commands, func(c *pushCommand) bool { return !c.removes() }) {
		if used, err := q.used(); err != nil || used > p.req.Limits.Store {
			return errors.Join(err, errPack("what this sandbox has pushed fills the %v that it may have", p.req.Limits.Store))
		}
		l := packLimits{
			objects: p.req.Limits.Objects, object: int64(p.req.Rules.WithDefaults().MaxFile), total: int64(p.req.Limits.Total), idSize: p.idSize,
		}
		if err := q.take(ctx, p.body, l, int64(p.req.Limits.Pack)); err != nil {
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
func (p *receiving) examine(ctx context.Context, q *quarantine, todo []*pushCommand) error {
	var tips []string
	for _, c := range todo {
		if !c.removes() {
			tips = append(tips, c.new)
		}
	}
	if len(tips) == 0 {
		return nil
	}
	o, err := openObjects(ctx, q.repo)
	if err != nil {
		return err
	}
	defer o.close()
	for _, tip := range tips {
		if _, err := o.read(tip, "commit", 16*maxCommitObject); err != nil {
			return caisson.Wrap(err, caisson.Denied, "%s is no commit of this push or this repository; branches lead to commits", shortID(tip))
		}
	}
	if err := q.connected(ctx, tips); err != nil {
		return err
	}
	return p.check(ctx, q, o, todo)
}

func (p *receiving) check(ctx context.Context, q *quarantine, o *objects, todo []*pushCommand) error {
	checks := newChecker(o, p.req.Rules)
	bad := false
	for _, c := range todo {
		if c.removes() {
			continue
		}
		commits, err := q.fresh(ctx, c.new, p.req.Limits.Commits)
		if err != nil {
			return err
		}
		for _, id := range commits {
			found, err := checks.check(ctx, id)
			if err != nil {
				return err
			}
			if denied(found) {
				bad = true
				c.refused = "a commit is denied; see above"
			}
			c.findings.addAll(found)
		}
		found, err := checks.links(ctx, c.new, p.req.Granted)
		if err != nil {
			return err
		}
		if denied(found) {
			bad = true
			c.refused = "a symlink is denied; see above"
		}
		c.findings.addAll(found)
	}
	if bad {
		p.refuseOthers("another ref of this push has a commit that is denied")
	}
	for _, c := range todo {
		if bad {
			p.said.addAll(slices.DeleteFunc(slices.Clone(c.findings.list), func(f caisson.Finding) bool { return f.Verdict == caisson.VerdictAsk }))
		}
	}
	p.said.list = compactFindings(p.said.list)
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

func (p *receiving) result() *Received {
	r := &Received{Denied: p.said.list}
	for _, c := range p.accepted() {
		u := Update{Name: c.name, Findings: c.findings.list}
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
func (p *receiving) refuseAll(ctx context.Context, conn io.Writer, err error) (*Received, error) {
	kind, why := caisson.KindOf(err), caisson.MessageOf(err)
	if ctx.Err() != nil {
		kind, why = caisson.Exhausted, fmt.Sprintf("the push took longer than %v; push fewer commits at a time", p.req.Limits.Time)
		err = caisson.Wrap(err, kind, "%s", why)
	}
	why = plain(why, 400)
	for _, c := range p.commands {
		c.refused = "the push is refused: " + why
	}
	reported := p.report(conn, why)
	if kind != caisson.Denied && kind != caisson.Conflict && kind != caisson.Invalid {
		return nil, errors.Join(err, reported)
	}
	p.said.add(deniedFinding(checkType, why))
	return &Received{Denied: p.said.list}, reported
}
