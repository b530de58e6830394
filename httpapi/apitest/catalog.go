package apitest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

type templateCore struct{ m *Memory }

func (c templateCore) PutTemplate(ctx context.Context, t caisson.Template) (*caisson.Template, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if t.Name == caisson.HostTemplate {
		return nil, caisson.Errorf(caisson.Denied, "the template %s is built in", t.Name)
	}
	t.Account, t.CreatedAt = caller.Account, time.Now().UTC()
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.templates[caller.Account+"/"+t.Name] = &t
	return &t, nil
}

func (c templateCore) GetTemplate(ctx context.Context, name string) (*caisson.Template, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if t, ok := c.m.templates[caller.Account+"/"+name]; ok {
		return t, nil
	}
	if name == caisson.HostTemplate {
		return &caisson.Template{Name: name, Image: "host"}, nil
	}
	return nil, caisson.Errorf(caisson.NotFound, "there is no template %.40q", name)
}

func (c templateCore) ListTemplates(ctx context.Context) ([]*caisson.Template, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	out := []*caisson.Template{{Name: caisson.HostTemplate, Image: "host"}}
	for _, t := range c.m.templates {
		if t.Account == caller.Account {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *caisson.Template) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (c templateCore) RemoveTemplate(ctx context.Context, name string) error {
	t, err := c.GetTemplate(ctx, name)
	if err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	delete(c.m.templates, t.Account+"/"+t.Name)
	return nil
}

func (c templateCore) BuildTemplate(ctx context.Context, name string, auth caisson.RegistryAuth, progress func(caisson.Progress)) (*caisson.Template, error) {
	t, err := c.GetTemplate(ctx, name)
	if err != nil {
		return nil, err
	}
	for i := range t.Setup {
		if progress != nil {
			progress(caisson.Progress{Stage: "setup", Done: int64(i), Total: int64(len(t.Setup)), Message: strings.Join(t.Setup[i].Run[1:], " ")})
		}
		if t.Setup[i].Run[0] == "fail" {
			return nil, caisson.Errorf(caisson.Invalid, "step %d failed", i)
		}
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	built := *t
	built.Built = &caisson.Built{Key: "k", Rootfs: rootfs(), At: time.Now().UTC()}
	c.m.templates[t.Account+"/"+name] = &built
	return &built, nil
}

type imageCore struct{ m *Memory }

func (c imageCore) Pull(ctx context.Context, req caisson.PullRequest, progress func(caisson.Progress)) (*caisson.Image, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if req.Source != nil {
		defer req.Source.Close()
	}
	c.m.mu.Lock()
	have := c.m.images[caller.Account+"/"+req.Reference]
	c.m.pulled = req
	c.m.mu.Unlock()
	if req.Offline {
		if have == nil {
			return nil, caisson.Errorf(caisson.NotFound, "the image is not present")
		}
		return have, nil
	}
	if progress != nil {
		progress(caisson.Progress{Stage: "pull", Done: 1, Total: 2})
		progress(caisson.Progress{Stage: "unpack", Done: 2, Total: 2})
	}
	if strings.Contains(req.Reference, "unreachable") {
		return nil, caisson.Wrap(context.DeadlineExceeded, caisson.Unavailable, "the registry does not answer")
	}
	if strings.Contains(req.Reference, "slow") {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	img := &caisson.Image{
		Reference: req.Reference, Digest: "sha256:1", Account: caller.Account, Size: 42, Layers: []string{"sha256:2"},
		Rootfs: rootfs(), CreatedAt: time.Now().UTC(), UsedAt: time.Now().UTC(),
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.images[caller.Account+"/"+req.Reference] = img
	return img, nil
}

func (c imageCore) ListImages(ctx context.Context) ([]*caisson.Image, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var out []*caisson.Image
	for _, i := range c.m.images {
		if i.Account == caller.Account {
			out = append(out, i)
		}
	}
	return out, nil
}

func (c imageCore) RemoveImage(ctx context.Context, ref string) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.images[caller.Account+"/"+ref] == nil {
		return caisson.Errorf(caisson.NotFound, "there is no image %.40q", ref)
	}
	delete(c.m.images, caller.Account+"/"+ref)
	return nil
}

func (c imageCore) PruneImages(ctx context.Context) (caisson.Size, error) {
	list, err := c.ListImages(ctx)
	if err != nil {
		return 0, err
	}
	var freed caisson.Size
	for _, i := range list {
		freed += i.Size
		if err := c.RemoveImage(ctx, i.Reference); err != nil {
			return freed, err
		}
	}
	return freed, nil
}
