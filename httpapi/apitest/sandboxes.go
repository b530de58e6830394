package apitest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
)

type sandboxCore struct{ m *Memory }

func (c sandboxCore) Create(ctx context.Context, req caisson.CreateRequest) (*caisson.Sandbox, error) {
	files := map[string]*node{"/": {dir: true, mode: 0o755}}
	for i, h := range req.Directories {
		// What is in a passed directory is shown as a file, so that tests see that the descriptor works.
		dir, ok := h.(*os.File)
		if !ok {
			return nil, caisson.Errorf(caisson.Invalid, "mounts: not a file")
		}
		names, err := dir.Readdirnames(-1)
		dir.Close()
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "mounts: cannot be read")
		}
		slices.Sort(names)
		files[fmt.Sprintf("/mount%d", i)] = &node{data: fmt.Append(nil, names), mode: 0o644}
	}
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	var s *space
	volume := req.Workspace != nil && req.Workspace.Kind == caisson.WorkspaceVolume
	if req.Workspace != nil && !volume {
		if s, err = newSpace(caller.Account, *req.Workspace, files); err != nil {
			return nil, err
		}
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if req.Name == "full" {
		return nil, caisson.Errorf(caisson.Exhausted, "too many sandboxes")
	}
	if req.Name == "panic" {
		panic("as asked")
	}
	if _, err := c.m.find(ctx, req.Name); err == nil {
		return nil, caisson.Errorf(caisson.Conflict, "a sandbox is called %s", req.Name)
	}
	state := caisson.Running
	if req.NoStart {
		state = caisson.Created
	}
	res := req.Resources
	if res == (caisson.Resources{}) {
		res = caisson.DefaultResources()
	}
	b := &box{Sandbox: caisson.Sandbox{
		ID: caisson.NewID(caisson.SandboxPrefix), Account: caller.Account, Name: req.Name, Template: caisson.HostTemplate,
		State: state, Labels: req.Labels, Rootfs: rootfs(), CreatedAt: time.Now().UTC(), ChangedAt: time.Now().UTC(),
		Spec: caisson.Spec{Image: "host", Command: req.Command, Env: req.Env, Workdir: "/", User: "0", Resources: res},
	}, files: files, procs: map[int]*proc{}}
	if req.Policy != nil {
		b.Spec.Policy = *req.Policy
	}
	if volume {
		if err := volumeCore(c).mount(b, *req.Workspace); err != nil {
			return nil, err
		}
	}
	if s != nil {
		s.box, s.Sandbox, b.Spec.Workspace = b, b.ID, s.ID
		c.m.spaces = append(c.m.spaces, s)
	}
	c.m.creates++
	c.m.sandboxes = append(c.m.sandboxes, b)
	c.m.event(b.Account, "sandbox."+string(state), string(b.ID))
	out := b.Sandbox
	return &out, nil
}

func (c sandboxCore) Get(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	out := b.Sandbox
	return &out, nil
}

func (c sandboxCore) List(ctx context.Context, f caisson.Filter) ([]*caisson.Sandbox, bool, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, false, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	boxes, more := page(c.m.sandboxes, f, func(b *box) caisson.ID { return b.ID }, func(b *box) bool {
		return b.Account == caller.Account && (f.Name == "" || b.Name == f.Name) && labelsMatch(b.Labels, f.Labels) &&
			(len(f.States) == 0 || slices.Contains(f.States, b.State))
	})
	out := make([]*caisson.Sandbox, len(boxes))
	for i, b := range boxes {
		sb := b.Sandbox
		out[i] = &sb
	}
	return out, more, nil
}

func (c sandboxCore) change(ctx context.Context, ref string, v caisson.Verb) (*caisson.Sandbox, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.use(ctx, ref, v)
	if err != nil {
		return nil, err
	}
	_, b.State = v.Passage()
	b.ChangedAt = time.Now().UTC()
	c.m.event(b.Account, "sandbox."+string(b.State), string(b.ID))
	out := b.Sandbox
	return &out, nil
}

