package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// workspaceCmd contains the commands that manage workspaces.
type workspaceCmd struct {
	Ls   workspaceLsCmd   `cmd:"" help:"List workspaces, newest first."`
	Show workspaceShowCmd `cmd:"" help:"Show everything about a workspace, with the files that are hidden in it."`
	Rm   workspaceRmCmd   `cmd:"" help:"Remove workspaces of removed sandboxes, with all changes in them."`
}

// workspaceStates are the states of workspaces, live, resting and settled, in the order in which a workspace usually has them.
var workspaceStates = []caisson.WorkspaceState{caisson.WorkspaceLive, caisson.WorkspaceDetached, caisson.WorkspaceSettled}

func workspaceID(w *caisson.Workspace) string { return string(w.ID) }

// workspaceLsCmd lists workspaces.
type workspaceLsCmd struct {
	State   []string `help:"Only in this state: live (its sandbox is there), resting (its sandbox is gone, changes are pending), settled (all is applied or dropped); may be repeated." placeholder:"STATE" complete:"workspacestate"`
	OfRun   string   `name:"run" help:"Only of this run." placeholder:"RUN" complete:"run"`
	Sandbox string   `help:"Only of the sandbox with this id." placeholder:"ID" complete:"sandbox"`
	Count   int      `help:"How many." short:"n" default:"20" placeholder:"N"`
}

func (c *workspaceLsCmd) Help() string {
	return examples("caisson workspace ls", "caisson workspace ls --state resting", "caisson workspace ls --run rn-abcdefghijklmnop -o json")
}

// ProvideFilter returns the filter for workspaces that the flags specify.
func (c *workspaceLsCmd) ProvideFilter() (f caisson.WorkspaceFilter, err error) {
	if c.Count < 1 {
		return f, usagef("workspace ls", "--count must be at least 1")
	}
	if f.States, err = parseStates(c.State, workspaceStates, "workspaces"); err != nil {
		return f, err
	}
	if f.Run, err = parseOptional(parseRun, c.OfRun); err != nil {
		return f, err
	}
	f.Sandbox, err = parseOptional(parseSandboxID, c.Sandbox)
	return f, err
}

func (c *workspaceLsCmd) Run(ctx context.Context, a *app, f caisson.WorkspaceFilter, api api) error {
	return asList(a, []column[*caisson.Workspace]{
		{name: "ID", value: workspaceID},
		{name: "STATE", value: func(w *caisson.Workspace) string { return string(w.State) }, color: func(w *caisson.Workspace) string {
			switch w.State {
			case caisson.WorkspaceLive:
				return "32"
			case caisson.WorkspaceDetached:
				return "33"
			}
			return plainColor
		}},
		{name: "KIND", value: func(w *caisson.Workspace) string { return string(w.Kind) }},
		{name: "SYNC", value: func(w *caisson.Workspace) string { return string(w.Mode) }},
		{name: "CHANGES", value: func(w *caisson.Workspace) string { return strconv.Itoa(w.Changes) }},
		{name: "AGE", value: func(w *caisson.Workspace) string { return age(w.CreatedAt) }},
		{name: "OF", value: runOrSandbox},
		{name: "DIRECTORY", value: func(w *caisson.Workspace) string { return w.Source }},
	})(collectPages(c.Count, workspaceID, func(before string, limit int) ([]*caisson.Workspace, bool, error) {
		f.Before, f.Limit = caisson.ID(before), limit
		return api.ListWorkspaces(ctx, f)
	}))
}

// runOrSandbox returns the id of the run for which a workspace was created, or else the id of its sandbox.
func runOrSandbox(w *caisson.Workspace) string {
	return string(cmp.Or(w.Run, w.Sandbox))
}

// workspaceShowCmd shows one workspace.
type workspaceShowCmd struct{ workspaceArg }

// workspaceArg is the argument that identifies a workspace.
type workspaceArg struct {
	Ref string `arg:"" optional:"" name:"run|sandbox|workspace" help:"Id of the workspace, or of its run or sandbox; default the newest workspace of this directory or of one above it." complete:"workspace"`
}

func (c *workspaceShowCmd) Help() string {
	return examples("caisson workspace show", "caisson workspace show rn-abcdefghijklmnop", "caisson workspace show ws-abcdefghijklmnop -o json")
}

func (c *workspaceShowCmd) Run(ctx context.Context, a *app, api api) error {
	return asOne(a, workspaceID, workspaceRows)(c.find(ctx, a, api))
}

