package main

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// sandboxCmd contains the commands that manage and use sandboxes.
type sandboxCmd struct {
	Create   createCmd       `cmd:"" help:"Create a sandbox."`
	Ls       sandboxLsCmd    `cmd:"" help:"List sandboxes."`
	Show     sandboxShowCmd  `cmd:"" help:"Show everything about a sandbox."`
	Start    startCmd        `cmd:"" help:"Start created or stopped sandboxes."`
	Stop     stopCmd         `cmd:"" help:"Stop every process of sandboxes and keep their files."`
	Pause    pauseCmd        `cmd:"" help:"Move sandboxes to disk, with their memory."`
	Resume   resumeCmd       `cmd:"" help:"Continue paused sandboxes."`
	Suspend  suspendCmd      `cmd:"" help:"Freeze the processes of sandboxes, in memory."`
	Wake     wakeCmd         `cmd:"" help:"Continue suspended sandboxes."`
	Extend   extendCmd       `cmd:"" help:"Set new time limits of sandboxes, counted from now."`
	Snapshot takeSnapshotCmd `cmd:"" help:"Capture a sandbox at one instant."`
	Fork     forkCmd         `cmd:"" help:"Make sandboxes that continue where a sandbox or a snapshot is."`
	Rm       sandboxRmCmd    `cmd:"" help:"End sandboxes and delete everything that belongs to them."`
	Logs     logsCmd         `cmd:"" help:"Show the output of the command of a sandbox."`
	Stats    statsCmd        `cmd:"" help:"Measure running sandboxes."`
	Kill     killCmd         `cmd:"" help:"Send a signal to a process of a sandbox."`
	Cp       cpCmd           `cmd:"" help:"Copy files into or out of a sandbox."`
	Files    filesCmd        `cmd:"" help:"Use the files of a sandbox."`
}

func sandboxID(s *caisson.Sandbox) string { return string(s.ID) }

// nameInList returns the name of a sandbox as lists show it. A sandbox of a pool has no name and is shown as (pool).
func nameInList(name string, pooled bool) string {
	if pooled {
		return "(pool)"
	}
	return name
}

// sandboxColumns returns the columns of a list of sandboxes.
func sandboxColumns() []column[*caisson.Sandbox] {
	return []column[*caisson.Sandbox]{
		{name: "ID", value: sandboxID},
		{name: "NAME", value: func(s *caisson.Sandbox) string { return nameInList(s.Name, s.Pooled) }},
		{
			name:  "STATE",
			value: func(s *caisson.Sandbox) string { return string(s.State) },
			color: func(s *caisson.Sandbox) string { return stateColor(s.State) },
		},
		{name: "TEMPLATE", value: func(s *caisson.Sandbox) string { return s.Template }},
		{name: "AGE", value: func(s *caisson.Sandbox) string { return age(s.CreatedAt) }},
		{name: "PAUSE AFTER", value: func(s *caisson.Sandbox) string { return timeUntil(s.PauseAt) }},
		{name: "REMOVED IN", value: func(s *caisson.Sandbox) string { return timeUntil(s.RemoveAt) }},
	}
}

// sandboxLsCmd lists sandboxes.
type sandboxLsCmd struct {
	State []string `help:"Only those in this state; may be repeated." placeholder:"STATE" complete:"state"`
	Label []string `help:"Only those with this label; may be repeated." short:"l" placeholder:"KEY=VALUE" sep:"none"`
	Name  string   `help:"Only the one of this name." placeholder:"NAME"`
}

func (c *sandboxLsCmd) Help() string {
	return examples("caisson sandbox ls", "caisson sandbox ls --state running -q", "caisson sandbox ls -l team=a -o json")
}

// ProvideFilter returns the filter for sandboxes that the flags specify.
func (c *sandboxLsCmd) ProvideFilter() (f caisson.Filter, err error) {
	f.Name = c.Name
	if f.Labels, err = parseLabels(c.Label); err != nil {
		return f, err
	}
	f.States, err = parseStates(c.State, caisson.States(), "sandboxes")
	return f, err
}

