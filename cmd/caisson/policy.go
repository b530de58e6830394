package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/wire/egress"
)

// policyCmd contains the commands that manage and explain policies.
type policyCmd struct {
	Show    policyShowCmd    `cmd:"" help:"Show the policy of a sandbox, as YAML for policy set."`
	Set     policySetCmd     `cmd:"" help:"Replace the policy of a sandbox."`
	Test    policyTestCmd    `cmd:"" help:"Evaluate a policy for destinations, without a sandbox."`
	Explain policyExplainCmd `cmd:"" help:"Explain why a sandbox may reach a destination or not."`
	Presets policyPresetsCmd `cmd:"" help:"List the presets that rules may use, with their destinations."`
}

// specHelp is the help about the short form of rules, which several commands accept.
const specHelp = "A SPEC is a preset, or TARGET[:PORTS][/udp] with a name, *.name, *, an address or a CIDR: npm, example.com:443, " +
	"*.example.com:80,443, 10.0.0.0/8, [2001:db8::1]:8000-8010, 192.0.2.1:53/udp. Rules of --deny are evaluated first, then those " +
	"of --allow, then those of the file."

// policyShowCmd shows a policy.
type policyShowCmd struct{ sandboxArg }

func (c *policyShowCmd) Help() string {
	return examples("caisson policy show web", "caisson policy show web > policy.yaml")
}

func (c *policyShowCmd) Run(ctx context.Context, a *app, api api) error {
	p, err := api.GetPolicy(ctx, c.Sandbox)
	if err != nil {
		return err
	}
	if a.globals.Output == "table" {
		a.globals.Output = "yaml" // YAML can be edited and then set again
	}
	return a.encode(p)
}

// policySetCmd replaces a policy.
type policySetCmd struct {
	sandboxArg
	File  string   `arg:"" optional:"" help:"YAML file, or - for standard input." complete:"file"`
	Allow []string `help:"Allow a destination or preset; may be repeated." placeholder:"SPEC" sep:"none"`
	Deny  []string `help:"Deny a destination or preset; may be repeated." placeholder:"SPEC" sep:"none"`
}

func (c *policySetCmd) Help() string {
	return "A policy in YAML. The first rule that matches decides; what none matches is denied:\n\n" + strings.Join([]string{
		"    rules:",
		"    - {action: deny, host: telemetry.example.com, note: not ours to send}",
		"    - {action: allow, host: '*.example.com', ports: [443, 8000-8010]}",
		"    - {action: allow, host: 10.1.2.0/24, protocol: udp, ports: [53]}",
		"    - {action: allow, preset: npm}",
	}, "\n") + "\n\n" + specHelp + "\n\n" +
		examples("caisson policy set web policy.yaml", "caisson policy set web --allow npm --allow example.com:443 --deny 10.0.0.0/8")
}

// ProvidePolicy reads the policy from the flags and the file.
func (c *policySetCmd) ProvidePolicy(a *app) (*caisson.Policy, error) {
	p, err := a.policyFrom(c.File, c.Allow, c.Deny)
	if err == nil && p == nil {
		err = usagef("policy set", "give a file, --allow or --deny")
	}
	return p, err
}

func (c *policySetCmd) Run(ctx context.Context, a *app, p *caisson.Policy, api api) error {
	return asDone(a, func(*caisson.Policy) string { return c.Sandbox })(api.SetPolicy(ctx, c.Sandbox, *p))
}

// policyFrom returns the policy that the flags --allow and --deny and a file specify, nil if none is specified. The rules of
// --deny come first, then those of --allow, then those of the file.
func (a *app) policyFrom(file string, allow, deny []string) (*caisson.Policy, error) {
	if file == "" && len(allow)+len(deny) == 0 {
		return nil, nil //nolint:nilnil // a policy that is not specified is not an error
	}
	p := &caisson.Policy{Rules: []caisson.Rule{}}
	for _, flag := range []struct {
		action caisson.Action
		specs  []string
	}{{caisson.Deny, deny}, {caisson.Allow, allow}} {
		for _, spec := range flag.specs {
			r, err := egress.ParseRule(flag.action, spec)
			if err != nil {
				return nil, err
			}
			p.Rules = append(p.Rules, r)
		}
	}
	if file != "" {
		var read caisson.Policy
		if err := a.readYAML(file, &read); err != nil {
			return nil, err
		}
		if _, err := egress.Compile(read); err != nil {
			return nil, withFileName(file, err)
		}
		p.Rules = append(p.Rules, read.Rules...)
	}
	return p, nil
}

// policyTestCmd evaluates a policy.
type policyTestCmd struct {
	File   string   `arg:"" help:"YAML file, or - for standard input." complete:"file"`
	Target []string `arg:"" help:"HOST, HOST:PORT or ADDRESS:PORT, with /udp for udp; the default port is 443."`
	Check  bool     `help:"Exit with 1 if any of them is denied."`
}

func (c *policyTestCmd) Help() string {
	return examples("caisson policy test policy.yaml registry.npmjs.org 10.0.0.1:22 192.0.2.1:53/udp", "caisson policy test --check policy.yaml example.com")
}

// ProvidePolicy reads the policy from the file c.File.
func (c *policyTestCmd) ProvidePolicy(a *app) (*caisson.Policy, error) {
	return a.policyFrom(c.File, nil, nil)
}

func (c *policyTestCmd) Run(ctx context.Context, a *app, p *caisson.Policy, api api) error {
	list, err := api.TestPolicy(ctx, *p, c.Target)
	if err != nil {
		return err
	}
	err = printList(a, list, []column[caisson.Explanation]{
		{name: "TARGET", value: func(e caisson.Explanation) string { return e.Target }},
		{name: "VERDICT", value: func(e caisson.Explanation) string { return decisionText(e.Verdict.Allowed) }, color: decisionColor},
		{name: "REASON", value: func(e caisson.Explanation) string { return e.Verdict.Reason }},
	})
	if err == nil && c.Check && slices.ContainsFunc(list, func(e caisson.Explanation) bool { return !e.Verdict.Allowed }) {
		return processExit(exitCheckFailed)
	}
	return err
}

