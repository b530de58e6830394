package relay

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate/check"
)

// maxPrepared is how many commits are prepared at once.
const maxPrepared = 4000

// maxPerson bounds a name and an address.
const maxPerson = 200

// A PrepareRequest says which commits are to be sent, and how.
type PrepareRequest struct {
	Base   string // the commit that the work started from
	Commit string // the last commit, as it was pushed
	// Authors is one of the Author constants of the root package; "" means AuthorSet. Name and Email are whose the commits become.
	Authors     string
	Name, Email string
	// Sign returns an armoured SSH signature (see [SSHSign]) of a commit; nil leaves commits unsigned. It should answer the same to
	// the same payload, at most 1 MiB.
	Sign  func(payload []byte) (armored string, err error) `json:"-"`
	Rules check.Rules
	// Pull is what is known of the pull request, but for the commits, and Template what its text is made with; see [CheckPullTemplate]. What
	// looks like a secret in title or text is a finding of verdict ask, and so is a template that cannot be used.
	Pull     PullText
	Template string
}

// A Commit is one commit that is sent.
type Commit struct {
	ID      string
	Subject string // one line that can be shown anywhere; at most 200 bytes
}

// Prepared are the commits that can be sent. They are in the store; no ref leads to them.
type Prepared struct {
	Commit  string   // the last one; the request's if there was nothing to change
	Commits []Commit // all that the view has not, parents first
	Title   string   // of the pull request; the first commit's subject unless the request has one
	Text    string   // of the pull request
	// Findings are those of verdict ask, at most 100.
	Findings []caisson.Finding
}

func (r *PrepareRequest) validate() error {
	switch {
	case !validCommit(r.Base):
		return caisson.Invalidf("base", "%.80q is not a commit", r.Base)
	case !validCommit(r.Commit) || len(r.Commit) != len(r.Base):
		return caisson.Invalidf("commit", "%.80q is not a commit", r.Commit)
	case r.Authors != caisson.AuthorKeep && r.Authors != caisson.AuthorSet && r.Authors != "":
		return caisson.Invalidf("authors", "must be %s or %s", caisson.AuthorKeep, caisson.AuthorSet)
	}
	if r.Authors == caisson.AuthorKeep {
		return r.Rules.Validate()
	}
	for field, s := range map[string]string{"name": r.Name, "email": r.Email} {
		if strings.TrimSpace(s) == "" || s != strings.TrimSpace(s) || len(s) > maxPerson || strings.ContainsAny(s, "<>\n\t") || textFault(s) != "" {
			return caisson.Invalidf(field, "must be text without angle brackets, at most %d bytes", maxPerson)
		}
	}
	return r.Rules.Validate()
}

// prepare makes the commits that are sent of those that were pushed. The same commits give the same ones, so that what comes of more
// commits follows what was sent before.
func prepare(ctx context.Context, store repo, req PrepareRequest) (*Prepared, error) {
	if err := req.validate(); err != nil {
		return nil, err
	}
	q, err := openQuarantine(ctx, store)
	if err != nil {
		return nil, err
	}
	result, err := prepareIn(ctx, q, req)
	if err == nil {
		err = q.migrate()
	}
	if err = errors.Join(err, q.close()); err != nil {
		return nil, err
	}
	return result, nil
}

func prepareIn(ctx context.Context, q *quarantine, req PrepareRequest) (*Prepared, error) {
	granted, err := grantedRefs(ctx, q.store)
	if err != nil {
		return nil, err
	}
	ids, err := newerThan(ctx, q.store, req, granted)
	if err != nil {
		return nil, err
	}
	o, err := openObjects(ctx, q.repo)
	if err != nil {
		return nil, err
	}
	defer o.close()
	checks := newChecker(o, req.Rules)
	asked := newFindings(maxFindings)
	for _, id := range ids {
		found, err := checks.check(ctx, id)
		if err == nil && id == req.Commit {
			var links []caisson.Finding
			links, err = checks.links(ctx, id, granted)
			found = slices.Concat(found, links)
		}
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if f.Verdict != caisson.VerdictAsk && f.Verdict != caisson.VerdictPass {
				return nil, caisson.Errorf(caisson.Denied, "a commit is denied: %s", plain(f.Message, 300))
			}
		}
		asked.addAll(found)
	}
	result := &Prepared{Commit: req.Commit}
	if len(ids) > 0 {
		if err := result.describe(ctx, req, checks, ids, asked); err != nil {
			return nil, err
		}
	}
	result.Findings = asked.list
	w := &rewriter{repo: q.repo, req: req, done: map[string]string{}}
	for _, id := range ids {
		c := checks.commits[id]
		now, err := w.rewrite(ctx, id, c)
		if err != nil {
			return nil, err
		}
		w.done[id] = now
		result.Commits = append(result.Commits, Commit{ID: now, Subject: c.subject()})
		if id == req.Commit {
			result.Commit = now
		}
	}
	return result, nil
}

