package main

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// repoGrantCmd lets a sandbox into a repository.
type repoGrantCmd struct {
	repoArg
	Place string `arg:"" name:"sandbox:dir" help:"Running sandbox, and the directory in it that is to be the clone." complete:"place"`
	branchFlags
}

func (c *repoGrantCmd) Help() string {
	return `For sandboxes that you work in yourself: a run is let in by run --repo.

` + examples("caisson repo grant web dev:/workspace", "caisson repo grant web dev:/src/web --base develop --branch fix/login --read main")
}

func (c *repoGrantCmd) Run(ctx context.Context, a *app) error {
	p, ok, err := parsePlace(c.Place)
	if err != nil {
		return err
	}
	if !ok {
		return caisson.Invalidf("sandbox:dir", "%.80q is not SANDBOX:DIR", c.Place)
	}
	api, err := a.connect(ctx)
	if err != nil {
		return err
	}
	req := caisson.RepoRequest{Name: c.Name, Base: c.Base, Branch: c.Branch, Read: c.Read}
	g, err := api.GrantRepo(ctx, p.sandbox, req, p.path)
	if err != nil {
		return err
	}
	return printOne(a, g, g.Branch, [][2]string{
		{"Clone", c.Place}, {"Remote", g.URL}, {"Begins from", g.Start}, {"Push to", g.Branch}, {"Commit", g.From},
	})
}

// repoDeliverCmd delivers what a sandbox has done.
type repoDeliverCmd struct {
	repoArg
	Place string `arg:"" name:"sandbox[:dir]" help:"Sandbox; with the directory of its clone, for what was not pushed." complete:"place"`
	pullFlags
}

func (c *repoDeliverCmd) Help() string {
	return `What was pushed is sent. With the directory of the clone, what is in there and was not pushed is committed, and goes along. It prints the id of the delivery, which relay show says more about.

` + examples("caisson repo deliver web dev", "caisson repo deliver web dev:/workspace --pr --title 'Mend the login'")
}

func (c *repoDeliverCmd) Run(ctx context.Context, a *app) error {
	if err := c.check("repo deliver"); err != nil {
		return err
	}
	p, ok, err := parsePlace(c.Place)
	if err != nil {
		return err
	}
	if !ok {
		p = place{sandbox: c.Place}
	}
	api, err := a.connect(ctx)
	if err != nil {
		return err
	}
	d, err := api.DeliverRepo(ctx, p.sandbox, caisson.RepoRequest{Name: c.Name, Pull: c.PR, Ready: c.Ready, Title: c.Title}, p.path)
	if err != nil {
		return err
	}
	return printDone(a, d, string(d.ID))
}
