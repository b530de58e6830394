package main

import (
	"context"
	"os"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/openclaw"
	"github.com/caisson-dev/caisson/credential"
	"github.com/caisson-dev/caisson/internal/hostcheck"
)

// agentImportCmd imports existing configurations of agents.
type agentImportCmd struct {
	OpenClaw agentImportOpenClawCmd `cmd:"" name:"openclaw" help:"Take over a directory like ~/.openclaw."`
}

// agentImportOpenClawCmd imports an existing OpenClaw configuration as an agent.
type agentImportOpenClawCmd struct {
	Directory string `arg:"" help:"The directory, as ~/.openclaw." complete:"file"`
	ID        string `help:"Id of the new agent." default:"my-openclaw" placeholder:"ID"`
	Replace   bool   `help:"Replace credentials that are there already."`
	DryRun    bool   `help:"Only say what would be taken over."`
}

func (c *agentImportOpenClawCmd) Help() string {
	return "Its agents become personas; its workspaces' instructions and its skills become files of the agent. Secrets go into the credential " +
		"store and nowhere else. What cannot be taken over is listed with the reason." +
		examples("caisson agent import openclaw ~/.openclaw --dry-run", "caisson agent import openclaw ~/.openclaw --id assistant")
}

func (c *agentImportOpenClawCmd) Run(ctx context.Context, a *app) error {
	// Access through a root: symlinks in the directory cannot lead out of it.
	root, err := os.OpenRoot(c.Directory)
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "%s cannot be opened: %v", c.Directory, err)
	}
	defer root.Close()
	in, err := openclaw.Import(root.FS())
	if err != nil {
		return err
	}
	in.Agent.ID = c.ID
	in.Agent.Image, in.Agent.Warm = caisson.HostTemplate, &caisson.Warm{Randomness: "openssl"} // the same as for the built-in agent
	report := in.Report
	if c.DryRun {
		for _, s := range in.Secrets {
			report = append(report, secretCheck(s, "would go into the credential store"))
		}
		return printChecks(a, report)
	}
	api, err := a.connect(ctx)
	if err != nil {
		return err
	}
	there, err := api.ListCredentials(ctx)
	if err != nil {
		return err
	}
	for _, s := range in.Secrets {
		r := secretCheck(s, "is in the credential store")
		exists := slices.ContainsFunc(there, func(k *caisson.Credential) bool { return k.Name == s.Name })
		switch {
		case credential.CheckName(s.Name) != nil || credential.CheckValue(s.Value) != nil:
			r.Status, r.Detail = hostcheck.Warning, "cannot be a credential"
		case exists && !c.Replace:
			r.Status, r.Detail, r.Remedy = hostcheck.Warning, "there is a credential of that name", "--replace replaces its value"
		case exists:
			_, err = api.RotateCredential(ctx, s.Name, s.Value)
		default:
			_, err = api.SetCredential(ctx, s.Name, s.Value)
		}
		if err != nil {
			return err
		}
		report = append(report, r)
	}
	put, err := api.PutAgent(ctx, in.Agent)
	if err != nil {
		return err
	}
	for _, m := range in.Models {
		report = append(report, caisson.AgentCheck{
			Subject: "model " + m.Alias, Status: hostcheck.Warning, Detail: "is what it called",
			Remedy: "give it a provider under models in the configuration, if it has none",
		})
	}
	report = append(report, caisson.AgentCheck{Subject: "agent " + put.ID, Status: hostcheck.OK, Detail: "is there", Remedy: "caisson agent check " + put.ID})
	return printChecks(a, report)
}

func secretCheck(s openclaw.ImportedSecret, what string) caisson.AgentCheck {
	return caisson.AgentCheck{Subject: "secret " + s.Name, Status: hostcheck.OK, Detail: "from " + s.From + " " + what}
}
