package main

import (
	"bufio"
	"context"
	"fmt"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// syncCmd contains the commands that sync workspaces.
type syncCmd struct {
	Apply syncApplyCmd `cmd:"" default:"withargs" help:"Review changes and apply them (default)."`
	Undo  syncUndoCmd  `cmd:"" help:"Undo a sync."`
	Log   syncLogCmd   `cmd:"" help:"List receipts of syncs, newest first."`
	Show  syncShowCmd  `cmd:"" help:"Show the receipt of a sync."`
}

func (c *syncCmd) Help() string {
	return "Its flags are those of caisson sync apply.\n\n" + c.Apply.Help()
}

// syncApplyCmd applies changes of a workspace to the directory on the host.
type syncApplyCmd struct {
	workspaceArg
	Only   []string `help:"Only what matches: a name anywhere, like '*.go', or a path, like 'src/**' (** stands for any directories); may be repeated." placeholder:"GLOB" sep:"none"`
	DryRun bool     `help:"Only print what --auto would apply."`
	Auto   bool     `help:"Apply what passes every check; the rest waits."`
	Yes    bool     `help:"Apply everything that may be applied, what the checks ask about, too; with --reset, do not ask." short:"y"`
	Reset  bool     `help:"Drop all changes in the workspace instead; its sandbox must not be running."`
	Status bool     `help:"Only print the number of pending changes."`
}

func (c *syncApplyCmd) Help() string {
	return `On a terminal each change, or each part of one, is shown for a decision: y applies it, n leaves it for later, d drops it from the
workspace, a applies it and all later ones that pass every check, q ends the review and applies what was chosen, ? explains. Ctrl-C
ends the review and applies nothing. Without a terminal, use --auto, --yes or --dry-run.

What is chosen is applied as a whole or not at all, exactly as it was shown. The receipt that is printed takes it back.

` + examples("caisson sync", "caisson sync --status rn-abcdefghijklmnop", "caisson sync --dry-run --only 'src/**'", "caisson sync --auto web",
		"caisson sync --reset --yes ws-abcdefghijklmnop", "caisson sync log", "caisson sync undo rc-abcdefghijklmnop")
}

// ProvideValidFlags returns an error for flags that exclude each other, and for a review or a confirmation without a terminal.
func (c *syncApplyCmd) ProvideValidFlags(a *app) (_ validFlags, err error) {
	modes := 0
	for _, is := range []bool{c.DryRun, c.Auto, c.Reset, c.Status} {
		if is {
			modes++
		}
	}
	switch {
	case modes > 1, c.Yes && modes == 1 && !c.Reset:
		err = usagef("sync", "give one of --auto, --yes, --dry-run, --status and --reset")
	case len(c.Only) > 0 && (c.Reset || c.Status):
		err = usagef("sync", "--only cannot be used with --reset or --status")
	case modes == 0 && !c.Yes && !isInteractive(a):
		err = usagef("sync", "a review needs a terminal; give --auto, --yes or --dry-run")
	case c.Reset && !c.Yes && !isInteractive(a):
		err = usagef("sync", "--reset without a terminal needs --yes")
	}
	return validFlags{}, err
}

// isInteractive reports whether standard input and output are terminals, so that a person can be prompted.
func isInteractive(a *app) bool { return isTerminal(a.in) && isTerminal(a.out) }

func (c *syncApplyCmd) Run(ctx context.Context, a *app, _ validFlags, api api) error {
	w, err := c.find(ctx, a, api)
	if err != nil {
		return err
	}
	switch {
	case c.Status:
		return syncStatus(ctx, a, api, w)
	case c.Reset:
		return c.reset(ctx, a, api, w)
	case c.DryRun:
		d, err := api.Diff(ctx, string(w.ID), caisson.DiffRequest{Only: c.Only})
		if err != nil {
			return err
		}
		return printDryRun(a, d)
	}
	// Open the directory before the review: changes are applied to the directory that exists now, even if its path is replaced
	// later.
	dir, err := openWorkspace(a, w)
	if err != nil {
		return err
	}
	defer dir.Close() // closing dir again has no effect
	req := caisson.SyncRequest{Auto: c.Auto, Only: c.Only, Directory: dir}
	if !c.Auto {
		if req, err = c.choose(ctx, a, api, w); err != nil {
			return err
		}
		if len(req.Apply) == 0 && len(req.Drop) == 0 {
			a.infof("caisson: nothing was applied")
			return nil
		}
		req.Directory = dir
	}
	r, err := api.Sync(ctx, string(w.ID), req)
	if err != nil {
		return err
	}
	return printSynced(a, r, len(req.Drop))
}

// choose returns a request that applies or drops the changes that the user selects in a review. With --yes, the request applies
// all changes that may be applied.
func (c *syncApplyCmd) choose(ctx context.Context, a *app, api api, w *caisson.Workspace) (req caisson.SyncRequest, err error) {
	d, err := api.Diff(ctx, string(w.ID), caisson.DiffRequest{Only: c.Only, Patch: !c.Yes, Freeze: true})
	if err != nil {
		return req, err
	}
	warnTruncated(a, d)
	req.Review = d.Review
	if len(d.Changes) == 0 {
		return req, nil
	}
	if c.Yes {
		for i := range d.Changes {
			ch := &d.Changes[i]
			if ch.Verdict != caisson.VerdictPass {
				for _, why := range reasons(ch) {
					a.infof("caisson: %s %s: %s", safetext.Escape(ch.Path), verdictText(ch.Verdict), safetext.Escape(why))
				}
			}
			if isApplicable(ch) {
				req.Apply = append(req.Apply, caisson.Selection{Path: ch.Path, Hash: ch.Hash})
			}
		}
		req.Confirmed = true
		return req, nil
	}
	r := reviewer{in: bufio.NewReader(a.in), out: a.out, color: a.colorEnabled(), raw: a.globals.RawTTY, droppable: sandboxStopped(ctx, api, w), onPanic: a.restoreOnPanic}
	if err := r.review(ctx, d.Changes); err != nil {
		return req, err
	}
	req.Apply, req.Drop, req.Confirmed = r.apply, r.drop, r.needsConsent
	return req, nil
}

// sandboxStopped reports whether the sandbox of the workspace is not running, so that changes of the workspace may be dropped.
func sandboxStopped(ctx context.Context, api api, w *caisson.Workspace) bool {
	if w.State != caisson.WorkspaceLive {
		return true
	}
	sb, err := api.Get(ctx, string(w.Sandbox))
	return err == nil && (sb.State == caisson.Stopped || sb.State == caisson.Created || sb.State == caisson.Failed)
}

// isApplicable reports whether a change may be applied after a person has confirmed it. A change with an unknown verdict may not.
func isApplicable(ch *caisson.Change) bool {
	return ch.Verdict == caisson.VerdictPass || ch.Verdict == caisson.VerdictAsk
}

// printDryRun prints the changes that --auto would apply.
func printDryRun(a *app, d *caisson.Diff) error {
	warnTruncated(a, d)
	if a.globals.Output != "table" {
		return a.encode(d)
	}
	if len(d.Changes) > 0 {
		if err := printStat(a, d); err != nil {
			return err
		}
	}
	pass := countVerdicts(d.Changes)[caisson.VerdictPass]
	a.infof("caisson: --auto would apply %s and leave %d", plural(pass, "change"), len(d.Changes)-pass)
	return nil
}

// syncCounts is the output of sync --status with -o json: the number of changes in a workspace, and how many have each verdict.
type syncCounts struct {
	Workspace *caisson.Workspace `json:"workspace"`
	Changes   int                `json:"changes"`       // number of all changes
	Pass      int                `json:"pass"`          // number of changes with the verdict pass
	Ask       int                `json:"ask"`           // number of changes with the verdict ask: a person must review them
	Clash     int                `json:"clash"`         // number of changes with the verdict conflict
	Denied    int                `json:"denied"`        // number of changes with the verdict deny or an unknown verdict
	Cut       bool               `json:"cut,omitempty"` // there are more changes, which were not counted
}

// syncStatus prints the numbers of pending changes in a workspace.
func syncStatus(ctx context.Context, a *app, api api, w *caisson.Workspace) error {
	d, err := api.Diff(ctx, string(w.ID), caisson.DiffRequest{})
	if err != nil {
		return err
	}
	of := countVerdicts(d.Changes)
	s := syncCounts{
		Workspace: d.Workspace, Changes: len(d.Changes), Cut: d.Cut,
		Pass: of[caisson.VerdictPass], Ask: of[caisson.VerdictAsk], Clash: of[caisson.VerdictConflict],
	}
	s.Denied = s.Changes - s.Pass - s.Ask - s.Clash // includes changes with an unknown verdict
	n := strconv.Itoa
	changes := n(s.Changes)
	if s.Cut {
		changes += " or more"
	}
	return printOne(a, s, n(s.Changes), [][2]string{
		{"Workspace", string(w.ID)}, {"Of", runOrSandbox(w)}, {"Directory", w.Source}, {"State", string(w.State)}, {"Sync", string(w.Mode)},
		{"Synced", formatTime(w.SyncedAt)}, {"Changes", changes}, {"Pass", n(s.Pass)}, {"Need review", n(s.Ask)}, {"Conflict", n(s.Clash)}, {"Denied", n(s.Denied)},
	})
}

// reset drops all changes in the workspace if --yes was given or the user confirms it.
func (c *syncApplyCmd) reset(ctx context.Context, a *app, api api, w *caisson.Workspace) error {
	if !c.Yes {
		d, err := api.Diff(ctx, string(w.ID), caisson.DiffRequest{})
		if err != nil {
			return err
		}
		if len(d.Changes) == 0 {
			a.infof("caisson: no pending changes in %s", w.ID)
			return nil
		}
		r := reviewer{in: bufio.NewReader(a.in), out: a.out, onPanic: a.restoreOnPanic}
		key, err := r.promptKey(ctx, fmt.Sprintf("Drop %s of %s? They are lost.", plural(len(d.Changes), "change"), w.ID), "yn")
		if err != nil {
			return err
		}
		if key != 'y' {
			a.infof("caisson: nothing was dropped")
			return nil
		}
	}
	w, err := api.Reset(ctx, string(w.ID))
	if err != nil {
		return err
	}
	return printDone(a, w, string(w.ID))
}
