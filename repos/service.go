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
	"github.com/caisson-dev/caisson/gate/check"
	"github.com/caisson-dev/caisson/internal/sshkey"
	"github.com/caisson-dev/caisson/relay/prepare"
	"github.com/caisson-dev/caisson/relay/remoteurl"
)

// Service implements [caisson.Repos].
type Service struct{ c *Core }

var _ caisson.Repos = (*Service)(nil)

// scope is what the caller in ctx may touch.
func scope(ctx context.Context) (caisson.Scope, caisson.Caller, error) {
	caller, err := caisson.CallerOf(ctx)
	return caisson.In(caller.Account), caller, err
}

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// AddRepo implements [caisson.Repos].
func (s *Service) AddRepo(ctx context.Context, r caisson.Repo) (*caisson.Repo, error) {
	in, caller, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	r.Account, r.Local, r.Head, r.CreatedAt, r.FetchedAt = caller.Account, caller.Local, "", now(), time.Time{}
	if err := checkRepo(&r, caller); err != nil {
		return nil, err
	}
	if err := s.c.mirrors.checkKeys(ctx, &r); err != nil {
		return nil, err
	}
	release, err := s.c.lock(ctx, r.Account, r.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	if list, err := s.ListRepos(ctx); err != nil {
		return nil, err
	} else if len(list) >= maxRepos {
		return nil, caisson.Errorf(caisson.Exhausted, "the account has %d repositories, which is as many as it may have; remove some", len(list))
	}
	if _, err := s.c.Store.Accounts().Ensure(ctx, r.Account); err != nil {
		return nil, err
	}
	if err := s.c.Store.Repos().Insert(ctx, &r); err != nil {
		return nil, err
	}
	made, err := s.c.begin(ctx, &r)
	if err != nil {
		clean := context.WithoutCancel(ctx)
		return nil, errors.Join(err, s.c.Store.Repos().Delete(clean, in, r.Name), os.RemoveAll(s.c.dir(r.Account, r.Name)))
	}
	s.c.Events.Publish(ctx, r.Account, "repo.added", r.Name, map[string]string{"url": r.URL, "forge": string(r.Forge)})
	return made, nil
}

// begin makes the directories of a new repository and fetches it. Whoever calls it has the lock.
func (c *Core) begin(ctx context.Context, r *caisson.Repo) (*caisson.Repo, error) {
	if err := os.RemoveAll(c.dir(r.Account, r.Name)); err != nil { // what a crash has left
		return nil, err
	}
	if err := c.makeRepo(r.Account, r.Name); err != nil {
		return nil, err
	}
	if err := c.place(ctx, r.Account, r.Name, func(f *os.File) error { return c.Git.Init(ctx, f) }, mirrorDir); err != nil {
		return nil, err
	}
	return c.mirrors.fetch(ctx, r)
}

// checkRepo completes a repository that is to be added, and refuses what makes no sense.
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
		return caisson.Invalidf("authors", "is keep or set")
	}
	for field, v := range map[string]string{"authorName": r.AuthorName, "authorEmail": r.AuthorEmail} {
		if strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c == 0x7f || c == '<' || c == '>' }) || len(v) > 200 || v != strings.TrimSpace(v) {
			return caisson.Invalidf(field, "has characters that no commit may have in the name of its author")
		}
	}
	if len(r.HostKeys) > 20 {
		return caisson.Invalidf("hostKeys", "are at most 20 lines")
	}
	for _, list := range []struct {
		field    string
		patterns []string
	}{{"protected", r.Protected}, {"allow", r.Allow}, {"allowSecrets", r.AllowSecrets}} {
		if len(list.patterns) > 100 {
			return caisson.Invalidf(list.field, "are at most 100 patterns")
		}
		for _, p := range list.patterns {
			if err := check.ValidPattern(p); err != nil {
				return caisson.Invalidf(list.field, "%s", caisson.MessageOf(err))
			}
		}
	}
	return prepare.CheckPullTemplate(r.PullBody)
}

// checkKeys refuses keys that could not be used, before somebody waits for what needs them.
func (c mirrors) checkKeys(ctx context.Context, r *caisson.Repo) error {
	at, err := locate(r)
	if err != nil {
		return err
	}
	if at.url.Scheme == remoteurl.SSH && r.Credential != "" {
		key, err := c.stored(ctx, r, at)
		if err != nil {
			return err
		}
		if _, err := sshkey.Parse("credential "+r.Credential, []byte(key.Reveal())); err != nil {
			return caisson.Invalidf("credential", "%s", caisson.MessageOf(err))
		}
	}
	if r.SigningKey == "" {
		return nil
	}
	key, err := c.Secrets.Secret(ctx, r.Account, r.SigningKey)
	if err != nil {
		return err
	}
	if _, err := prepare.SSHSign([]byte(key.Reveal())); err != nil {
		return caisson.Invalidf("signingKey", "%s", caisson.MessageOf(err))
	}
	return nil
}