func (c sandboxCore) Start(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return c.change(ctx, ref, caisson.VerbStart)
}

func (c sandboxCore) Stop(ctx context.Context, ref string, grace time.Duration) (*caisson.Sandbox, error) {
	if grace < 0 {
		return nil, caisson.Invalidf("grace", "must not be negative")
	}
	return c.change(ctx, ref, caisson.VerbStop)
}

func (c sandboxCore) Pause(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return c.change(ctx, ref, caisson.VerbPause)
}

func (c sandboxCore) Resume(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return c.change(ctx, ref, caisson.VerbResume)
}

func (c sandboxCore) Suspend(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return c.change(ctx, ref, caisson.VerbSuspend)
}

func (c sandboxCore) Wake(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return c.change(ctx, ref, caisson.VerbWake)
}

func (c sandboxCore) Extend(ctx context.Context, ref string, ttl, hardTTL *caisson.Duration) (*caisson.Sandbox, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	set := func(at **time.Time, d *caisson.Duration) {
		if d != nil {
			t := time.Now().UTC().Add(time.Duration(*d))
			*at = &t
		}
	}
	set(&b.PauseAt, ttl)
	set(&b.RemoveAt, hardTTL)
	out := b.Sandbox
	return &out, nil
}

func (c sandboxCore) Remove(ctx context.Context, ref string) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.find(ctx, ref)
	if err != nil {
		return err
	}
	c.m.sandboxes = slices.DeleteFunc(c.m.sandboxes, func(o *box) bool { return o == b })
	c.m.leave(b)
	volumeCore(c).freed(b.ID)
	c.m.event(b.Account, "sandbox.removed", string(b.ID))
	return nil
}

type snapshotCore struct{ m *Memory }

func (c snapshotCore) Snapshot(ctx context.Context, ref string, req caisson.SnapshotRequest) (*caisson.Snapshot, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.use(ctx, ref, caisson.VerbSnapshot)
	if err != nil {
		return nil, err
	}
	s := &shot{Snapshot: caisson.Snapshot{
		ID: caisson.NewID(caisson.SnapshotPrefix), Account: b.Account, Name: req.Name, Sandbox: b.ID, Template: b.Template,
		Memory: !req.FilesOnly, Size: 1, Spec: b.Spec, Labels: req.Labels, Rootfs: rootfs(), CreatedAt: time.Now().UTC(),
	}, files: maps.Clone(b.files)}
	c.m.snapshots = append(c.m.snapshots, s)
	out := s.Snapshot
	return &out, nil
}

// find needs mu.
func (c snapshotCore) find(ctx context.Context, ref string) (*shot, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range c.m.snapshots {
		if s.Account == caller.Account && (string(s.ID) == ref || s.Name == ref) {
			return s, nil
		}
	}
	return nil, caisson.Errorf(caisson.NotFound, "there is no snapshot %.40q", ref)
}

func (c snapshotCore) Fork(ctx context.Context, ref string, req caisson.ForkRequest) ([]*caisson.Sandbox, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var from caisson.Sandbox
	var files map[string]*node
	if s, err := c.find(ctx, ref); err == nil {
		from, files = caisson.Sandbox{Account: s.Account, Template: s.Template, Spec: s.Spec, Parent: s.ID}, s.files
	} else {
		b, err := c.m.use(ctx, ref, caisson.VerbFork)
		if err != nil {
			return nil, err
		}
		from, files = b.Sandbox, b.files
		from.Parent = b.ID
	}
	var out []*caisson.Sandbox
	for i := range max(req.Count, 1) {
		b := &box{Sandbox: from, files: maps.Clone(files), procs: map[int]*proc{}}
		b.ID, b.Name, b.State, b.Labels, b.Rootfs = caisson.NewID(caisson.SandboxPrefix), req.Name, caisson.Running, req.Labels, rootfs()
		if req.Name != "" && req.Count > 1 {
			b.Name = fmt.Sprintf("%s-%d", req.Name, i+1)
		}
		c.m.creates++
		c.m.sandboxes = append(c.m.sandboxes, b)
		sb := b.Sandbox
		out = append(out, &sb)
	}
	return out, nil
}

