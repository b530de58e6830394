package repos

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/keylock"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// A grant says which branches of a repository one sandbox may read, and to which branch it may push.
type grant struct {
	Account string     `json:"account"`
	Repo    string     `json:"repo"` // name of the repository
	Sandbox caisson.ID `json:"sandbox"`
	Run     caisson.ID `json:"run,omitempty"`     // current run of the sandbox; empty if the grant is not for a run
	Session caisson.ID `json:"session,omitempty"` // session of the run; empty for none
	Base    string     `json:"base"`              // short name of the branch that work starts from
	Branch  string     `json:"branch"`            // short name of the branch that the sandbox may push to
	From    string     `json:"from"`              // commit of the base branch that work started from
	View    string     `json:"view"`              // name of the view: a hash of Refs
	Refs    []git.Ref  `json:"refs"`              // refs that the sandbox may read
	// Pushed has the branches that the current run has pushed, the latest last.
	Pushed []pushed `json:"pushed,omitempty"`
	// Cloning is true until the repository has been cloned into the sandbox. When the daemon starts, it removes grants for which
	// Cloning is still true.
	Cloning bool `json:"cloning,omitempty"`
}

// pushed is a branch that a sandbox has pushed, with the commit that was pushed last.
type pushed struct {
	Name   string `json:"name"`   // full name of the branch
	Commit string `json:"commit"` // commit that was pushed last
}

// grants has all grants, in memory and on disk.
type grants struct {
	dirs    *directories  // directories of repositories
	pushes  keylock.Locks // by sandbox and repository; held while a push is received and recorded
	changes sync.Mutex    // held while a stored grant is changed or removed; taken before mu

	mu   sync.Mutex
	byID map[caisson.ID]map[string]*grant // by sandbox and repository; guarded by mu. Grants in it are replaced, not modified
}

// get returns the grant of a repository to a sandbox, nil if there is none. The caller must not modify the grant.
func (s *grants) get(sandbox caisson.ID, repo string) *grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[sandbox][repo]
}

// list returns the grants for which match returns true.
func (s *grants) list(match func(*grant) bool) (list []*grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.byID {
		for _, g := range of {
			if match(g) {
				list = append(list, g)
			}
		}
	}
	return list
}

// change replaces the current grant of g's sandbox and repository by a copy that f has changed, and returns the copy; nil if the
// grant has been removed. The current grant may differ from g: a push of one run may be recorded while the next run begins.
func (s *grants) change(g *grant, f func(*grant)) (*grant, error) {
	s.changes.Lock()
	defer s.changes.Unlock()
	current := s.get(g.Sandbox, g.Repo)
	if current == nil {
		return nil, nil
	}
	next := *current
	next.Pushed = slices.Clone(current.Pushed)
	f(&next)
	return &next, s.store(&next)
}

// store writes a grant to disk, and then adds it in memory.
func (s *grants) store(g *grant) error {
	if err := durable.WriteJSON(s.dirs.path(g.Account, g.Repo, storesDir, string(g.Sandbox)+".json"), g); err != nil {
		return err
	}
	s.add(g)
	return nil
}

// add adds a grant in memory. The grant must be on disk already.
func (s *grants) add(g *grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[g.Sandbox] == nil {
		s.byID[g.Sandbox] = map[string]*grant{}
	}
	s.byID[g.Sandbox][g.Repo] = g
}

// drop removes a grant from memory. The caller must hold s.changes, so that a push that is being recorded does not add it again.
func (s *grants) drop(g *grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID[g.Sandbox], g.Repo)
	if len(s.byID[g.Sandbox]) == 0 {
		delete(s.byID, g.Sandbox)
	}
}

// remove removes a grant and its store. It is idempotent: keeper.tidy and keeper.leave may both have found the grant before
// either of them had the repository's lock.
func (s *grants) remove(g *grant) error {
	store := s.dirs.path(g.Account, g.Repo, storesDir, string(g.Sandbox))
	s.changes.Lock()
	s.drop(g)
	err := os.RemoveAll(store + ".json")
	s.changes.Unlock()
	return errors.Join(err, os.RemoveAll(store))
}

// removeRepo removes the grants of a repository from memory. The caller removes the repository's directories.
func (s *grants) removeRepo(account, repo string) {
	s.changes.Lock()
	defer s.changes.Unlock()
	for _, g := range s.list(func(g *grant) bool { return g.Account == account && g.Repo == repo }) {
		s.drop(g)
	}
}

// lockPushes waits until the pushes of a grant that are under way are recorded, and prevents new ones until release is called.
// The lock is needed because git in the sandbox receives the answer to a push before the push is recorded.
func (s *grants) lockPushes(ctx context.Context, g *grant) (release func(), err error) {
	return s.pushes.Acquire(ctx, string(g.Sandbox)+"/"+g.Repo)
}

// afterPushes waits until the pushes of a grant that are under way are recorded, and returns the current grant. Returns NotFound
// if the grant has been removed.
func (s *grants) afterPushes(ctx context.Context, g *grant) (*grant, error) {
	release, err := s.lockPushes(ctx, g)
	if err != nil {
		return nil, err
	}
	defer release()
	if current := s.get(g.Sandbox, g.Repo); current != nil {
		return current, nil
	}
	return nil, errRemoved(g)
}

// errRemoved is the error for a grant whose repository was removed.
func errRemoved(g *grant) error {
	return caisson.Errorf(caisson.NotFound, "repository %s was removed", g.Repo)
}

// readGrant reads a stored grant.
func readGrant(path string) (*grant, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var g grant
	return &g, json.Unmarshal(data, &g)
}
