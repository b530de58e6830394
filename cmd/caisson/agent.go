package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// agentCmd contains the commands that manage agents.
type agentCmd struct {
	Ls     agentLsCmd     `cmd:"" help:"List agents."`
	Show   agentShowCmd   `cmd:"" help:"Show everything about an agent."`
	Add    agentAddCmd    `cmd:"" aliases:"put" help:"Store an agent from a YAML file."`
	Rm     agentRmCmd     `cmd:"" help:"Remove agents."`
	Build  agentBuildCmd  `cmd:"" help:"Build the root file system of an agent."`
	Warm   agentWarmCmd   `cmd:"" help:"Make an agent's warm snapshot again; its runs are forks of it."`
	Check  agentCheckCmd  `cmd:"" help:"Check the requirements of an agent and its skills."`
	Import agentImportCmd `cmd:"" help:"Import the configuration of an existing agent."`
}

func agentID(a *caisson.Agent) string { return a.ID }

// agentLsCmd lists agents.
type agentLsCmd struct{}

func (c *agentLsCmd) Help() string { return examples("caisson agent ls", "caisson agent ls -o yaml") }

func (c *agentLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[*caisson.Agent]{
		{name: "ID", value: agentID},
		{name: "VERSION", value: func(g *caisson.Agent) string { return g.Version }},
		{name: "DRIVER", value: func(g *caisson.Agent) string { return g.Driver }},
		{name: "READY", value: agentReadiness},
		{name: "DESCRIPTION", value: func(g *caisson.Agent) string { return cmp.Or(g.Description, g.Name) }},
	})(api.ListAgents(ctx))
}

// agentReadiness returns how far an agent is prepared: "warm" if it has a warm snapshot; "cold" with the reason if it has none
// for a known reason; "no set-up" if it uses the root file system of the host unchanged; "built" if its own root file system was
// built; otherwise "".
func agentReadiness(g *caisson.Agent) string {
	switch {
	case g.Status.Snapshot != "":
		return "warm"
	case g.Status.Problem != "":
		return "cold (" + oneLine(g.Status.Problem) + ")"
	case g.Status.Built && g.Template == "" && len(g.Setup) == 0 && g.Driver != caisson.DriverOpenClaw:
		if g.Image != "" && g.Image != caisson.HostTemplate {
			return "" // the image is pulled by the first run
		}
		return "no set-up"
	case g.Status.Built:
		return "built"
	default:
		return ""
	}
}

// agentArg is the argument that identifies an agent.
type agentArg struct {
	Agent string `arg:"" help:"Id." complete:"agent"`
}

// agentShowCmd shows one agent.
type agentShowCmd struct{ agentArg }

func (c *agentShowCmd) Help() string {
	return examples("caisson agent show openclaw", "caisson agent show openclaw -o yaml")
}

func (c *agentShowCmd) Run(ctx context.Context, a *app, api api) error {
	return asOne(a, agentID, agentRows)(api.GetAgent(ctx, c.Agent))
}

// agentRows returns the properties of an agent, as pairs of a name and a value.
func agentRows(g *caisson.Agent) [][2]string {
	list := func(s []string) string { return strings.Join(s, ", ") }
	l := g.Limits
	rows := [][2]string{
		{"ID", g.ID}, {"Name", g.Name}, {"Account", g.Account}, {"Description", g.Description}, {"Version", g.Version},
		{"Template", g.Template}, {"Image", g.Image}, {"Driver", g.Driver}, {"Command", quoteCommand(g.Command)}, {"Service", quoteCommand(g.Service)},
		{"Workspace", g.Workdir}, {"User", g.User}, {"Models", list(g.Models)}, {"APIs", list(g.APIs)}, {"Tools", list(g.Tools.Allow)}, {"Denied tools", list(g.Tools.Deny)},
		{"Skills", list(g.Skills)}, {"Starts", list(g.SubAgents)},
		{"Time", unlessZero(l.Time, l.Time.String())}, {"Memory", unlessZero(l.Memory, l.Memory.String())},
		{"CPUs", unlessZero(l.CPUs, strconv.FormatFloat(l.CPUs, 'g', -1, 64))}, {"Disk", unlessZero(l.Disk, l.Disk.String())},
		{"Tokens", formatCount(l.Tokens)}, {"Calls", formatCount(l.Calls)},
	}
	if l.Cost != nil {
		rows = append(rows, [2]string{"Cost", "$" + l.Cost.String()})
	}
	for _, p := range g.Personas {
		rows = append(rows, [2]string{"Persona", strings.TrimSpace(p.ID + " " + p.Model)})
	}
	for i, s := range g.Setup {
		rows = append(rows, [2]string{"Step " + strconv.Itoa(i+1), quoteCommand(s.Run)})
	}
	for i, command := range g.Status.Setup {
		rows = append(rows, [2]string{"Step " + strconv.Itoa(i+1), quoteCommand(command)})
	}
	for i, r := range g.Policy.Rules {
		rows = append(rows, [2]string{"Rule " + strconv.Itoa(i), ruleLine(r)})
	}
	rows = append(rows, [2]string{"Ready", agentReadiness(g)}, [2]string{"Digest", g.Status.Digest}, [2]string{"Snapshot", string(g.Status.Snapshot)},
		[2]string{"Warmed", formatTime(g.Status.WarmedAt)}, [2]string{"Size", unlessZero(g.Status.Size, g.Status.Size.String())},
		[2]string{"Pool", formatNumber(g.Status.Pool)})
	return rows
}