// describe makes title and text of the pull request, and searches them: what is searched is what is sent. The gate's default verdict on
// secrets holds: somebody may have a look at it.
func (p *Prepared) describe(ctx context.Context, req PrepareRequest, checks *checker, ids []string, asked *findings) error {
	var subjects []string
	for _, id := range ids[:min(len(ids), maxPullCommits)] {
		subjects = append(subjects, checks.commits[id].subject())
	}
	pull := req.Pull.complete(subjects)
	text, err := pull.text(req.Template)
	if err != nil { // it was tried when the repository was added; no commit is lost for it
		asked.add(caisson.Finding{
			Check: checkType, Verdict: caisson.VerdictAsk, Message: "the template of the pull request fails, and the default text is used: " + caisson.MessageOf(err),
		})
		if text, err = pull.text(""); err != nil {
			return err
		}
	}
	p.Title, p.Text = pull.Title, text
	found, err := check.Text(ctx, p.Title+"\n"+p.Text, req.Rules)
	for i := range found {
		found[i].Message = plain("the text of the pull request: "+found[i].Message, 300)
	}
	asked.addAll(found)
	return err
}

// grantedRefs returns the refs of a store's view.
func grantedRefs(ctx context.Context, store repo) ([]Ref, error) {
	if store.view == "" {
		return nil, nil
	}
	all, err := repo{dir: store.view, tmp: store.tmp}.refs(ctx)
	if err != nil {
		return nil, err
	}
	return all.Refs, nil
}

// newerThan returns the commits that are to be sent, parents first: those that neither the base nor any branch or tag that the
// sandbox was granted has, because the remote has made those.
func newerThan(ctx context.Context, store repo, req PrepareRequest, granted []Ref) ([]string, error) {
	for _, id := range []string{req.Base, req.Commit} {
		has, err := store.hasCommit(ctx, id)
		if err != nil {
			return nil, err
		}
		if !has {
			return nil, caisson.Errorf(caisson.NotFound, "the store does not have the commit %s", id)
		}
	}
	var in strings.Builder
	in.WriteString(req.Commit + "\n^" + req.Base + "\n")
	for _, r := range granted {
		in.WriteString("^" + r.Commit + "\n")
	}
	out, err := store.output(ctx, in.String(), "rev-list", "--topo-order", "--reverse", "--max-count="+strconv.Itoa(maxPrepared+1), "--stdin")
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(string(out))
	if len(ids) > maxPrepared {
		return nil, caisson.Errorf(caisson.Denied, "there are more than %d new commits; send fewer at a time", maxPrepared)
	}
	return ids, nil
}

// A rewriter makes commits of commits.
type rewriter struct {
	repo repo
	req  PrepareRequest
	done map[string]string // what came of which
}

// rewrite returns the commit that id becomes: the same one if nothing of it changes.
func (w *rewriter) rewrite(ctx context.Context, id string, c *rawCommit) (string, error) {
	n := *c
	for i, p := range c.parents {
		if now, ok := w.done[p]; ok && now != p {
			n.parents = slices.Clone(n.parents)
			n.parents[i] = now
		}
	}
	if w.req.Authors != caisson.AuthorKeep {
		who := w.req.Name + " <" + w.req.Email + "> "
		for _, field := range []*string{&n.author, &n.committer} {
			_, when, err := splitPerson(*field)
			if err != nil {
				return "", err
			}
			*field = who + when
		}
	}
	same := slices.Equal(n.parents, c.parents) && n.author == c.author && n.committer == c.committer
	if same && w.req.Sign == nil {
		return id, nil
	}
	// What others have signed is not what is there any more.
	n.extra = slices.DeleteFunc(slices.Clone(c.extra), func(h commitHeader) bool {
		return h.name == headerSignature || h.name == headerOtherSig || h.name == headerMergeTag
	})
	if err := w.sign(&n, len(id)); err != nil {
		return "", err
	}
	return w.write(ctx, n.bytes(), len(id))
}

// sign adds a signature of the commit as it is without one.
func (w *rewriter) sign(c *rawCommit, digits int) error {
	if w.req.Sign == nil {
		return nil
	}
	armored, err := w.req.Sign(c.bytes())
	if err != nil {
		return err
	}
	if !validSignature(armored) {
		return caisson.Errorf(caisson.Internal, "the signature of a commit is malformed")
	}
	name := headerSignature
	if digits == hexSHA256 {
		name = headerOtherSig
	}
	c.extra = append(c.extra, commitHeader{name, strings.TrimSuffix(armored, "\n")})
	return nil
}

// write makes an object of a commit.
func (w *rewriter) write(ctx context.Context, data []byte, digits int) (string, error) {
	out, err := w.repo.output(ctx, string(data), "hash-object", "-t", "commit", "-w", "--stdin")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(out))
	if !validCommit(id) || len(id) != digits {
		return "", caisson.Errorf(caisson.Internal, "git says nonsense of a commit")
	}
	return id, nil
}
