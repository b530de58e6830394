package main

import (
	"cmp"
	"context"

	"github.com/caisson-dev/caisson"
)

// cloneDir is the default directory of the clone in a new sandbox.
const cloneDir = "/workspace"

// cloneFlags are the flags that give a new sandbox a clone of a repository as its workspace.
type cloneFlags struct {
	Repo string `help:"Clone this repository into the sandbox, by default to /workspace, and allow it to push; repo deliver sends its commits. See repo ls." group:"repo" placeholder:"NAME[:DIR]" complete:"repo"`
	branchFlags
}

// A clone is a repository to be cloned in a new sandbox.
type clone struct {
	repo caisson.RepoRequest // the repository, and the branches to which the sandbox gets access
	dir  string              // absolute path of the clone in the sandbox
}

// clone returns the clone that the flags specify; nil if they specify no repository.
func (f *cloneFlags) clone(n *sandboxFlags, noStart bool) (*clone, error) {
	const command = "sandbox create"
	switch {
	case f.Repo == "" && (f.Base != "" || f.Branch != "" || len(f.Read) > 0):
		return nil, usagef(command, "--base, --branch and --read need --repo")
	case f.Repo == "":
		return nil, nil
	case n.Workspace != "" || n.Volume != "":
		return nil, usagef(command, "--repo, --volume and --workspace exclude each other: a sandbox has one workspace")
	case noStart:
		return nil, usagef(command, "--repo clones in the running sandbox; leave out --no-start")
	}
	name, dir, err := parseNameTarget("repo", f.Repo)
	if err != nil {
		return nil, err
	}
	return &clone{caisson.RepoRequest{Name: name, Base: f.Base, Branch: f.Branch, Read: f.Read}, cmp.Or(dir, cloneDir)}, nil
}

// cloneInto grants the new sandbox s access to the repository and clones it there. If that fails, s is removed.
func (c *clone) cloneInto(ctx context.Context, a *app, api api, s *caisson.Sandbox) error {
	g, err := api.GrantRepo(ctx, string(s.ID), c.repo, c.dir)
	if err != nil {
		removeCreated(ctx, a, api, s.ID)
		return err
	}
	ref := cmp.Or(s.Name, string(s.ID))
	a.infof("caisson: %s in it is a clone of %s from %s; commits go to %s; send them with: caisson repo deliver %s %s",
		c.dir, c.repo.Name, g.Start, g.Branch, c.repo.Name, quoteCommand([]string{ref + ":" + c.dir}))
	return nil
}
