package apitest

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
)

// space is a workspace. The sandbox has a copy of the directory among its files; what differs from base is what waits.
type space struct {
	caisson.Workspace
	box     *box                     // nil when its sandbox is gone
	files   map[string]*node         // the sandbox's
	base    map[string]*node         // the directory as it was, or as it was synced, by relative path
	reviews map[caisson.ID][]pending // what was shown
}

// receipt is a receipt with what it takes to undo it.
type receipt struct {
	caisson.SyncReceipt
	before map[string]*node // nil for nothing
}

// hiddenName reports whether a file of this name is not shown to sandboxes.
func hiddenName(p string) bool { return path.Base(p) == ".env" || strings.HasSuffix(p, ".pem") }

// newSpace makes a workspace of a directory and puts a copy of it among a sandbox's files. It closes the directory.
func newSpace(account string, req caisson.WorkspaceRequest, files map[string]*node) (*space, error) {
	dir, ok := req.Directory.(*os.File)
	if !ok {
		return nil, caisson.Invalidf("workspace", "needs an open directory")
	}
	defer dir.Close()
	w := caisson.Workspace{
		ID: caisson.NewID(caisson.WorkspacePrefix), Account: account, Kind: req.Kind, Mode: req.Mode, State: caisson.WorkspaceLive,
		Source: req.Source, Target: req.Target, CreatedAt: time.Now().UTC(),
	}
	if w.Kind == "" {
		w.Kind = caisson.WorkspaceOverlay
	}
	if w.Mode == "" {
		w.Mode = caisson.SyncSecure
	}
	if w.Target == "" {
		w.Target = "/workspace"
	}
	if (w.Kind == caisson.WorkspaceDirect) != (w.Mode == caisson.SyncUnsafe) {
		return nil, caisson.Invalidf("workspace.mode", "%s and %s do not go together", w.Kind, w.Mode)
	}
	var err error
	if w.HostPath, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd())); err != nil {
		return nil, err
	}
	if w.Device, w.Inode, err = identity(dir); err != nil {
		return nil, err
	}
	base, err := readHost(w.HostPath)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "workspace: cannot be read")
	}
	w.Files = int64(len(base))
	for _, p := range sorted(base) {
		if hiddenName(p) && !slices.ContainsFunc(req.Show, func(pattern string) bool { return matches(pattern, p) }) {
			w.Hidden = append(w.Hidden, p)
			delete(base, p)
		}
	}
	w.HiddenCount = len(w.Hidden)
	s := &space{Workspace: w, files: files, base: base, reviews: map[caisson.ID][]pending{}}
	files[w.Target] = &node{dir: true, mode: 0o755}
	for p, n := range base {
		files[w.Target+"/"+p] = n
	}
	return s, nil
}

// identity returns what a directory is known by.
func identity(dir *os.File) (device, inode uint64, err error) {
	info, err := dir.Stat()
	if err != nil {
		return 0, 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return 0, 0, caisson.Invalidf("directory", "is not a directory")
	}
	return st.Dev, st.Ino, nil
}

// readHost reads the files and directories below dir.
func readHost(dir string) (map[string]*node, error) {
	out := map[string]*node{}
	fsys := os.DirFS(dir)
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		n := &node{dir: d.IsDir(), mode: uint32(info.Mode().Perm()), time: info.ModTime()}
		if !n.dir {
			if n.data, err = fs.ReadFile(fsys, p); err != nil {
				return err
			}
		}
		out[p] = n
		return nil
	})
	return out, err
}

// matches reports whether a path, or a directory above it, is one of a pattern's. A pattern without a slash is of names anywhere.
func matches(pattern, p string) bool {
	if !strings.Contains(pattern, "/") {
		pattern = "**/" + pattern
	}
	re := regexp.QuoteMeta(pattern)
	for _, r := range [][2]string{{`\*\*/`, `(.*/)?`}, {`\*\*`, `.*`}, {`\*`, `[^/]*`}, {`\?`, `[^/]`}} {
		re = strings.ReplaceAll(re, r[0], strings.ReplaceAll(r[1], "*", "\x00"))
	}
	ok, err := regexp.MatchString("^"+strings.ReplaceAll(re, "\x00", "*")+"(/.*)?$", p)
	return ok && err == nil
}

func chosen(only []string, p string) bool {
	return len(only) == 0 || slices.ContainsFunc(only, func(pattern string) bool { return matches(pattern, p) })
}

// now returns what the sandbox has in the place of the directory.
func (s *space) now() map[string]*node {
	out := map[string]*node{}
	for p, n := range s.files {
		if rel, ok := strings.CutPrefix(p, s.Target+"/"); ok {
			out[rel] = n
		}
	}
	return out
}

// set makes n, or nothing, the file that the sandbox has at a relative path.
func (s *space) set(p string, n *node) { put(s.files, s.Target+"/"+p, n) }

func put(m map[string]*node, p string, n *node) {
	if n == nil {
		delete(m, p)
		return
	}
	m[p] = n
}

