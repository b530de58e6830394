package main

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// repoGrantCmd grants a sandbox access to a repository.
type repoGrantCmd struct {
	repoArg
	Place string `arg:"" name:"sandbox:dir" help:"Running sandbox, and the directory in it for the clone." complete:"place"`
	branchFlags
}

func (c *repoGrantCmd) Help() string {
	return `For sandboxes that you work in yourself: a run gets access with run --repo.

` + examples("caisson repo grant web dev:/workspace", "caisson repo grant web dev:/src/web --base develop --branch fix/login --read main")
}

// ProvidePlace parses SANDBOX:DIR.
func (c *repoGrantCmd) ProvidePlace() (sandboxPath, error) {
	p, ok, err := parseSandboxPath(c.Place)
	if err == nil && !ok {
		err = caisson.Invalidf("sandbox:dir", "%.80q is not SANDBOX:DIR", c.Place)
	}
	return p, err
}

func (c *repoGrantCmd) Run(ctx context.Context, a *app, p sandboxPath, api api) error {
	req := caisson.RepoRequest{Name: c.Name, Base: c.Base, Branch: c.Branch, Read: c.Read}
	g, err := api.GrantRepo(ctx, p.sandbox, req, p.path)
	if err != nil {
		return err
	}
	return printOne(a, g, g.Branch, [][2]string{
		{"Clone", c.Place}, {"Remote", g.URL}, {"Starts from", g.Start}, {"Push to", g.Branch}, {"Commit", g.From},
	})
}

// repoDeliverCmd delivers the commits of a sandbox.
type repoDeliverCmd struct {
	repoArg
	Place string `arg:"" name:"sandbox[:dir]" help:"Sandbox; with the directory of its clone, to include changes that were not pushed." complete:"place"`
	pullFlags
}

func (c *repoDeliverCmd) Help() string {
	return `What was pushed is sent. With the directory of the clone, what is in there and was not pushed is committed, and goes along. It prints the id of the delivery, which relay show says more about.

` + examples("caisson repo deliver web dev", "caisson repo deliver web dev:/workspace --pr --title 'Mend the login'")
}

// ProvidePlace validates the flags and parses SANDBOX[:DIR].
func (c *repoDeliverCmd) ProvidePlace() (sandboxPath, error) {
	if err := c.check("repo deliver"); err != nil {
		return sandboxPath{}, err
	}
	p, ok, err := parseSandboxPath(c.Place)
	if !ok {
		p = sandboxPath{sandbox: c.Place}
	}
	return p, err
}

func (c *repoDeliverCmd) Run(ctx context.Context, a *app, p sandboxPath, api api) error {
	req := caisson.RepoRequest{Name: c.Name, Pull: c.PR, Ready: c.Ready, Title: c.Title}
	return asDone(a, deliveryID)(api.DeliverRepo(ctx, p.sandbox, req, p.path))
}