func (c *sandboxLsCmd) Run(ctx context.Context, a *app, f caisson.Filter, api api) error {
	return asList(a, sandboxColumns())(allPages(ctx, f, sandboxID, api.List))
}

// sandboxArg is the argument that identifies a sandbox.
type sandboxArg struct {
	Sandbox string `arg:"" help:"Id or name." complete:"sandbox"`
}

// sandboxesArg is the argument that identifies one or more sandboxes.
type sandboxesArg struct {
	Sandbox []string `arg:"" help:"Ids or names." complete:"sandbox"`
}

// sandboxShowCmd shows one sandbox.
type sandboxShowCmd struct{ sandboxArg }

func (c *sandboxShowCmd) Help() string {
	return examples("caisson sandbox show web", "caisson sandbox show web -o yaml")
}

func (c *sandboxShowCmd) Run(ctx context.Context, a *app, api api) error {
	return asOne(a, sandboxID, sandboxRows)(api.Get(ctx, c.Sandbox))
}

// sandboxRows returns the properties of a sandbox, as pairs of a name and a value.
func sandboxRows(s *caisson.Sandbox) [][2]string {
	return append([][2]string{
		{"ID", string(s.ID)}, {"Name", nameInList(s.Name, s.Pooled)}, {"Account", s.Account},
		{"State", string(s.State) + ", since " + formatTime(s.ChangedAt)}, {"Reason", s.Reason}, {"Template", s.Template}, {"Parent", string(s.Parent)},
		{"Shares randomness", strings.Join(s.SharedRandomness, ", ")}, {"Labels", formatPairs(s.Labels)}, {"Created", formatTime(s.CreatedAt)},
		{"Pauses in", timeUntil(s.PauseAt)}, {"Goes in", timeUntil(s.RemoveAt)}, {"Wakes in", timeUntil(s.WakeAt)},
		{"Auto-pause", autoPause(s.Spec.AutoPause).String()}, {"Exit", textOrEmpty(s.Exit)}, {"Node", s.Node}, {"Build", s.Build},
	}, specRows(s.Spec)...)
}

// specRows returns the properties of the spec of a sandbox, snapshot or template, as pairs of a name and a value.
func specRows(s caisson.Spec) [][2]string {
	r := s.Resources
	rows := [][2]string{
		{"Image", s.Image},
		{"Digest", s.Digest},
		{"Command", quoteCommand(s.Command)},
		{"Environment", formatPairs(s.Env)},
		{"Directory", s.Workdir},
		{"User", s.User},
		{"CPUs", unlessZero(r.CPUs, strconv.FormatFloat(r.CPUs, 'g', -1, 64))},
		{"Memory", unlessZero(r.Memory, r.Memory.String())},
		{"PIDs", formatNumber(r.PIDs)},
		{"Disk", unlessZero(r.Disk, r.Disk.String())},
		{"Open files", formatNumber(r.OpenFiles)},
	}
	for _, m := range s.Mounts {
		mode := "read-only"
		if m.Writable {
			mode = "writable"
		}
		rows = append(rows, [2]string{"Mount", m.Source + " at " + m.Target + ", " + mode})
	}
	if v := s.Volume; v != nil {
		rows = append(rows, [2]string{"Volume", v.Name + " at " + v.Target})
	}
	for i, r := range s.Policy.Rules {
		rows = append(rows, [2]string{"Rule " + strconv.Itoa(i), ruleLine(r)})
	}
	return rows
}

// startCmd starts sandboxes.
type startCmd struct{ sandboxesArg }

func (c *startCmd) Help() string { return examples("caisson sandbox start web") }

func (c *startCmd) Run(ctx context.Context, a *app, api api) error {
	return forEachRef(ctx, a, c.Sandbox, sandboxID, api.Start)
}

// stopCmd stops sandboxes.
type stopCmd struct {
	sandboxesArg
	Grace caisson.Duration `help:"Time between SIGTERM and SIGKILL." default:"10s" placeholder:"DURATION"`
}

func (c *stopCmd) Help() string {
	return examples("caisson sandbox stop web", "caisson sandbox stop --grace 0s web worker")
}