// running reports whether something may be writing in the workspace.
func (s *space) running() bool { return s.box != nil && s.box.State == caisson.Running }

func (s *space) copy() *caisson.Workspace {
	out := s.Workspace
	out.HostPath = ""
	return &out
}

// count notes how much waits. It needs mu.
func (s *space) count() error {
	list, err := s.changes(caisson.DiffRequest{})
	if err != nil {
		return err
	}
	s.Changes = len(list)
	if s.box == nil {
		s.State = caisson.WorkspaceResting
		if s.Changes == 0 {
			s.State = caisson.WorkspaceSettled
		}
	}
	return nil
}

// leave ends the workspaces of a sandbox. It needs mu.
func (m *Memory) leave(b *box) {
	for _, s := range m.spaces {
		if s.box != b {
			continue
		}
		s.box, s.EndedAt = nil, time.Now().UTC()
		if s.count() != nil {
			s.State = caisson.WorkspaceResting // the directory is gone
		}
	}
}

type spaceCore struct{ m *Memory }

// with does something with a workspace under the lock.
func (c spaceCore) with(ctx context.Context, ref string, do func(*space) error) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for _, s := range slices.Backward(c.m.spaces) {
		if s.Account == caller.Account && (string(s.ID) == ref || string(s.Sandbox) == ref || string(s.Run) == ref) {
			return do(s)
		}
	}
	return caisson.Errorf(caisson.NotFound, "there is no workspace %.40q; see caisson workspace ls", ref)
}

func (c spaceCore) GetWorkspace(ctx context.Context, ref string) (out *caisson.Workspace, err error) {
	err = c.with(ctx, ref, func(s *space) error {
		out = s.copy()
		return nil
	})
	return out, err
}

// newest returns a page of what is chosen among items, which are in the order of their making.
func newest[T any](items []T, f caisson.WorkspaceFilter, id func(T) caisson.ID, choose func(T) bool) (page []T, more bool) {
	limit := f.Limit
	if limit == 0 {
		limit = 100
	}
	seen := f.Before == ""
	for _, it := range slices.Backward(items) {
		switch {
		case !seen:
			seen = id(it) == f.Before
		case !choose(it):
		case len(page) == limit:
			return page, true
		default:
			page = append(page, it)
		}
	}
	return page, false
}

func (c spaceCore) ListWorkspaces(ctx context.Context, f caisson.WorkspaceFilter) ([]*caisson.Workspace, bool, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, false, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	page, more := newest(c.m.spaces, f, func(s *space) caisson.ID { return s.ID }, func(s *space) bool {
		return s.Account == caller.Account && (len(f.States) == 0 || slices.Contains(f.States, s.State)) &&
			(f.Run == "" || s.Run == f.Run) && (f.Sandbox == "" || s.Sandbox == f.Sandbox)
	})
	var out []*caisson.Workspace
	for _, s := range page {
		out = append(out, s.copy())
	}
	return out, more, nil
}

func (c spaceCore) Diff(ctx context.Context, ref string, req caisson.DiffRequest) (out *caisson.Diff, err error) {
	err = c.with(ctx, ref, func(s *space) error {
		if s.Kind == caisson.WorkspaceDirect {
			return caisson.Errorf(caisson.NotFound, "the workspace %s is the directory itself; there is nothing to compare", s.ID)
		}
		list, err := s.changes(req)
		if err != nil {
			return err
		}
		if err := s.count(); err != nil {
			return err
		}
		out = &caisson.Diff{Workspace: s.copy(), At: time.Now().UTC(), Checks: spaceChecks}
		if req.Freeze {
			out.Review = caisson.NewID(caisson.ReviewPrefix)
			s.reviews[out.Review] = list
		}
		for _, p := range list {
			out.Changes = append(out.Changes, p.Change)
		}
		return nil
	})
	return out, err
}

func (c spaceCore) Reset(ctx context.Context, ref string) (out *caisson.Workspace, err error) {
	err = c.with(ctx, ref, func(s *space) error {
		if s.running() {
			return errRunning(s)
		}
		for p := range s.now() {
			s.set(p, s.base[p])
		}
		for p, n := range s.base {
			s.set(p, n)
		}
		err := s.count()
		out = s.copy()
		return err
	})
	return out, err
}

func errRunning(s *space) error {
	return caisson.Errorf(caisson.Conflict, "the sandbox %s is running; stop it first", s.Sandbox)
}

func (c spaceCore) RemoveWorkspace(ctx context.Context, ref string) error {
	return c.with(ctx, ref, func(s *space) error {
		if s.box != nil {
			return caisson.Errorf(caisson.Conflict, "the sandbox %s has the workspace; remove it first", s.Sandbox)
		}
		c.m.spaces = slices.DeleteFunc(c.m.spaces, func(o *space) bool { return o == s })
		c.m.receipts = slices.DeleteFunc(c.m.receipts, func(r *receipt) bool { return r.Workspace == s.ID })
		return nil
	})
}