// workspaceRows returns the properties of a workspace, as pairs of a name and a value.
func workspaceRows(w *caisson.Workspace) [][2]string {
	rows := [][2]string{
		{"ID", string(w.ID)}, {"State", string(w.State)}, {"Directory", w.Source}, {"Target", w.Target}, {"Kind", string(w.Kind)},
		{"Sync", string(w.Mode)}, {"Run", string(w.Run)}, {"Agent", w.Agent}, {"Sandbox", string(w.Sandbox)},
		{"Owner", strconv.FormatUint(uint64(w.UID), 10) + ":" + strconv.FormatUint(uint64(w.GID), 10)},
		{"Entries", strconv.FormatInt(w.Files, 10)}, {"Changes", strconv.Itoa(w.Changes)}, {"Created", formatTime(w.CreatedAt)},
		{"Ended", formatTime(w.EndedAt)}, {"Synced", formatTime(w.SyncedAt)}, {"Warning", w.Warning},
	}
	rows = append(rows, hiddenRows(w.Hidden, w.HiddenCount)...)
	for _, s := range w.Suspects {
		rows = append(rows, [2]string{"May contain secrets", s.Path + ": " + s.Why})
	}
	if more := w.SuspectCount - len(w.Suspects); more > 0 {
		rows = append(rows, [2]string{"May contain secrets", "and " + strconv.Itoa(more) + " more"})
	}
	return append(rows, [2]string{"Searched", searchSummary(w)})
}

// searchSummary returns how many files of w were searched for secrets, as text; "" if the sandbox writes in the host directory.
func searchSummary(w *caisson.Workspace) string {
	switch {
	case w.Kind == caisson.WorkspaceDirect:
		return ""
	case w.Search == nil:
		return "not yet"
	}
	s := strconv.FormatInt(w.Search.Searched, 10) + " files"
	if n := w.Search.Unsearched; n > 0 {
		s += "; " + strconv.FormatInt(n, 10) + " others were not searched: too large, too many, unreadable, or in .git or node_modules"
	}
	return s
}

// warnSuspects prints a warning if the search for secrets, which may still be in progress, has found something in files of the
// workspace of the new sandbox sb.
func warnSuspects(ctx context.Context, a *app, api api, sb *caisson.Sandbox) {
	if sb.Spec.Workspace == "" || a.globals.Quiet {
		return
	}
	w, err := api.GetWorkspace(ctx, string(sb.Spec.Workspace))
	if err != nil || w.SuspectCount == 0 {
		return // an error is ignored, because the sandbox has been created
	}
	var names []string
	for _, s := range w.Suspects {
		names = append(names, s.Path)
	}
	a.infof("caisson: the sandbox sees files that may contain secrets: %s; see caisson workspace show %s", hiddenFiles(names, w.SuspectCount), w.ID)
}

// hiddenRows returns the names of files that are hidden from a sandbox, as pairs of the word Hidden and a name. count is the
// number of all hidden files, which may be more than hidden contains.
func hiddenRows(hidden []string, count int) (rows [][2]string) {
	for _, p := range hidden {
		rows = append(rows, [2]string{"Hidden", p})
	}
	if more := count - len(hidden); more > 0 {
		rows = append(rows, [2]string{"Hidden", "and " + strconv.Itoa(more) + " more"})
	}
	return rows
}

// hiddenFiles returns a text with the names of the first five of hidden and the number of the other hidden files. count is the
// number of all hidden files.
func hiddenFiles(hidden []string, count int) string {
	shown := hidden[:min(len(hidden), 5)]
	s := quoteCommand(shown)
	if more := count - len(shown); more > 0 {
		s = strings.TrimPrefix(s+" and "+strconv.Itoa(more)+" more", " ")
	}
	return safetext.Escape(s)
}

// find returns the workspace that the argument identifies; without an argument, the one for the current directory.
func (c *workspaceArg) find(ctx context.Context, a *app, api api) (*caisson.Workspace, error) {
	if c.Ref == "" {
		w, err := workspaceHere(ctx, a, api)
		if err == nil {
			a.infof("caisson: workspace %s of %s, %s old", w.ID, runOrSandbox(w), age(w.CreatedAt))
		}
		return w, err
	}
	ref := c.Ref
	if !slices.ContainsFunc([]string{caisson.WorkspacePrefix, caisson.SandboxPrefix, caisson.RunPrefix}, func(prefix string) bool {
		_, err := caisson.ParseID(prefix, ref)
		return err == nil
	}) {
		sb, err := api.Get(ctx, ref)
		switch {
		case isNotFound(err):
			return nil, caisson.Errorf(caisson.NotFound, "there is no workspace, sandbox or run %.80q; see caisson workspace ls", ref)
		case err != nil:
			return nil, err
		case sb.Spec.Workspace == "":
			return nil, caisson.Errorf(caisson.NotFound, "the sandbox %.80q has no workspace; see caisson workspace ls", ref)
		}
		ref = string(sb.Spec.Workspace)
	}
	return api.GetWorkspace(ctx, ref)
}