// agentAddCmd stores an agent.
type agentAddCmd struct {
	File string `arg:"" help:"YAML file, or - for standard input." complete:"file"`
}

func (c *agentAddCmd) Help() string {
	return "An agent in YAML:\n\n" + strings.Join([]string{
		"    id: mine",
		"    name: My agent",
		"    image: debian:12",
		"    setup:",
		"    - run: [sh, -c, 'apt-get update && apt-get install -y my-agent']",
		"    buildPolicy: {rules: [{action: allow, preset: debian}]}",
		"    driver: exec",
		"    command: [my-agent, --model, '{model}', '{prompt}']",
		"    limits: {time: 5m, cost: 0.50}",
	}, "\n") + "\n\n" + examples("caisson agent add mine.yaml", "caisson agent build mine", "caisson run mine 'say hello'")
}

// ProvideAgent reads the agent from c.File, and returns Invalid if its id, name or driver is missing.
func (c *agentAddCmd) ProvideAgent(a *app) (g caisson.Agent, err error) {
	if err := a.readYAML(c.File, &g); err != nil {
		return g, err
	}
	for _, required := range [][2]string{{"id", g.ID}, {"name", g.Name}, {"driver", g.Driver}} {
		if required[1] == "" {
			return g, caisson.Invalidf(required[0], "is missing, in %s; caisson agent add --help has an example", c.File)
		}
	}
	return g, nil
}

func (c *agentAddCmd) Run(ctx context.Context, a *app, g caisson.Agent, api api) error {
	put, err := api.PutAgent(ctx, g)
	if err := asDone(a, agentID)(put, err); err != nil || len(put.SubAgents) == 0 {
		return err
	}
	all, err := api.ListAgents(ctx)
	for _, id := range put.SubAgents {
		if err == nil && id != "*" && !slices.ContainsFunc(all, func(o *caisson.Agent) bool { return o.ID == id }) {
			a.infof("caisson: subAgents names %q, and there is no such agent; caisson agent ls lists the agents", id)
		}
	}
	return err
}

// agentRmCmd removes agents.
type agentRmCmd struct {
	Agent []string `arg:"" help:"Ids." complete:"agent"`
}

func (c *agentRmCmd) Help() string { return examples("caisson agent rm mine") }

func (c *agentRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Agent, api.RemoveAgent)
}

// agentBuildCmd builds the root file system of an agent.
type agentBuildCmd struct{ agentArg }

func (c *agentBuildCmd) Help() string { return examples("caisson agent build openclaw") }

func (c *agentBuildCmd) Run(ctx context.Context, a *app, api api) error {
	p := newProgress(a)
	g, err := api.BuildAgent(ctx, c.Agent, p.update)
	p.end()
	return asDone(a, agentID)(g, err)
}

// agentWarmCmd makes the warm snapshot of an agent.
type agentWarmCmd struct {
	agentArg
	Pool *int `help:"Keep so many forks ready, for runs without a directory; makes a snapshot only if there is none." placeholder:"N"`
}

func (c *agentWarmCmd) Help() string {
	return examples("caisson agent warm openclaw", "caisson agent warm openclaw --pool 2")
}

func (c *agentWarmCmd) Run(ctx context.Context, a *app, api api) error {
	var g *caisson.Agent
	var err error
	if c.Pool != nil {
		g, err = api.GetAgent(ctx, c.Agent)
	}
	if err == nil && (g == nil || g.Status.Snapshot == "") {
		p := newProgress(a)
		g, err = api.WarmAgent(ctx, c.Agent, p.update)
		p.end()
	}
	if err == nil && c.Pool != nil {
		g, err = api.SetAgentPool(ctx, c.Agent, *c.Pool)
	}
	if err == nil && c.Pool != nil && a.overSocket() {
		var st *caisson.DaemonStatus
		if st, err = api.Status(ctx); err == nil {
			if n, limited := maxPoolForks(g.Status.Size, st.Settings.InForce); limited && n < *c.Pool {
				a.infof("caisson: about %d of %d forks fit into limits.poolMemory of the configuration; the others are not made", n, *c.Pool)
			}
		}
	}
	return asDone(a, agentID)(g, err)
}

