package repos

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/prepare"
)

// Service implements [caisson.Repos].
type Service struct {
	repos      caisson.Table[caisson.Repo]
	sandboxes  caisson.Table[caisson.Sandbox]
	deliveries deliveries   // deliveries in the store
	dirs       *directories // directories of repositories
	remotes    *remotes     // connects to remotes and forges
	mirrors    *mirrors     // creates and fetches mirrors
	keeper     *keeper      // removes unused files, and limits space
	access     *access      // grants the use of repositories
	planner    *planner     // creates deliveries
	queue      *queue       // sends deliveries when they are due
	events     caisson.Publisher
}

var _ caisson.Repos = (*Service)(nil)

// validName matches the names that a repository may have, except that names with ".." and names that end in ".git" are refused,
// too.
var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// AddRepo implements [caisson.Repos].
func (s *Service) AddRepo(ctx context.Context, r caisson.Repo) (*caisson.Repo, error) {
	in, caller, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	r.Account, r.Local, r.Head, r.CreatedAt, r.FetchedAt = caller.Account, caller.Local, "", now(), time.Time{}
	if err := checkRepo(&r, caller); err != nil {
		return nil, err
	}
	if err := s.remotes.checkKeys(ctx, &r); err != nil {
		return nil, err
	}
	release, err := s.dirs.lock(ctx, r.Account, r.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	if list, err := s.ListRepos(ctx); err != nil {
		return nil, err
	} else if len(list) >= maxRepos {
		return nil, caisson.Errorf(caisson.Exhausted, "the account has %d repositories, the most that it may have; remove some", len(list))
	}
	if _, err := s.dirs.accounts.Ensure(ctx, r.Account); err != nil {
		return nil, err
	}
	if err := s.repos.Insert(ctx, &r); err != nil {
		return nil, err
	}
	made, err := s.mirrors.create(ctx, &r)
	if err != nil {
		clean := context.WithoutCancel(ctx)
		return nil, errors.Join(err, s.repos.Delete(clean, in, r.Name), os.RemoveAll(s.dirs.path(r.Account, r.Name)))
	}
	s.events.Publish(ctx, r.Account, "repo.added", r.Name, map[string]string{"url": r.URL, "forge": string(r.Forge)})
	return made, nil
}

// checkRepo sets the defaults of a repository that is to be added. It returns Invalid or Denied if the repository cannot be
// added.
func checkRepo(r *caisson.Repo, caller caisson.Caller) error {
	if !validName.MatchString(r.Name) || strings.HasSuffix(r.Name, ".git") || strings.Contains(r.Name, "..") {
		return caisson.Invalidf("name", "a name has lower-case letters, digits, '.', '_' and '-', begins with a letter or digit, and does not end in .git")
	}
	at, err := locate(r)
	if err != nil {
		return err
	}
	if at.local != "" && !caller.Local {
		return caisson.Errorf(caisson.Denied, "a path on the host can be a repository only if it is added over the unix socket")
	}
	r.Forge = at.forge
	r.Authors = cmp.Or(r.Authors, caisson.AuthorSet)
	if r.Authors != caisson.AuthorSet && r.Authors != caisson.AuthorKeep {
		return caisson.Invalidf("authors", "must be keep or set")
	}
	for field, v := range map[string]string{"authorName": r.AuthorName, "authorEmail": r.AuthorEmail} {
		if strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c == 0x7f || c == '<' || c == '>' }) || len(v) > 200 || v != strings.TrimSpace(v) {
			return caisson.Invalidf(field, "has characters that are not allowed in the author of a commit, or is longer than 200 bytes")
		}
	}
	if len(r.HostKeys) > 20 {
		return caisson.Invalidf("hostKeys", "must have at most 20 lines")
	}
	for _, list := range []struct {
		field    string
		patterns []string
	}{{"protected", r.Protected}, {"allow", r.Allow}, {"allowSecrets", r.AllowSecrets}} {
		if len(list.patterns) > 100 {
			return caisson.Invalidf(list.field, "must have at most 100 patterns")
		}
		for _, p := range list.patterns {
			if err := check.ValidPattern(p); err != nil {
				return caisson.Invalidf(list.field, "%s", caisson.MessageOf(err))
			}
		}
	}
	return prepare.CheckPullTemplate(r.PullBody)
}