// containsDir returns a function that reports whether the directory path is dir or a directory above it.
func containsDir(dir string) func(path string) bool {
	var above []os.FileInfo
	for d := dir; ; d = filepath.Dir(d) {
		if info, err := os.Stat(d); err == nil {
			above = append(above, info)
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	return func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && slices.ContainsFunc(above, func(d os.FileInfo) bool { return os.SameFile(d, info) })
	}
}

// maxOthers is the maximum number of other workspaces with pending changes that a message names.
const maxOthers = 5

// workspaceHere returns the newest workspace of the current directory or of a directory above it. It prefers workspaces that may
// have pending changes to settled ones, and prints which other workspaces have pending changes.
func workspaceHere(ctx context.Context, a *app, api api) (*caisson.Workspace, error) {
	if !a.overSocket() {
		return nil, caisson.Invalidf("run|sandbox|workspace", "is required, because the daemon is on another machine; see caisson workspace ls")
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	isHere := containsDir(dir)
	var c workspaceChoice
	f := caisson.WorkspaceFilter{Limit: 1000}
	for more := true; more && c.pending == nil; {
		var page []*caisson.Workspace
		if page, more, err = api.ListWorkspaces(ctx, f); err != nil {
			return nil, err
		}
		for _, w := range page {
			f.Before = w.ID
			if w.Kind != caisson.WorkspaceDirect && isHere(w.Source) {
				c.add(w)
			}
		}
		more = more && len(page) > 0
	}
	if note := c.note(); note != "" {
		a.infof("caisson: %s", note)
	}
	if w := cmp.Or(c.pending, c.settled); w != nil {
		return w, nil
	}
	return nil, caisson.Errorf(caisson.NotFound, "no workspace is of %s or a directory above it; see caisson workspace ls", dir)
}

// workspaceChoice chooses the workspace of a directory: the newest that is not settled or, if all are settled, the newest.
type workspaceChoice struct {
	pending *caisson.Workspace // the newest workspace that is not settled, so may have pending changes; nil if there is none
	settled *caisson.Workspace // the newest workspace that is settled; nil if there is none
	others  []string           // ids of the runs or sandboxes of older workspaces that have pending changes
}

// add makes w one of the workspaces to choose from. The workspaces must be added from the newest to the oldest.
func (c *workspaceChoice) add(w *caisson.Workspace) {
	switch {
	case w.State == caisson.WorkspaceSettled:
		c.settled = cmp.Or(c.settled, w)
	case c.pending == nil:
		c.pending = w
	case w.Changes > 0:
		c.others = append(c.others, runOrSandbox(w))
	}
}

// note returns a message that names the other workspaces with pending changes, or "" if there are none.
func (c *workspaceChoice) note() string {
	if len(c.others) == 0 {
		return ""
	}
	return fmt.Sprintf("this is the newest workspace, of %s; there are also changes in those of %s; to use one of them, give its id",
		runOrSandbox(c.pending), strings.Join(c.others[:min(len(c.others), maxOthers)], ", "))
}

// openWorkspace opens the host directory of a workspace with the rights of the user who runs this command. It returns an error if
// this user may not write in the directory.
func openWorkspace(a *app, w *caisson.Workspace) (caisson.Handle, error) {
	if !a.overSocket() {
		return nil, caisson.Errorf(caisson.Denied, "changes are applied on the daemon's machine, by a user who may write in the directory; this is another machine")
	}
	if !filepath.IsAbs(w.Source) {
		return nil, caisson.Errorf(caisson.Conflict, "the workspace %s is of %s, which is not the path of a directory", w.ID, w.Source)
	}
	f, err := os.OpenFile(w.Source, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Conflict, "the workspace's directory cannot be opened: %s", strings.TrimPrefix(err.Error(), "open "))
	}
	if err := unix.Faccessat(int(f.Fd()), ".", unix.W_OK, unix.AT_EACCESS); err != nil {
		f.Close()
		return nil, caisson.Wrap(err, caisson.Denied, "you may not write in %s", w.Source)
	}
	return f, nil
}

// workspaceRmCmd removes workspaces.
type workspaceRmCmd struct {
	Refs []string `arg:"" name:"run|sandbox|workspace" help:"Ids of workspaces, or of their runs or sandboxes." complete:"workspace"`
}

func (c *workspaceRmCmd) Help() string {
	return "What was not applied is lost, and what was cannot be undone any more.\n\n" +
		examples("caisson workspace rm ws-abcdefghijklmnop", "caisson workspace rm $(caisson workspace ls -q --state settled)")
}

func (c *workspaceRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Refs, api.RemoveWorkspace)
}
