// Package prepare makes the commits and the pull request text of a delivery from pushed commits.
package prepare

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/quarantine"
)

// maxPrepared is the maximum number of commits of a request.
const maxPrepared = 4000

// maxPerson is the maximum length of an author's name, and of an author's e-mail address, in bytes.
const maxPerson = 200

// A Request has the commits to deliver and the settings for rewriting them.
type Request struct {
	Base   string // commit that the work is based on
	Commit string // last pushed commit
	// Authors is one of the Author constants of the root package; "" means AuthorSet: Name and Email become the author and the
	// committer of the commits.
	Authors     string
	Name, Email string // name and e-mail address of the new author and committer
	// Sign returns an armoured SSH signature (see [SSHSign]) of a commit, or is nil for unsigned commits. It should return equal
	// signatures for equal payloads, which have at most 1 MiB.
	Sign func(payload []byte) (armored string, err error) `json:"-"`
	// Rules are the rules that the commits and the text of the pull request are checked by.
	Rules check.Rules
	// Pull has the data for the text of the pull request, except the commits. Template is the template of the text; see
	// [CheckPullTemplate]. A suspected secret in the title or text, or a template that fails, yields a finding with verdict ask.
	Pull     PullText
	Template string // template of the text of the pull request; "" means the default one
}

// A Commit is a commit to deliver.
type Commit struct {
	ID      string // object name of the commit
	Subject string // one line that is safe to display; at most 200 bytes
}

// Result has the commits to deliver. They are in the store, but no ref reaches them.
type Result struct {
	Commit  string   // the last commit; the requested one if nothing had to be changed
	Commits []Commit // all commits that the view does not have, parents first
	Title   string   // title of the pull request; the subject of the first commit unless the request has a title
	Text    string   // text of the pull request
	// Findings are the findings with verdict ask, at most 100.
	Findings []caisson.Finding
}

// validate returns an Invalid error if r is not valid.
func (r *Request) validate() error {
	switch {
	case !git.ValidCommit(r.Base):
		return caisson.Invalidf("base", "%.80q is not a commit", r.Base)
	case !git.ValidCommit(r.Commit) || len(r.Commit) != len(r.Base):
		return caisson.Invalidf("commit", "%.80q is not a commit", r.Commit)
	case r.Authors != caisson.AuthorKeep && r.Authors != caisson.AuthorSet && r.Authors != "":
		return caisson.Invalidf("authors", "must be %s or %s", caisson.AuthorKeep, caisson.AuthorSet)
	}
	if r.Authors == caisson.AuthorKeep {
		return r.Rules.Validate()
	}
	for field, s := range map[string]string{"name": r.Name, "email": r.Email} {
		if strings.TrimSpace(s) == "" || s != strings.TrimSpace(s) || len(s) > maxPerson || strings.ContainsAny(s, "<>\n\t") || commit.TextFault(s) != "" {
			return caisson.Invalidf(field, "must be text without angle brackets, at most %d bytes", maxPerson)
		}
	}
	return r.Rules.Validate()
}

// prepare makes the commits to deliver from pushed commits. It is deterministic: the same pushed commits yield the same result,
// so later commits become descendants of commits that were delivered before.
func prepare(ctx context.Context, store git.Repo, req Request) (*Result, error) {
	if err := req.validate(); err != nil {
		return nil, err
	}
	q, err := quarantine.Open(ctx, store)
	if err != nil {
		return nil, err
	}
	result, err := prepareIn(ctx, q, req)
	if err == nil {
		err = q.Migrate()
	}
	if err = errors.Join(err, q.Close()); err != nil {
		return nil, err
	}
	return result, nil
}

// prepareIn makes the commits to deliver and the text of the pull request. It writes the new commits to the quarantine q.
func prepareIn(ctx context.Context, q *quarantine.Quarantine, req Request) (*Result, error) {
	granted, err := grantedRefs(ctx, q.Store)
	if err != nil {
		return nil, err
	}
	ids, err := newCommits(ctx, q.Store, req, granted)
	if err != nil {
		return nil, err
	}
	o, err := commit.OpenObjects(ctx, q.Repo)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	checks := commit.NewChecker(o, req.Rules)
	asked := commit.NewFindings(commit.MaxFindings)
	for _, id := range ids {
		found, err := checks.Check(ctx, id)
		if err == nil && id == req.Commit {
			var links []caisson.Finding
			links, err = checks.CheckLinks(ctx, id, granted)
			found = slices.Concat(found, links)
		}
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if f.Verdict != caisson.VerdictAsk && f.Verdict != caisson.VerdictPass {
				return nil, caisson.Errorf(caisson.Denied, "a commit is denied: %s", git.OneLine(f.Message, 300))
			}
		}
		asked.AddAll(found)
	}
	result := &Result{Commit: req.Commit}
	if len(ids) > 0 {
		if err := result.setPullText(ctx, req, checks, ids, asked); err != nil {
			return nil, err
		}
	}
	result.Findings = asked.List
	w := &rewriter{repo: q.Repo, req: req, rewritten: map[string]string{}}
	for _, id := range ids {
		c := checks.Commits[id]
		now, err := w.rewrite(ctx, id, c)
		if err != nil {
			return nil, err
		}
		w.rewritten[id] = now
		result.Commits = append(result.Commits, Commit{ID: now, Subject: c.Subject()})
		if id == req.Commit {
			result.Commit = now
		}
	}
	return result, nil
}

