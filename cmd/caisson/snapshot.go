package main

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// takeSnapshotCmd takes a snapshot of a sandbox.
type takeSnapshotCmd struct {
	sandboxArg
	Name      string   `help:"Name of the snapshot, which can be used instead of its id." placeholder:"NAME"`
	Memory    bool     `help:"Include memory; --no-memory captures files only." default:"true" negatable:""`
	FilesOnly bool     `help:"The same as --no-memory."`
	Label     []string `help:"Add a label; may be repeated." short:"l" placeholder:"KEY=VALUE" sep:"none"`
}

func (c *takeSnapshotCmd) Help() string {
	return examples("caisson sandbox snapshot web", "caisson sandbox snapshot --files-only --name before-upgrade web")
}

// ProvideRequest returns the request that the flags specify.
func (c *takeSnapshotCmd) ProvideRequest() (caisson.SnapshotRequest, error) {
	labels, err := parseLabels(c.Label)
	return caisson.SnapshotRequest{Name: c.Name, FilesOnly: c.FilesOnly || !c.Memory, Labels: labels}, err
}

func (c *takeSnapshotCmd) Run(ctx context.Context, a *app, req caisson.SnapshotRequest, api api) error {
	return asDone(a, snapshotID)(api.Snapshot(ctx, c.Sandbox, req))
}

// forkCmd forks a sandbox or a snapshot.
type forkCmd struct {
	Source string   `arg:"" name:"sandbox|snapshot" help:"Id or name of the sandbox or snapshot to fork." complete:"sandbox"`
	Count  int      `help:"How many." short:"n" default:"1" placeholder:"N"`
	Name   string   `help:"Name of the fork; with a count, -1, -2, … are appended." placeholder:"NAME"`
	Label  []string `help:"Add a label to each; may be repeated." short:"l" placeholder:"KEY=VALUE" sep:"none"`
	randomnessFlags
	autoPauseFlags
	grantFlags
}

// randomnessFlags are the flags about random number generators in sandboxes that are restored from a snapshot of memory.
type randomnessFlags struct {
	// KeepRandomness lets getpid return the old values in restored programs, so that OpenSSL's generators are not seeded anew.
	KeepRandomness bool `help:"Leave its programs their process ids. By default OpenSSL's random generators in them seed themselves anew; with this flag forks draw the same keys."`
}

// warnShared prints a warning if programs in forks may generate the same random numbers as the same programs in other forks and
// in the sandbox or snapshot that was forked.
func (a *app) warnShared(forks ...*caisson.Sandbox) {
	names := map[string]bool{}
	for _, f := range forks {
		for _, name := range f.SharedRandomness {
			names[safetext.Escape(name)] = true
		}
	}
	if len(names) > 0 {
		a.infof("caisson: warning: these programs may draw the same keys and identifiers in each fork, and in what was forked: %s; start them again before they make any",
			strings.Join(slices.Sorted(maps.Keys(names)), ", "))
	}
}

func (c *forkCmd) Help() string {
	return "A fork reaches what its origin reaches unless it is given a policy, but calls models only with --model: a budget is not " +
		"multiplied by forking.\n\n" +
		"Programs that go on in a fork with memory see another process id, which makes OpenSSL's random generators seed themselves anew. " +
		"Programs that may draw the same keys all the same are named in a warning. Python's multiprocessing does not join a process that " +
		"was started before the fork, unless --keep-randomness is given.\n\n" +
		examples("caisson sandbox fork web", "caisson sandbox fork -n 5 --name try warm", "caisson sandbox fork --model sonnet --budget 1 agent")
}

// ProvideRequest returns the request that the flags specify.
func (c *forkCmd) ProvideRequest(a *app) (req caisson.ForkRequest, err error) {
	if c.Count < 1 || c.Count > 100 {
		return req, caisson.Invalidf("count", "%d is not between 1 and 100", c.Count)
	}
	req = caisson.ForkRequest{
		Count: c.Count, Name: c.Name, KeepRandomness: c.KeepRandomness, AutoPause: c.AutoPause.value(), FinalSnapshot: c.FinalSnapshot,
	}
	if req.Labels, err = parseLabels(c.Label); err != nil {
		return req, err
	}
	if req.Policy, err = a.policyFrom(c.Policy, c.Allow, c.Deny); err != nil {
		return req, err
	}
	req.Models, err = c.models()
	return req, err
}

