package main

import (
	"cmp"
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
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

// ProvidePath parses the argument SANDBOX:DIR.
func (c *repoGrantCmd) ProvidePath() (sandboxPath, error) {
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
	return `What was pushed is sent. With the directory of the clone, what is in there and was not pushed is committed, and goes along. It prints
the id of the delivery, and on standard error what became of it once it was sent or could not be; the exit code is 4 if it is held or
has failed. What the remote cannot take now is tried again later.

` + examples("caisson repo deliver web dev", "caisson repo deliver web dev:/workspace --pr --title 'Fix the login'")
}

// ProvidePath checks the flags for a pull request, and parses the argument SANDBOX[:DIR].
func (c *repoDeliverCmd) ProvidePath() (sandboxPath, error) {
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
	d, err := api.DeliverRepo(ctx, p.sandbox, req, p.path)
	if err == nil {
		d, err = waitFirstTry(ctx, api, d)
	}
	if err != nil {
		return err
	}
	if err := printDone(a, d, deliveryID(d)); err != nil {
		return err
	}
	why := d.Error
	for _, f := range d.Findings {
		why = cmp.Or(why, f.Check+": "+f.Message)
	}
	text := deliveryText(&caisson.RunDelivery{ID: d.ID, Repo: d.Repo, State: d.State, Branch: d.Branch, URL: d.URL, Error: why})
	if d.State == caisson.DeliveryHeld || d.State == caisson.DeliveryFailed {
		return caisson.Errorf(caisson.Conflict, "%s", text)
	}
	a.infof("caisson: %s", safetext.Escape(text))
	return nil
}

const (
	firstTryTime = time.Minute            // maximum time to wait for the first try of a delivery
	firstTryStep = 100 * time.Millisecond // interval at which the state of the delivery is requested
)

// waitFirstTry waits until a delivery has ended or its second try is scheduled, but not longer than firstTryTime, and returns the
// delivery.
func waitFirstTry(ctx context.Context, api api, d *caisson.Delivery) (*caisson.Delivery, error) {
	for end := time.Now().Add(firstTryTime); !d.State.Ended() && d.NextAt.IsZero() && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(firstTryStep):
		}
		var err error
		if d, err = api.GetDelivery(ctx, string(d.ID)); err != nil {
			return nil, err
		}
	}
	return d, nil
}
