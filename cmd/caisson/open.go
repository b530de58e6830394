package main

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/caisson-dev/caisson"
)

// openCmd makes a signed URL and opens it.
type openCmd struct {
	Sandbox   string           `arg:"" optional:"" help:"Id or name of the sandbox." complete:"sandbox"`
	Port      int              `arg:"" optional:"" help:"TCP port inside."`
	Route     string           `help:"Sign a URL of this route, whose auth is signed, instead." placeholder:"ROUTE" complete:"route"`
	Path      string           `help:"Path, with query, that the URL leads to." default:"/" placeholder:"/PATH"`
	TTL       caisson.Duration `name:"ttl" help:"How long the URL can be used." default:"1h" placeholder:"DURATION"`
	NoResume  bool             `help:"A request does not wake or resume the sandbox."`
	NoBrowser bool             `help:"Only print the URL."`
}

func (c *openCmd) Help() string {
	return `Anyone with the URL can use that port of the sandbox until it expires, and nothing else. It is opened in the browser of this machine, if there is
one. The daemon must have ingress.listen in its configuration; see docs/guides/routes.md.

` + examples("caisson open my-sandbox 3000", "caisson open my-sandbox 3000 --ttl 8h --no-browser", "caisson open --route app")
}

// ProvideRequest returns the request for the signed URL that the arguments describe.
func (c *openCmd) ProvideRequest() (req caisson.SignRequest, err error) {
	req = caisson.SignRequest{Route: c.Route, Path: c.Path, TTL: c.TTL}
	switch {
	case c.Route != "" && c.Sandbox != "":
		return req, usagef("open", "name either a sandbox and a port, or --route")
	case c.Route != "":
		return req, nil
	case c.Sandbox == "" || c.Port < 1 || c.Port > 65535:
		return req, usagef("open", "name a sandbox and a port between 1 and 65535, or --route")
	}
	req.Sandbox, req.Port, req.Resume = c.Sandbox, c.Port, !c.NoResume
	return req, nil
}

func (c *openCmd) Run(ctx context.Context, a *app, req caisson.SignRequest, api api) error {
	u, err := api.SignURL(ctx, req)
	if err != nil {
		return err
	}
	if a.globals.Output != "table" {
		return a.encode(u)
	}
	if _, err := fmt.Fprintln(a.out, u.URL); err != nil {
		return err
	}
	if c.NoBrowser {
		return nil
	}
	return openBrowser(ctx, a, u.URL)
}

// openBrowser opens a URL in a browser, if the environment has a display or names a browser.
func openBrowser(ctx context.Context, a *app, url string) error {
	if a.getenv("DISPLAY") == "" && a.getenv("WAYLAND_DISPLAY") == "" && a.getenv("WSL_DISTRO_NAME") == "" && a.getenv("BROWSER") == "" {
		return nil
	}
	for _, name := range []string{"xdg-open", "open", "wslview"} {
		if path, err := exec.LookPath(name); err == nil {
			if err := exec.CommandContext(context.WithoutCancel(ctx), path, url).Start(); err != nil {
				a.infof("The browser cannot be started: %v", err)
			}
			return nil
		}
	}
	return nil
}