// decisionText returns the text that is shown for a decision about a destination.
func decisionText(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

// decisionColor returns the colour of the decision about a destination, as the parameter of an SGR sequence for the terminal.
func decisionColor(e caisson.Explanation) string {
	if e.Verdict.Allowed {
		return "32"
	}
	return "31"
}

// policyExplainCmd explains what a sandbox's policy decides about a destination.
type policyExplainCmd struct {
	sandboxArg
	Target string `arg:"" optional:"" help:"HOST, HOST:PORT or ADDRESS:PORT, with /udp for udp; without it, recent refusals are shown."`
	Check  bool   `help:"Exit with 1 if it is denied."`
}

func (c *policyExplainCmd) Help() string {
	return examples("caisson policy explain web registry.npmjs.org", "caisson policy explain web 10.0.0.1:22", "caisson policy explain web")
}

// ProvideValidFlags returns an error for --check without a destination.
func (c *policyExplainCmd) ProvideValidFlags() (validFlags, error) {
	if c.Check && c.Target == "" {
		return validFlags{}, usagef("policy explain", "--check needs a destination")
	}
	return validFlags{}, nil
}

func (c *policyExplainCmd) Run(ctx context.Context, a *app, _ validFlags, api api) error {
	e, err := api.ExplainPolicy(ctx, c.Sandbox, c.Target)
	if err != nil {
		return err
	}
	if err := printExplanation(a, e); err != nil {
		return err
	}
	if c.Check && !e.Verdict.Allowed {
		return processExit(exitCheckFailed)
	}
	return nil
}

// printExplanation prints the decision about a destination, how it was made, a rule that would allow it, and recent refusals.
func printExplanation(a *app, e *caisson.Explanation) error {
	switch {
	case a.globals.Output != "table":
		return a.encode(e)
	case e.Target == "":
		return printDecisions(a, e.Recent)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s is %s: %s\n", safetext.Escape(e.Target), decisionText(e.Verdict.Allowed), safetext.Escape(e.Verdict.Reason))
	if a.globals.Quiet {
		_, err := fmt.Fprint(a.out, b.String())
		return err
	}
	for _, s := range e.Steps {
		fmt.Fprintf(&b, "  %s\n", safetext.Escape(s))
	}
	if e.Suggest != nil {
		where := "at the end"
		if e.Verdict.Rule >= 0 {
			where = "before rule " + strconv.Itoa(e.At)
		}
		fmt.Fprintf(&b, "To allow it, put this rule %s:\n  - %s\n", where, safetext.Escape(ruleLine(*e.Suggest)))
	}
	if len(e.Recent) == 0 {
		_, err := fmt.Fprint(a.out, b.String())
		return err
	}
	b.WriteString("Recent refusals:\n")
	_, err := fmt.Fprint(a.out, b.String())
	return errors.Join(err, printDecisions(a, e.Recent))
}

// printDecisions prints destinations that the wire has recently refused.
func printDecisions(a *app, list []caisson.Decision) error {
	return printList(a, list, []column[caisson.Decision]{
		{name: "DESTINATION", value: destinationText},
		{name: "KIND", value: func(d caisson.Decision) string { return d.Kind }},
		{name: "COUNT", value: func(d caisson.Decision) string { return strconv.FormatInt(d.Count, 10) }},
		{name: "AGE", value: func(d caisson.Decision) string { return age(d.At) }},
		{name: "REASON", value: func(d caisson.Decision) string { return d.Reason }},
	})
}

// destinationText returns the destination of a decision as text: its name and its address, as far as they are known, and the
// protocol.
func destinationText(d caisson.Decision) string {
	parts := slices.DeleteFunc([]string{d.Name, d.Address}, func(s string) bool { return s == "" })
	s := strings.Join(parts, " ")
	if d.Protocol != "" {
		s += "/" + d.Protocol
	}
	return s
}

// ruleLine returns a rule as one line of YAML.
func ruleLine(r caisson.Rule) string {
	what := "host: " + strconv.Quote(r.Host)
	if r.Preset != "" {
		what = "preset: " + r.Preset
	}
	fields := []string{"action: " + string(r.Action), what}
	if len(r.Ports) > 0 {
		fields = append(fields, "ports: ["+joinPorts(r.Ports, ", ")+"]")
	}
	if r.Protocol != "" {
		fields = append(fields, "protocol: "+r.Protocol)
	}
	if r.Note != "" {
		fields = append(fields, "note: "+strconv.Quote(r.Note))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// joinPorts returns ranges of ports as one string, separated by sep.
func joinPorts(ports []caisson.PortRange, sep string) string {
	var list []string
	for _, p := range ports {
		list = append(list, p.String())
	}
	return strings.Join(list, sep)
}

// policyPresetsCmd lists presets.
type policyPresetsCmd struct{}

func (c *policyPresetsCmd) Help() string { return examples("caisson policy presets") }

func (c *policyPresetsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[caisson.Preset]{
		{name: "NAME", value: func(p caisson.Preset) string { return p.Name }},
		{name: "PORTS", value: func(p caisson.Preset) string { return joinPorts(p.Ports, ",") }},
		{name: "HOSTS", value: func(p caisson.Preset) string { return strings.Join(p.Hosts, " ") }},
		{name: "DESCRIPTION", value: func(p caisson.Preset) string { return p.Description }},
	})(api.Presets(ctx))
}