func (c *forkCmd) Run(ctx context.Context, a *app, req caisson.ForkRequest, api api) error {
	forks, err := api.Fork(ctx, c.Source, req)
	if err != nil {
		return err
	}
	a.warnShared(forks...)
	if a.globals.Output == "table" {
		a.globals.Quiet = true // print only the ids, one per line, as the command that creates a sandbox does
	}
	return printList(a, forks, sandboxColumns())
}

// snapshotCmd contains the commands that manage snapshots.
type snapshotCmd struct {
	Ls   snapshotLsCmd   `cmd:"" help:"List snapshots."`
	Show snapshotShowCmd `cmd:"" help:"Show everything about a snapshot."`
	Rm   snapshotRmCmd   `cmd:"" help:"Remove snapshots."`
}

func snapshotID(s *caisson.Snapshot) string { return string(s.ID) }

// memoryOrFiles returns what a snapshot contains: "memory", which includes the files, or only "files".
func memoryOrFiles(s *caisson.Snapshot) string {
	if s.Memory {
		return "memory"
	}
	return "files"
}

// labelFilter are the flags that select objects by their labels.
type labelFilter struct {
	Label []string `help:"Only those with this label; may be repeated." short:"l" placeholder:"KEY=VALUE" sep:"none"`
}

// ProvideFilter returns the filter for objects that have all labels of the flags.
func (l *labelFilter) ProvideFilter() (f caisson.Filter, err error) {
	f.Labels, err = parseLabels(l.Label)
	return f, err
}

// snapshotLsCmd lists snapshots.
type snapshotLsCmd struct{ labelFilter }

func (c *snapshotLsCmd) Help() string {
	return examples("caisson snapshot ls", "caisson snapshot ls -o json")
}

func (c *snapshotLsCmd) Run(ctx context.Context, a *app, f caisson.Filter, api api) error {
	return asList(a, []column[*caisson.Snapshot]{
		{name: "ID", value: snapshotID},
		{name: "NAME", value: func(s *caisson.Snapshot) string { return s.Name }},
		{name: "KIND", value: memoryOrFiles},
		{name: "SANDBOX", value: func(s *caisson.Snapshot) string { return string(s.Sandbox) }},
		{name: "TEMPLATE", value: func(s *caisson.Snapshot) string { return s.Template }},
		{name: "SIZE", value: func(s *caisson.Snapshot) string { return s.Size.String() }},
		{name: "AGE", value: func(s *caisson.Snapshot) string { return age(s.CreatedAt) }},
	})(allPages(ctx, f, snapshotID, api.ListSnapshots))
}

// snapshotShowCmd shows one snapshot.
type snapshotShowCmd struct {
	Snapshot string `arg:"" help:"Id or name." complete:"snapshot"`
}

func (c *snapshotShowCmd) Help() string { return examples("caisson snapshot show before-upgrade") }

func (c *snapshotShowCmd) Run(ctx context.Context, a *app, api api) error {
	return asOne(a, snapshotID, snapshotRows)(api.GetSnapshot(ctx, c.Snapshot))
}

// snapshotRows returns the properties of a snapshot, as pairs of a name and a value.
func snapshotRows(s *caisson.Snapshot) [][2]string {
	return append([][2]string{
		{"ID", string(s.ID)}, {"Name", s.Name}, {"Account", s.Account}, {"Sandbox", string(s.Sandbox)}, {"Template", s.Template},
		{"Kind", memoryOrFiles(s)}, {"Size", exactSize(s.Size)}, {"Labels", formatPairs(s.Labels)}, {"Created", formatTime(s.CreatedAt)},
		{"Needs build", s.Depends.Build}, {"Needs CPU", s.Depends.CPU}, {"Needs platform", s.Depends.Platform},
	}, specRows(s.Spec)...)
}

// exactSize formats a size together with its number of bytes.
func exactSize(s caisson.Size) string {
	return s.String() + " (" + strconv.FormatInt(int64(s), 10) + " bytes)"
}

// snapshotRmCmd removes snapshots.
type snapshotRmCmd struct {
	Snapshot []string `arg:"" help:"Ids or names." complete:"snapshot"`
}

func (c *snapshotRmCmd) Help() string { return examples("caisson snapshot rm before-upgrade") }

func (c *snapshotRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Snapshot, api.RemoveSnapshot)
}