// maxPoolForks returns approximately how many forks of a snapshot of this size fit into limits.poolMemory of inForce, the
// settings of a daemon. It returns false if the size or the limit is unknown or 0.
func maxPoolForks(size caisson.Size, inForce map[string]any) (int, bool) {
	limits, _ := inForce["limits"].(map[string]any)
	most, _ := limits["poolMemory"].(float64)
	if size <= 0 || most <= 0 {
		return 0, false
	}
	return int(most / float64(size)), true
}

// agentCheckCmd checks whether the requirements of an agent and its skills are met.
type agentCheckCmd struct{ agentArg }

func (c *agentCheckCmd) Help() string {
	return "It builds nothing: programs and skills are checked if the agent is built. A table has several skills in one line; the other formats have each. " +
		"The exit code is 1 if something is missing.\n\n" + examples("caisson agent check openclaw", "caisson agent check openclaw -o json")
}

func (c *agentCheckCmd) Run(ctx context.Context, a *app, api api) error {
	list, err := api.CheckAgent(ctx, c.Agent)
	if err != nil {
		return err
	}
	shown := list
	if a.globals.Output == "table" {
		shown = groupSkills(list, c.Agent)
	}
	err = printAgentChecks(a, shown)
	if err == nil && slices.ContainsFunc(list, func(k caisson.AgentCheck) bool { return k.Status == caisson.CheckFailed }) {
		return processExit(exitCheckFailed)
	}
	return err
}

// maxSkillRows is the maximum number of skills with missing requirements that have rows of their own in a table.
const maxSkillRows = 5

// groupSkills combines the checks of skills in list, because an agent can have a hundred skills. The checks of skills that passed
// become one check. The checks that did not pass become one check if they belong to more than maxSkillRows skills; otherwise each
// remains. agent is the id of the agent.
func groupSkills(list []caisson.AgentCheck, agent string) (grouped []caisson.AgentCheck) {
	var met, unmet []string
	var rows []caisson.AgentCheck
	status := caisson.CheckWarning
	for _, k := range list {
		name, isSkill := strings.CutPrefix(k.Subject, "skill ")
		switch {
		case !isSkill:
			grouped = append(grouped, k)
		case k.Status == caisson.CheckOK:
			met = append(met, name)
		default:
			rows = append(rows, k)
			if !slices.Contains(unmet, name) {
				unmet = append(unmet, name)
			}
			if k.Status == caisson.CheckFailed {
				status = caisson.CheckFailed
			}
		}
	}
	if len(met) > 0 {
		grouped = append(grouped, caisson.AgentCheck{
			Subject: "skills", Status: caisson.CheckOK, Detail: fmt.Sprintf("%d lack nothing: %s", len(met), strings.Join(met, ", ")),
		})
	}
	if len(unmet) > maxSkillRows {
		rows = []caisson.AgentCheck{{
			Subject: "skills", Status: status, Detail: fmt.Sprintf("%d lack something: %s", len(unmet), strings.Join(unmet, ", ")),
			Remedy: "see what each lacks: caisson agent check " + agent + " -o yaml",
		}}
	}
	return append(grouped, rows...)
}

// printAgentChecks prints the results of checks of an agent.
func printAgentChecks(a *app, list []caisson.AgentCheck) error {
	return printChecks(a, "SUBJECT", list, func(k caisson.AgentCheck) caisson.Check {
		return caisson.Check{Name: k.Subject, Status: k.Status, Detail: k.Detail, Remedy: k.Remedy}
	})
}

// checksWidth is the width in characters of a table of checks if standard output is not a terminal.
const checksWidth = 80

// checkColors are the colours of the statuses of checks, as parameters of SGR sequences for the terminal.
var checkColors = map[string]string{caisson.CheckOK: "32", caisson.CheckWarning: "33", caisson.CheckFailed: "31"}

// printChecks prints the results of checks, each followed by lines with its remedy. check converts an item of list to a check.
func printChecks[T any](a *app, heading string, list []T, check func(T) caisson.Check) error {
	return printListIn(a, cmp.Or(a.tableWidth(), checksWidth), list, []column[T]{
		{name: heading, value: func(c T) string { return check(c).Name }},
		{
			name:  "STATUS",
			value: func(c T) string { return check(c).Status },
			color: func(c T) string { return cmp.Or(checkColors[check(c).Status], plainColor) },
		},
		{name: "DETAIL", wrap: true, value: func(c T) string {
			if k := check(c); k.Remedy != "" {
				return k.Detail + "\nTo do: " + k.Remedy
			}
			return check(c).Detail
		}},
	})
}