func (c snapshotCore) GetSnapshot(ctx context.Context, ref string) (*caisson.Snapshot, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	s, err := c.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	out := s.Snapshot
	return &out, nil
}

func (c snapshotCore) ListSnapshots(ctx context.Context, f caisson.Filter) ([]*caisson.Snapshot, bool, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, false, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	shots, more := page(c.m.snapshots, f, func(s *shot) caisson.ID { return s.ID }, func(s *shot) bool {
		return s.Account == caller.Account && (f.Name == "" || s.Name == f.Name) && labelsMatch(s.Labels, f.Labels)
	})
	out := make([]*caisson.Snapshot, len(shots))
	for i, s := range shots {
		sn := s.Snapshot
		out[i] = &sn
	}
	return out, more, nil
}

func (c snapshotCore) RemoveSnapshot(ctx context.Context, ref string) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	s, err := c.find(ctx, ref)
	if err != nil {
		return err
	}
	c.m.snapshots = slices.DeleteFunc(c.m.snapshots, func(o *shot) bool { return o == s })
	return nil
}

type processCore struct{ m *Memory }

func (c processCore) Exec(ctx context.Context, ref string, req caisson.ExecRequest) (caisson.Process, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.use(ctx, ref, caisson.VerbExec)
	if err != nil {
		return nil, err
	}
	program, ok := programs[req.Command[0]]
	if !ok {
		return nil, caisson.Invalidf("command", "%.40q is not in PATH", req.Command[0])
	}
	pid := len(b.procs) + 2
	p, err := startProc(pid, req, program, func() {
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		c.m.live--
	})
	if err != nil {
		return nil, err
	}
	c.m.live++
	b.procs[pid] = p
	return p, nil
}

func (c processCore) Processes(ctx context.Context, ref string) ([]caisson.ProcessInfo, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.use(ctx, ref, caisson.VerbExec)
	if err != nil {
		return nil, err
	}
	list := []caisson.ProcessInfo{{PID: 1, Command: "init", CPUTime: "0s", Threads: 1}}
	for pid, p := range b.procs {
		if !p.ended() {
			list = append(list, caisson.ProcessInfo{PID: pid, PPID: 1, Command: p.name, CPUTime: "0s", Threads: 1})
		}
	}
	return list, nil
}

func (c processCore) Kill(ctx context.Context, ref string, pid, signal int) error {
	c.m.mu.Lock()
	b, err := c.m.use(ctx, ref, caisson.VerbExec)
	var hit []*proc
	if err == nil {
		for id, p := range b.procs {
			if pid == -1 || id == pid {
				hit = append(hit, p)
			}
		}
	}
	c.m.mu.Unlock()
	if err != nil {
		return err
	}
	if len(hit) == 0 && pid != -1 {
		return caisson.Errorf(caisson.NotFound, "there is no process %d", pid)
	}
	for _, p := range hit {
		if err := p.Signal(ctx, signal); err != nil {
			return err
		}
	}
	return nil
}

func (c processCore) Stats(ctx context.Context, ref string) (*caisson.Stats, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.use(ctx, ref, caisson.VerbStats)
	if err != nil {
		return nil, err
	}
	return &caisson.Stats{At: time.Now().UTC(), Memory: 1 << 20, MemoryMax: b.Spec.Resources.Memory, PIDs: len(b.procs) + 1}, nil
}

func (c processCore) Logs(ctx context.Context, ref string, follow bool) (io.ReadCloser, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if _, err := c.m.find(ctx, ref); err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	go func() {
		w.Write([]byte("first\n"))
		if follow {
			<-ctx.Done()
		}
		w.Close()
	}()
	return r, nil
}
