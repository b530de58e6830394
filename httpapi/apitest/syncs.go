package apitest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
)

// step is one path that a sync writes.
type step struct {
	path          string
	before, after *node // nil for nothing
}

// openHost checks that a passed directory is the workspace's, and opens it for writing. It closes h.
func (s *space) openHost(h caisson.Handle) (*os.Root, error) {
	dir, ok := h.(*os.File)
	if !ok {
		return nil, caisson.Invalidf("directory", "needs the descriptor of the workspace's directory")
	}
	defer dir.Close()
	device, inode, err := identity(dir)
	if err != nil {
		return nil, err
	}
	if device != s.Device || inode != s.Inode {
		return nil, caisson.Errorf(caisson.Conflict, "the directory that was passed is not the one of the workspace %s", s.ID)
	}
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
}

// Sync implements [caisson.Workspaces].
func (c spaceCore) Sync(ctx context.Context, ref string, req caisson.SyncRequest) (out *caisson.SyncReceipt, err error) {
	err = c.with(ctx, ref, func(s *space) error {
		root, err := s.openHost(req.Directory)
		if err != nil {
			return err
		}
		defer root.Close()
		steps, merged, err := s.plan(req)
		if err != nil {
			return err
		}
		if len(req.Drop) > 0 && s.running() {
			return errRunning(s)
		}
		if err := write(root, steps); err != nil {
			return err
		}
		r := &receipt{SyncReceipt: caisson.SyncReceipt{
			ID: caisson.NewID(caisson.ReceiptPrefix), Account: s.Account, Workspace: s.ID, Sandbox: s.Sandbox, Run: s.Run,
			By: caisson.ActorOf(ctx), Mode: s.Mode, State: caisson.ReceiptApplied, At: time.Now().UTC(), Checks: spaceChecks,
		}, before: map[string]*node{}}
		for _, st := range steps {
			kind := caisson.ChangeModified
			switch {
			case st.before == nil:
				kind = caisson.ChangeAdded
			case st.after == nil:
				kind = caisson.ChangeRemoved
			}
			r.Entries = append(r.Entries, caisson.ReceiptEntry{
				Path: st.path, Kind: kind, Before: hashOf(st.before), After: hashOf(st.after), Merged: slices.Contains(merged, st.path),
			})
			r.before[st.path] = st.before
			put(s.base, st.path, st.after)
			if slices.Contains(merged, st.path) {
				s.set(st.path, st.after)
			}
		}
		for _, p := range req.Drop {
			s.set(p, s.base[p])
		}
		s.SyncedAt = r.At
		if err := s.count(); err != nil {
			return err
		}
		r.Waiting = s.Changes
		if len(steps) == 0 {
			r.ID = "" // nothing to keep
		} else {
			c.m.receipts = append(c.m.receipts, r)
			c.m.event(s.Account, "sync.applied", string(s.ID))
		}
		receipt := r.SyncReceipt
		out = &receipt
		return nil
	})
	if err != nil && req.Directory != nil {
		req.Directory.Close() // if nobody has yet
	}
	return out, err
}

// plan returns what a request writes.
func (s *space) plan(req caisson.SyncRequest) (steps []step, merged []string, err error) {
	list := s.reviews[req.Review]
	switch {
	case req.Auto && (req.Review != "" || len(req.Apply) > 0 || len(req.Drop) > 0):
		return nil, nil, caisson.Invalidf("auto", "chooses the changes itself")
	case req.Auto:
		if list, err = s.changes(caisson.DiffRequest{Only: req.Only}); err != nil {
			return nil, nil, err
		}
		for _, p := range list {
			if p.Verdict == caisson.VerdictPass {
				req.Apply = append(req.Apply, caisson.Selection{Path: p.Path, Hash: p.Hash})
			}
		}
	case len(req.Apply) == 0 && len(req.Drop) == 0:
		return nil, nil, caisson.Invalidf("apply", "names no change, and auto is not asked for")
	case req.Review == "":
		return nil, nil, caisson.Invalidf("review", "is required, except with auto")
	case list == nil:
		return nil, nil, caisson.Errorf(caisson.Conflict, "there is no review %s; look at the changes again", req.Review)
	}
	host, err := readHost(s.HostPath)
	if err != nil {
		return nil, nil, err
	}
	for _, sel := range req.Apply {
		i := slices.IndexFunc(list, func(p pending) bool { return p.Path == sel.Path })
		if i < 0 || list[i].Hash != sel.Hash {
			return nil, nil, caisson.Errorf(caisson.Conflict, "%.100q is not as it was reviewed", sel.Path)
		}
		p := list[i]
		from := p.Path
		if p.OldPath != "" {
			from = p.OldPath
		}
		switch {
		case p.Verdict == caisson.VerdictDeny:
			return nil, nil, caisson.Errorf(caisson.Denied, "%.100q may not be applied: %s", p.Path, p.Finding[0].Message)
		case p.Verdict == caisson.VerdictClash, !same(host[from], p.host):
			return nil, nil, caisson.Errorf(caisson.Conflict, "%.100q has changed on the host", from)
		case p.Verdict == caisson.VerdictAsk && !req.Asked:
			return nil, nil, caisson.Errorf(caisson.Denied, "somebody must look at %.100q first: %s", p.Path, p.Finding[0].Message)
		}
		after, err := p.some(sel.Hunks)
		if err != nil {
			return nil, nil, err
		}
		if p.OldPath != "" {
			steps = append(steps, step{p.OldPath, p.host, nil}, step{p.Path, host[p.Path], after})
			continue
		}
		steps = append(steps, step{p.Path, p.host, after})
		if p.Merge {
			merged = append(merged, p.Path)
		}
	}
	return steps, merged, nil
}