func (c *stopCmd) Run(ctx context.Context, a *app, api api) error {
	return forEachRef(ctx, a, c.Sandbox, sandboxID, func(ctx context.Context, ref string) (*caisson.Sandbox, error) {
		return api.Stop(ctx, ref, time.Duration(c.Grace))
	})
}

// pauseCmd pauses sandboxes.
type pauseCmd struct{ sandboxesArg }

func (c *pauseCmd) Help() string { return examples("caisson sandbox pause web") }

func (c *pauseCmd) Run(ctx context.Context, a *app, api api) error {
	return forEachRef(ctx, a, c.Sandbox, sandboxID, api.Pause)
}

// resumeCmd resumes sandboxes.
type resumeCmd struct{ sandboxesArg }

func (c *resumeCmd) Help() string { return examples("caisson sandbox resume web") }

func (c *resumeCmd) Run(ctx context.Context, a *app, api api) error {
	return forEachRef(ctx, a, c.Sandbox, sandboxID, api.Resume)
}

// suspendCmd suspends sandboxes.
type suspendCmd struct{ sandboxesArg }

func (c *suspendCmd) Help() string { return examples("caisson sandbox suspend web") }

func (c *suspendCmd) Run(ctx context.Context, a *app, api api) error {
	return forEachRef(ctx, a, c.Sandbox, sandboxID, api.Suspend)
}

// wakeCmd wakes sandboxes.
type wakeCmd struct{ sandboxesArg }

func (c *wakeCmd) Help() string { return examples("caisson sandbox wake web") }

func (c *wakeCmd) Run(ctx context.Context, a *app, api api) error {
	return forEachRef(ctx, a, c.Sandbox, sandboxID, api.Wake)
}

// extendCmd changes the time limits of sandboxes, and the time at which they wake.
type extendCmd struct {
	sandboxesArg
	TTL     *caisson.Duration `name:"ttl" help:"Pause after this time, counted from now; 0s means never." placeholder:"DURATION"`
	HardTTL *caisson.Duration `name:"hard-ttl" help:"Remove after this time, counted from now; 0s means never." placeholder:"DURATION"`

	AutoPause *autoPause `help:"What happens after times without use, all or some of suspend=5m,pause=30m,stop=24h, or never." placeholder:"STEPS"`
	WakeAt    *wakeAt    `help:"Wake or resume it then: 2026-01-31T07:00:00Z, or 8h from now; never takes that back." placeholder:"TIME"`
}

func (c *extendCmd) Help() string {
	return examples(
		"caisson sandbox extend --ttl 1h web", "caisson sandbox extend --hard-ttl 7d web", "caisson sandbox extend --wake-at 8h web",
	)
}

// ProvideValidFlags returns an error if no flag for a time was given.
func (c *extendCmd) ProvideValidFlags() (validFlags, error) {
	if c.TTL == nil && c.HardTTL == nil && c.AutoPause == nil && c.WakeAt == nil {
		return validFlags{}, usagef("sandbox extend", "give --ttl, --hard-ttl, --auto-pause or --wake-at")
	}
	return validFlags{}, nil
}

func (c *extendCmd) Run(ctx context.Context, a *app, _ validFlags, api api) error {
	return forEachRef(ctx, a, c.Sandbox, sandboxID, func(ctx context.Context, ref string) (*caisson.Sandbox, error) {
		return api.Extend(ctx, ref, caisson.ExtendRequest{
			TTL: c.TTL, HardTTL: c.HardTTL, AutoPause: c.AutoPause.value(), WakeAt: c.WakeAt.value(),
		})
	})
}

// sandboxRmCmd removes sandboxes.
type sandboxRmCmd struct{ sandboxesArg }

func (c *sandboxRmCmd) Help() string {
	return examples("caisson sandbox rm web", "caisson sandbox rm $(caisson sandbox ls -q --state failed)")
}

func (c *sandboxRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Sandbox, api.Remove)
}

// formatPairs formats a map as KEY=VALUE pairs, sorted by key and separated by blanks.
func formatPairs(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, " ")
}
