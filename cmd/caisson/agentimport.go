package main

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/daemon/credential"
)

// agentImportCmd imports existing configurations of agents.
type agentImportCmd struct {
	OpenClaw agentImportOpenClawCmd `cmd:"" name:"openclaw" help:"Import a directory like ~/.openclaw."`
}

// agentImportOpenClawCmd imports an existing OpenClaw configuration as an agent.
type agentImportOpenClawCmd struct {
	Directory string `arg:"" help:"The directory, for example ~/.openclaw." complete:"file"`
	ID        string `help:"Id of the new agent." default:"my-openclaw" placeholder:"ID"`
	Replace   bool   `help:"Replace credentials that are there already."`
	DryRun    bool   `help:"Only print what would be imported."`
}

func (c *agentImportOpenClawCmd) Help() string {
	return "Its agents become personas; the instructions and skills of its workspaces become files of the agent. Secrets are stored in the credential " +
		"store and nowhere else. Everything that cannot be imported is listed with the reason." +
		examples("caisson agent import openclaw ~/.openclaw --dry-run", "caisson agent import openclaw ~/.openclaw --id assistant")
}

func (c *agentImportOpenClawCmd) Run(ctx context.Context, a *app) error {
	// The directory is accessed through an os.Root, so that symlinks in it cannot lead out of it.
	root, err := os.OpenRoot(c.Directory)
	if err != nil {
		return localError("directory", c.Directory, err)
	}
	defer root.Close()
	in, err := openclaw.Import(root.FS())
	if err != nil {
		return err
	}
	in.Agent.ID = c.ID
	// Image and Randomness, the way in which forks get different random numbers, are those of the built-in agent openclaw.
	in.Agent.Image, in.Agent.Warm = caisson.HostTemplate, &caisson.Warm{Randomness: "openssl"}
	report := in.Report
	if c.DryRun {
		for _, s := range in.Secrets {
			report = append(report, secretCheck(s, "would go into the credential store"))
		}
		report = append(report, modelChecks(in.Models)...)
		report = append(report, agentCheck(&in.Agent, "would be stored", ""))
		return printAgentChecks(a, report)
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
			r.Status, r.Detail = caisson.CheckWarning, "cannot be a credential"
		case exists && !c.Replace:
			r.Status, r.Detail, r.Remedy = caisson.CheckWarning, "there is a credential of that name", "--replace replaces its value"
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
	report = append(report, modelChecks(in.Models)...)
	report = append(report, agentCheck(put, "was stored", "caisson agent check "+put.ID))
	return printAgentChecks(a, report)
}

// modelChecks returns the lines of the import's report about the models of the imported agent.
func modelChecks(list []caisson.Model) (checks []caisson.AgentCheck) {
	for _, m := range list {
		checks = append(checks, caisson.AgentCheck{
			Subject: "model " + m.Alias, Status: caisson.CheckWarning, Detail: "was used by the imported agent",
			Remedy: "add it with a provider under models in the configuration, unless it is there",
		})
	}
	return checks
}

// agentCheck returns the line of the import's report about the agent and its personas. what says how the agent was handled, such
// as "was stored".
func agentCheck(g *caisson.Agent, what, remedy string) caisson.AgentCheck {
	detail := what
	if len(g.Personas) > 0 {
		var ids []string
		for _, p := range g.Personas {
			ids = append(ids, p.ID)
		}
		detail += ", with the personas main, " + strings.Join(ids, ", ")
	}
	return caisson.AgentCheck{Subject: "agent " + g.ID, Status: caisson.CheckOK, Detail: detail, Remedy: remedy}
}

// secretCheck returns the line of the import's report about a secret. what says how the secret was handled, such as "is in the
// credential store".
func secretCheck(s openclaw.ImportedSecret, what string) caisson.AgentCheck {
	return caisson.AgentCheck{Subject: "secret " + s.Name, Status: caisson.CheckOK, Detail: "from " + s.From + " " + what}
}