// write does steps, directories before what is in them.
func write(root *os.Root, steps []step) error {
	slices.SortFunc(steps, func(a, b step) int {
		if (a.after == nil) != (b.after == nil) {
			if a.after == nil {
				return -1
			}
			return 1
		}
		if a.after == nil {
			return len(b.path) - len(a.path)
		}
		return len(a.path) - len(b.path)
	})
	for _, st := range steps {
		var err error
		switch {
		case st.after == nil:
			err = root.Remove(st.path)
		case st.after.dir:
			if err = root.Mkdir(st.path, fs.FileMode(st.after.mode)); errors.Is(err, fs.ErrExist) {
				err = nil
			}
		default:
			if err = root.MkdirAll(path.Dir(st.path), 0o755); err == nil {
				err = root.WriteFile(st.path, st.after.data, fs.FileMode(st.after.mode))
			}
		}
		if err == nil && st.after != nil {
			err = root.Chmod(st.path, fs.FileMode(st.after.mode))
		}
		if err != nil {
			return caisson.Wrap(err, caisson.Conflict, "cannot write %.100q", st.path)
		}
	}
	return nil
}

func (c spaceCore) ListReceipts(ctx context.Context, f caisson.WorkspaceFilter) ([]*caisson.SyncReceipt, bool, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, false, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	page, more := newest(c.m.receipts, f, func(r *receipt) caisson.ID { return r.ID }, func(r *receipt) bool {
		return r.Account == caller.Account && (f.Workspace == "" || r.Workspace == f.Workspace) && (f.Run == "" || r.Run == f.Run) &&
			(f.Sandbox == "" || r.Sandbox == f.Sandbox)
	})
	var out []*caisson.SyncReceipt
	for _, r := range page {
		receipt := r.SyncReceipt
		out = append(out, &receipt)
	}
	return out, more, nil
}

// receipt needs mu.
func (c spaceCore) receipt(ctx context.Context, id caisson.ID) (*receipt, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range c.m.receipts {
		if r.ID == id && r.Account == caller.Account {
			return r, nil
		}
	}
	return nil, caisson.Errorf(caisson.NotFound, "there is no receipt %.40q; see caisson sync log", id)
}

func (c spaceCore) GetReceipt(ctx context.Context, id caisson.ID) (*caisson.SyncReceipt, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	r, err := c.receipt(ctx, id)
	if err != nil {
		return nil, err
	}
	out := r.SyncReceipt
	return &out, nil
}

func (c spaceCore) Undo(ctx context.Context, id caisson.ID, dir caisson.Handle) (*caisson.SyncReceipt, error) {
	if dir != nil {
		defer dir.Close()
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	r, err := c.receipt(ctx, id)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(c.m.spaces, func(s *space) bool { return s.ID == r.Workspace })
	s := c.m.spaces[i] // receipts go with their workspaces
	root, err := s.openHost(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if r.State != caisson.ReceiptApplied {
		return nil, caisson.Errorf(caisson.Conflict, "the receipt %s is undone already", id)
	}
	host, err := readHost(s.HostPath)
	if err != nil {
		return nil, err
	}
	var steps []step
	for _, e := range r.Entries {
		if hashOf(host[e.Path]) != e.After {
			return nil, caisson.Errorf(caisson.Conflict, "%.100q has changed on the host since; nothing was undone", e.Path)
		}
		steps = append(steps, step{e.Path, host[e.Path], r.before[e.Path]})
	}
	if err := write(root, steps); err != nil {
		return nil, err
	}
	for _, st := range steps {
		put(s.base, st.path, st.after)
	}
	r.State, r.UndoneAt = caisson.ReceiptUndone, time.Now().UTC()
	if err := s.count(); err != nil {
		return nil, err
	}
	c.m.event(r.Account, "sync.undone", string(s.ID))
	out := r.SyncReceipt
	return &out, nil
}