// GetRepo implements [caisson.Repos].
func (s *Service) GetRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.repos.Get(ctx, in, name)
}

// ListRepos implements [caisson.Repos].
func (s *Service) ListRepos(ctx context.Context) ([]*caisson.Repo, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	list, _, err := s.repos.List(ctx, in, caisson.Filter{Limit: maxRepos})
	return list, err
}

// ListBranches implements [caisson.Repos].
func (s *Service) ListBranches(ctx context.Context, name string) ([]caisson.Branch, error) {
	r, err := s.GetRepo(ctx, name)
	if err != nil {
		return nil, err
	}
	have, err := s.mirrors.refs(ctx, r)
	if err != nil {
		return nil, err
	}
	list := []caisson.Branch{}
	for _, ref := range have.Refs {
		if b, ok := strings.CutPrefix(ref.Name, headsPrefix); ok {
			list = append(list, caisson.Branch{Name: b, Commit: ref.Commit})
		}
	}
	slices.SortFunc(list, func(a, b caisson.Branch) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// FetchRepo implements [caisson.Repos].
func (s *Service) FetchRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.mirrors.update(ctx, caller.Account, name)
}

// RemoveRepo implements [caisson.Repos].
func (s *Service) RemoveRepo(ctx context.Context, name string) error {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return err
	}
	r, err := s.repos.Get(ctx, in, name)
	if err != nil {
		return err
	}
	release, err := s.dirs.lock(ctx, r.Account, r.Name)
	if err != nil {
		return err
	}
	defer release()
	waiting, _, err := s.deliveries.List(ctx, in, caisson.DeliveryFilter{
		Repo: name, States: []caisson.DeliveryState{caisson.DeliveryWaiting, caisson.DeliverySending, caisson.DeliveryHeld}, Limit: 1,
	})
	if err != nil {
		return err
	}
	if len(waiting) > 0 {
		return caisson.Errorf(caisson.Conflict, "delivery %s of %s is %s; drop it first with caisson relay drop", waiting[0].ID, name, waiting[0].State)
	}
	if err := s.repos.Delete(ctx, in, name); err != nil {
		return err
	}
	s.events.Publish(ctx, r.Account, "repo.removed", r.Name, nil)
	return s.keeper.removeRepo(r.Account, r.Name)
}

// GrantRepo implements [caisson.Repos].
func (s *Service) GrantRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.RepoGrant, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	sb, err := s.sandboxes.Get(ctx, in, sandbox)
	switch {
	case err != nil:
		return nil, err
	case sb.Assigned != nil:
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s serves run %s; name the repository in the request of the run", sb.ID, sb.Assigned.Run)
	case !path.IsAbs(dir) || path.Clean(dir) == "/":
		return nil, caisson.Invalidf("dir", "must be the absolute path of a directory in the sandbox")
	}
	return s.access.grant(ctx, caisson.RepoAccess{Account: sb.Account, Sandbox: sb.ID, Repo: req, Dir: dir})
}

// DeliverRepo implements [caisson.Repos].
func (s *Service) DeliverRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.Delivery, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	sb, err := s.sandboxes.Get(ctx, in, sandbox)
	switch {
	case err != nil:
		return nil, err
	case sb.Assigned != nil:
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s serves run %s; its commits are delivered when the run ends", sb.ID, sb.Assigned.Run)
	case dir != "" && !path.IsAbs(dir):
		return nil, caisson.Invalidf("dir", "must be the absolute path of a directory in the sandbox")
	}
	if _, err := s.access.check(ctx, sb.Account, caisson.RepoRequest{Name: req.Name, Pull: req.Pull}); err != nil {
		return nil, err
	}
	d, err := s.planner.deliver(ctx, caisson.DeliveryRequest{Sandbox: sb.ID, Repo: req, Dir: dir, Subject: cmp.Or(req.Title, "Changes")})
	if err == nil && d == nil {
		return nil, caisson.Errorf(caisson.NotFound, "there is nothing new in %s of sandbox %s", req.Name, sb.ID)
	}
	return d, err
}
