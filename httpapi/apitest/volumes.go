package apitest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// volume is a volume with what is in it, by relative path. While a sandbox has it, the sandbox's files are what is in it.
type volume struct {
	caisson.Volume
	files  map[string]*node
	box    *box   // nil when it is free, or a run's
	target string // where box has it
}

// volumeCore keeps volumes. Every one is counted whenever somebody asks for it.
type volumeCore struct{ m *Memory }

func (c volumeCore) CreateVolume(ctx context.Context, req caisson.VolumeRequest) (*caisson.Volume, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if v := c.find(caller.Account, req.Name); v != nil {
		return nil, caisson.Errorf(caisson.Conflict, "a volume named %q exists already; choose another name or remove it first", req.Name)
	}
	v, err := c.make(caller.Account, req.Name, req.Labels)
	if err != nil {
		return nil, err
	}
	return v.copy(), nil
}

// make needs mu.
func (c volumeCore) make(account, name string, labels map[string]string) (*volume, error) {
	if err := caisson.CheckVolumeName("name", name); err != nil {
		return nil, err
	}
	v := &volume{Volume: caisson.Volume{
		ID: caisson.NewID(caisson.VolumePrefix), Account: account, Name: name, Labels: labels, CreatedAt: time.Now().UTC(),
	}, files: map[string]*node{}}
	c.m.volumes = append(c.m.volumes, v)
	c.m.event(account, "volume.created", string(v.ID))
	return v, nil
}

// find needs mu; nil if there is none.
func (c volumeCore) find(account, ref string) *volume {
	for _, v := range c.m.volumes {
		if v.Account == account && ref != "" && (string(v.ID) == ref || v.Name == ref) {
			return v
		}
	}
	return nil
}

func (v *volume) copy() *caisson.Volume {
	out := v.Volume
	return &out
}

// now returns what is in the volume.
func (v *volume) now() map[string]*node {
	if v.box == nil {
		return v.files
	}
	out := map[string]*node{}
	for p, n := range v.box.files {
		if rel, ok := strings.CutPrefix(p, v.target+"/"); ok {
			out[rel] = n
		}
	}
	return out
}

// with does something with a volume under the lock.
func (c volumeCore) with(ctx context.Context, ref string, do func(*volume) error) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	v := c.find(caller.Account, ref)
	if v == nil {
		return caisson.Errorf(caisson.NotFound, "there is no volume %.40q; see caisson volume ls", ref)
	}
	return do(v)
}

func (c volumeCore) GetVolume(ctx context.Context, ref string) (out *caisson.Volume, err error) {
	err = c.with(ctx, ref, func(v *volume) error {
		v.Bytes, v.Files, v.CountedAt = 0, 0, time.Now().UTC()
		for _, n := range v.now() {
			v.Bytes += caisson.Size(len(n.data))
			v.Files++
		}
		out = v.copy()
		return nil
	})
	return out, err
}

func (c volumeCore) ListVolumes(ctx context.Context, f caisson.Filter) (out []*caisson.Volume, more bool, err error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, false, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	found, more := page(c.m.volumes, f, func(v *volume) caisson.ID { return v.ID }, func(v *volume) bool {
		return v.Account == caller.Account && (f.Name == "" || v.Name == f.Name) && labelsMatch(v.Labels, f.Labels)
	})
	for _, v := range found {
		out = append(out, v.copy())
	}
	return out, more, nil
}

func (c volumeCore) RemoveVolume(ctx context.Context, ref string) error {
	return c.with(ctx, ref, func(v *volume) error {
		if v.Sandbox != "" {
			return caisson.Errorf(caisson.Conflict, "sandbox %s has volume %s; remove the sandbox first", v.Sandbox, v.Name)
		}
		c.m.volumes = slices.DeleteFunc(c.m.volumes, func(o *volume) bool { return o == v })
		c.m.event(v.Account, "volume.removed", string(v.ID))
		return nil
	})
}

// hold gives a volume to a sandbox, and makes it first if there is none of that name. It needs mu.
func (c volumeCore) hold(account, ref string, sandbox caisson.ID) (*volume, error) {
	v := c.find(account, ref)
	if v == nil {
		var err error
		if v, err = c.make(account, ref, nil); err != nil {
			return nil, err
		}
	}
	if v.Sandbox != "" && v.Sandbox != sandbox {
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s has volume %s; remove that sandbox first, or use another volume", v.Sandbox, v.Name)
	}
	v.Sandbox, v.UsedAt = sandbox, time.Now().UTC()
	c.m.event(account, "volume.taken", string(v.ID))
	return v, nil
}

// mount gives a volume to a sandbox whose workspace it is. It needs mu.
func (c volumeCore) mount(b *box, req caisson.WorkspaceRequest) error {
	target := req.Target
	if target == "" {
		target = "/workspace"
	}
	v, err := c.hold(b.Account, req.Source, b.ID)
	if err != nil {
		return &caisson.Error{Kind: caisson.KindOf(err), Field: "workspace.source", Msg: caisson.MessageOf(err)}
	}
	b.files[target] = &node{dir: true, mode: 0o755}
	for p, n := range v.files {
		b.files[target+"/"+p] = n
	}
	v.box, v.target = b, target
	b.Spec.Volume = &caisson.VolumeMount{ID: v.ID, Name: v.Name, Target: target}
	return nil
}

// freed frees what a sandbox has had. It needs mu.
func (c volumeCore) freed(sandbox caisson.ID) {
	for _, v := range c.m.volumes {
		if v.Sandbox == sandbox && sandbox != "" {
			v.files, v.box, v.Sandbox, v.UsedAt = maps.Clone(v.now()), nil, "", time.Now().UTC()
			c.m.event(v.Account, "volume.left", string(v.ID))
		}
	}
}

// take gives a run the volume that it is to work in, and names what is there. It needs mu.
func (c volumeCore) take(t *task) error {
	if t.Request.Kind != caisson.WorkspaceVolume {
		return nil
	}
	t.Sandbox = caisson.NewID(caisson.SandboxPrefix)
	v, err := c.hold(t.Account, t.Request.Source, t.Sandbox)
	if err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(v.files)) {
		if v.files[p].dir {
			p += "/"
		}
		t.files = append(t.files, p)
	}
	return nil
}