// setPullText sets the title and the text of the pull request, and searches both for secrets. A suspected secret yields a finding
// with the default verdict of the gate, which is ask.
func (p *Result) setPullText(ctx context.Context, req Request, checks *commit.Checker, ids []string, asked *commit.Findings) error {
	var subjects []string
	for _, id := range ids[:min(len(ids), maxPullCommits)] {
		subjects = append(subjects, checks.Commits[id].Subject())
	}
	pull := req.Pull.withSubjects(subjects)
	text, err := pull.text(req.Template)
	if err != nil { // the template was valid when the repository was added; the delivery does not fail because of it
		asked.Add(caisson.Finding{
			Check: commit.CheckType, Verdict: caisson.VerdictAsk, Message: "the template of the pull request fails, and the default text is used: " + caisson.MessageOf(err),
		})
		if text, err = pull.text(""); err != nil {
			return err
		}
	}
	p.Title, p.Text = pull.Title, text
	found, err := check.Text(ctx, p.Title+"\n"+p.Text, req.Rules)
	for i := range found {
		found[i].Message = git.OneLine("the text of the pull request: "+found[i].Message, 300)
	}
	asked.AddAll(found)
	return err
}

// grantedRefs returns the refs of a store's view.
func grantedRefs(ctx context.Context, store git.Repo) ([]git.Ref, error) {
	if store.View == "" {
		return nil, nil
	}
	all, err := git.Repo{Dir: store.View, Tmp: store.Tmp}.Refs(ctx)
	if err != nil {
		return nil, err
	}
	return all.Refs, nil
}

// newCommits returns the commits to deliver, parents first. It leaves out commits that the base or a granted branch or tag
// reaches, because they come from the remote.
func newCommits(ctx context.Context, store git.Repo, req Request, granted []git.Ref) ([]string, error) {
	for _, id := range []string{req.Base, req.Commit} {
		has, err := store.HasCommit(ctx, id)
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
	out, err := store.Output(ctx, in.String(), "rev-list", "--topo-order", "--reverse", "--max-count="+strconv.Itoa(maxPrepared+1), "--stdin")
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(string(out))
	if len(ids) > maxPrepared {
		return nil, caisson.Errorf(caisson.Denied, "there are more than %d new commits; send fewer at a time", maxPrepared)
	}
	return ids, nil
}

// A rewriter rewrites commits.
type rewriter struct {
	repo      git.Repo          // repository with the commits
	req       Request           // specifies how commits are rewritten
	rewritten map[string]string // new ids by old ids
}

// rewrite returns the id of the rewritten commit, which is id if nothing changes.
func (w *rewriter) rewrite(ctx context.Context, id string, c *commit.RawCommit) (string, error) {
	n := *c
	for i, p := range c.Parents {
		if now, ok := w.rewritten[p]; ok && now != p {
			n.Parents = slices.Clone(n.Parents)
			n.Parents[i] = now
		}
	}
	if w.req.Authors != caisson.AuthorKeep {
		who := w.req.Name + " <" + w.req.Email + "> "
		for _, field := range []*string{&n.Author, &n.Committer} {
			_, when, err := commit.SplitPerson(*field)
			if err != nil {
				return "", err
			}
			*field = who + when
		}
	}
	same := slices.Equal(n.Parents, c.Parents) && n.Author == c.Author && n.Committer == c.Committer
	if same && w.req.Sign == nil {
		return id, nil
	}
	// Existing signatures and signed tags are removed, because they do not match the new commit.
	n.Extra = slices.DeleteFunc(slices.Clone(c.Extra), func(h commit.Header) bool {
		return h.Name == commit.HeaderSignature || h.Name == commit.HeaderSignatureSHA256 || h.Name == commit.HeaderMergeTag
	})
	if err := w.sign(&n, len(id)); err != nil {
		return "", err
	}
	return w.write(ctx, n.Bytes(), len(id))
}

// sign adds a signature of the unsigned commit, if signing is requested.
func (w *rewriter) sign(c *commit.RawCommit, digits int) error {
	if w.req.Sign == nil {
		return nil
	}
	armored, err := w.req.Sign(c.Bytes())
	if err != nil {
		return err
	}
	if !validSignature(armored) {
		return caisson.Errorf(caisson.Internal, "the signature of a commit is malformed")
	}
	name := commit.HeaderSignature
	if digits == git.HexSHA256 {
		name = commit.HeaderSignatureSHA256
	}
	c.Extra = append(c.Extra, commit.Header{Name: name, Value: strings.TrimSuffix(armored, "\n")})
	return nil
}

// write stores a commit object and returns its id.
func (w *rewriter) write(ctx context.Context, data []byte, digits int) (string, error) {
	out, err := w.repo.Output(ctx, string(data), "hash-object", "-t", "commit", "-w", "--stdin")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(out))
	if !git.ValidCommit(id) || len(id) != digits {
		return "", caisson.Errorf(caisson.Internal, "git returned malformed information about a commit")
	}
	return id, nil
}
