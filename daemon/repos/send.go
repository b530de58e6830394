package repos

import (
	"cmp"
	"context"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/keylock"
	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/relay/push"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/worker"
)

// sender executes deliveries: one attempt at a time for each branch of a remote.
type sender struct {
	repos      caisson.Table[caisson.Repo]
	deliveries deliveries     // deliveries in the store
	jobs       worker.Starter // starts worker jobs
	dirs       *directories   // directories of repositories
	grants     *grants        // grants of all repositories
	remotes    *remotes       // connects to remotes and forges
	branches   keylock.Locks  // by account, repository and branch; held during an attempt
}

// send pushes the branch of a delivery, unless it was pushed before, and opens its pull request if one is wanted. The delivery
// that it returns records which of the two was done, even if it also returns an error.
func (s *sender) send(ctx context.Context, d *caisson.Delivery) (*caisson.Delivery, error) {
	release, err := s.branches.Acquire(ctx, d.Account+"/"+d.Repo+"/"+d.Branch)
	if err != nil {
		return d, err
	}
	defer release()
	r, g, err := s.authorize(ctx, d)
	if err != nil {
		return d, err
	}
	out := *d
	if out.Sent != d.Commit {
		if err := s.push(ctx, r, g, d); err != nil {
			return &out, err
		}
		out.Sent = d.Commit
		if _, err := s.deliveries.Update(ctx, caisson.AllAccounts(), d.ID, func(d *caisson.Delivery) error {
			d.Sent = out.Sent
			return nil
		}); err != nil {
			return &out, err
		}
	}
	at, err := locate(r)
	if err != nil {
		return &out, err
	}
	if !d.Pull {
		out.URL = at.branchURL(d.Branch)
		return &out, nil
	}
	pull, err := s.remotes.openPull(ctx, r, at, forge.PullRequest{
		Head: d.Branch, Base: d.Base, Title: d.Title, Body: d.Body + trailer(d), Ready: d.Ready,
	})
	if err != nil {
		return &out, err
	}
	out.URL, out.Number = pull.URL, pull.Number
	return &out, nil
}

// authorize checks whether a delivery may still be sent, and returns its repository and grant as they are now. It is called for
// each attempt, because either may have changed since the delivery was created. A delivery that is no longer allowed is not
// retried. The credential is not read here, but when a connection is made.
func (s *sender) authorize(ctx context.Context, d *caisson.Delivery) (*caisson.Repo, *grant, error) {
	r, err := s.repos.Get(ctx, caisson.In(d.Account), d.Repo)
	if err != nil {
		return nil, nil, err
	}
	g := s.grants.get(d.Sandbox, d.Repo)
	switch {
	case g == nil || g.Account != d.Account:
		return nil, nil, caisson.Errorf(caisson.NotFound, "sandbox %s no longer has a grant for repository %s, and the commits of delivery %s are gone", d.Sandbox, d.Repo, d.ID)
	case g.Branch != d.Branch || g.Base != d.Base || g.From != d.From:
		return nil, nil, caisson.Errorf(caisson.Denied, "sandbox %s now has a grant for branch %s from %s, not for the one of delivery %s; deliver its commits again", d.Sandbox, g.Branch, g.Base, d.ID)
	}
	if why := protectedBranch(r, d.Branch, d.Base); why != "" {
		return nil, nil, caisson.Errorf(caisson.Denied, "%s", why)
	}
	return r, g, nil
}

// trailer returns the end of the text of a pull request, which names the run or the sandbox, and the delivery.
func trailer(d *caisson.Delivery) string {
	return "\n\n---\nCaisson run " + string(cmp.Or(d.Run, d.Sandbox)) + ", delivery " + string(d.ID) + "\n"
}

// expected returns the commit that the remote's branch must be at for d to be pushed, "" if the branch must not exist. It is the
// last commit that the same sandbox has delivered to the branch, or else the commit of the branch in the grant. Returns Conflict
// if a newer delivery was sent to the branch.
func (s *sender) expected(ctx context.Context, d *caisson.Delivery, g *grant) (string, error) {
	last, err := s.deliveries.last(ctx, d.Account, d.Repo, func(o *caisson.Delivery) bool {
		return o.Sent != "" && o.Branch == d.Branch
	})
	switch {
	case err != nil:
		return "", err
	case last != nil && last.ID != d.ID && last.CreatedAt.After(d.CreatedAt):
		return "", caisson.Errorf(caisson.Conflict, "delivery %s, which is newer, has gone to branch %s already", last.ID, d.Branch)
	case last != nil && last.Sandbox == d.Sandbox:
		return last.Sent, nil
	}
	for _, ref := range g.Refs {
		if ref.Name == headsPrefix+d.Branch {
			return ref.Commit, nil
		}
	}
	return "", nil
}

// push pushes the branch of a delivery. If the remote's branch is at another commit than expected, it returns Conflict. A branch
// that was removed from the remote, as after a merge, is created again.
func (s *sender) push(ctx context.Context, r *caisson.Repo, g *grant, d *caisson.Delivery) error {
	expect, err := s.expected(ctx, d, g)
	if err != nil {
		return err
	}
	store, view, err := s.dirs.openStore(g)
	if err != nil {
		return err
	}
	defer store.Close()
	defer view.Close()
	to := func(expect string) error {
		return s.remotes.connect(ctx, r, true, func(link *os.File, t remote.Protocol) error {
			req := push.Request{Transport: t, Commit: d.Commit, Branch: d.Branch, Expect: expect}
			_, err := push.Run(ctx, s.jobs, store, view, link, req)
			return err
		})
	}
	err = to(expect)
	if expect != "" && caisson.KindOf(err) == caisson.Conflict && to("") == nil {
		return nil
	}
	return err
}
