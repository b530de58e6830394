package main

import (
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
)

// workspaceFlags are the flags for the workspace of a new sandbox. direct and yolo-unsafe let it write in the directory itself.
type workspaceFlags struct {
	Kind       string   `name:"workspace-kind" help:"overlay shows the directory as it is and takes what is written aside; copy does the same with a copy made at the start (of that of a run nothing comes back but a patch); direct lets the sandbox write in it, and nothing is reviewed." group:"new" placeholder:"KIND" enum:",overlay,copy,direct" default:""`
	Sync       string   `help:"How changes get to the directory: secure (a user reviews them), yolo (changes that pass every check are applied automatically), yolo-unsafe (the same as the kind direct)." group:"new" placeholder:"MODE" enum:",secure,yolo,yolo-unsafe" default:""`
	ShowHidden []string `help:"Do not hide secret-looking files of this name or path from the sandbox; may be repeated." group:"new" placeholder:"PATTERN" sep:"none"`
}

// anySet reports whether any of the flags was set.
func (f *workspaceFlags) anySet() bool { return f.Kind != "" || f.Sync != "" || len(f.ShowHidden) > 0 }

// request returns the workspace request for the directory dir that the flags specify. It prints a note if the sandbox writes in
// dir itself, so that changes cannot be reviewed.
func (f *workspaceFlags) request(a *app, dir, target string) (*caisson.WorkspaceRequest, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	req := &caisson.WorkspaceRequest{
		Kind: caisson.WorkspaceKind(f.Kind), Mode: caisson.SyncMode(f.Sync), Source: abs, Target: target, Show: f.ShowHidden,
	}
	switch direct, unsafe := req.Kind == caisson.WorkspaceDirect, req.Mode == caisson.SyncUnsafe; {
	case direct && req.Mode == "":
		req.Mode = caisson.SyncUnsafe
	case unsafe && req.Kind == "":
		req.Kind = caisson.WorkspaceDirect
	case direct != unsafe:
		return nil, caisson.Invalidf("sync", "%s does not go with the workspace kind %s: what is written directly cannot be reviewed", req.Mode, req.Kind)
	}
	if !a.overSocket() {
		return nil, caisson.Invalidf("workspace", "a daemon elsewhere cannot see directories of this machine; use cp")
	}
	if err := checkOutsideDataDir(abs, a.cfg.DataDir); err != nil {
		return nil, err
	}
	if req.Kind == caisson.WorkspaceDirect {
		a.infof("caisson: the sandbox writes in %s itself: nothing is reviewed, hidden or undone", quoteCommand([]string{abs}))
	}
	return req, nil
}

// parseWorkspace parses DIR[:TARGET]. DIR may contain colons; TARGET begins with a slash and contains none.
func parseWorkspace(s string) (dir, target string, err error) {
	dir = s
	if i := strings.LastIndex(s, ":/"); i >= 0 && !strings.Contains(s[i+1:], ":") {
		dir, target = s[:i], filepath.Clean(s[i+1:])
	}
	if dir == "" || target == "/" || strings.ContainsRune(s, 0) {
		return "", "", caisson.Invalidf("workspace", "%.80q is not DIR or DIR:TARGET, with an absolute path below / inside the sandbox", s)
	}
	return dir, target, nil
}