// GetRepo implements [caisson.Repos].
func (s *Service) GetRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	return s.c.Store.Repos().Get(ctx, in, name)
}

// ListRepos implements [caisson.Repos].
func (s *Service) ListRepos(ctx context.Context) ([]*caisson.Repo, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	list, _, err := s.c.Store.Repos().List(ctx, in, caisson.Filter{Limit: maxRepos})
	return list, err
}

// ListBranches implements [caisson.Repos].
func (s *Service) ListBranches(ctx context.Context, name string) ([]caisson.Branch, error) {
	r, err := s.GetRepo(ctx, name)
	if err != nil {
		return nil, err
	}
	have, err := s.c.mirrors.mirrored(ctx, r)
	if err != nil {
		return nil, err
	}
	list := []caisson.Branch{}
	for _, ref := range have.Refs {
		if b, ok := strings.CutPrefix(ref.Name, heads); ok {
			list = append(list, caisson.Branch{Name: b, Commit: ref.Commit})
		}
	}
	slices.SortFunc(list, func(a, b caisson.Branch) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// FetchRepo implements [caisson.Repos].
func (s *Service) FetchRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	r, err := s.GetRepo(ctx, name)
	if err != nil {
		return nil, err
	}
	release, err := s.c.lock(ctx, r.Account, r.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.c.mirrors.fetch(ctx, r)
}

// RemoveRepo implements [caisson.Repos].
func (s *Service) RemoveRepo(ctx context.Context, name string) error {
	in, _, err := scope(ctx)
	if err != nil {
		return err
	}
	r, err := s.c.Store.Repos().Get(ctx, in, name)
	if err != nil {
		return err
	}
	release, err := s.c.lock(ctx, r.Account, r.Name)
	if err != nil {
		return err
	}
	defer release()
	waiting, _, err := s.c.Store.Deliveries().List(ctx, in, caisson.DeliveryFilter{
		Repo: name, States: []caisson.DeliveryState{caisson.DeliveryWaiting, caisson.DeliverySending, caisson.DeliveryHeld}, Limit: 1,
	})
	if err != nil {
		return err
	}
	if len(waiting) > 0 {
		return caisson.Errorf(caisson.Conflict, "delivery %s of %s is %s; drop it first with caisson relay drop", waiting[0].ID, name, waiting[0].State)
	}
	if err := s.c.Store.Repos().Delete(ctx, in, name); err != nil {
		return err
	}
	s.c.forget(r.Account, r.Name)
	defer s.c.space.forget(r.Account)
	s.c.Events.Publish(ctx, r.Account, "repo.removed", r.Name, nil)
	return os.RemoveAll(s.c.dir(r.Account, r.Name))
}

// forget drops the grants of a repository.
func (c *Core) forget(account, repo string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.have {
		if g := of[repo]; g != nil && g.Account == account {
			delete(of, repo)
		}
	}
}

// GrantRepo implements [caisson.Repos].
func (s *Service) GrantRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.RepoGrant, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	sb, err := s.c.Store.Sandboxes().Get(ctx, in, sandbox)
	switch {
	case err != nil:
		return nil, err
	case sb.Assigned != nil:
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s serves run %s; say with the run which repository it is to have", sb.ID, sb.Assigned.Run)
	case !path.IsAbs(dir) || path.Clean(dir) == "/":
		return nil, caisson.Invalidf("dir", "is no absolute path of a directory in the sandbox")
	}
	return s.c.Grant(ctx, caisson.RepoAccess{Account: sb.Account, Sandbox: sb.ID, Repo: req, Dir: dir})
}

// DeliverRepo implements [caisson.Repos].
func (s *Service) DeliverRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.Delivery, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	sb, err := s.c.Store.Sandboxes().Get(ctx, in, sandbox)
	switch {
	case err != nil:
		return nil, err
	case sb.Assigned != nil:
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s serves run %s, whose end delivers", sb.ID, sb.Assigned.Run)
	case dir != "" && !path.IsAbs(dir):
		return nil, caisson.Invalidf("dir", "is no absolute path of a directory in the sandbox")
	}
	if err := s.c.CheckRepo(ctx, sb.Account, caisson.RepoRequest{Name: req.Name, Pull: req.Pull}); err != nil {
		return nil, err
	}
	d, err := s.c.Deliver(ctx, caisson.RepoHandover{Sandbox: sb.ID, Repo: req, Dir: dir, Subject: cmp.Or(req.Title, "Changes")})
	if err == nil && d == nil {
		return nil, caisson.Errorf(caisson.NotFound, "there is nothing new in %s of sandbox %s", req.Name, sb.ID)
	}
	return d, err
}
