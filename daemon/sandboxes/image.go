package sandboxes

import (
	"context"
	"slices"

	"github.com/caisson-dev/caisson"
)

// ImageService implements [caisson.Images]: the image driver pulls and unpacks images, the store records which accounts
// they belong to.
type ImageService struct{ c *Core }

// ImageService returns the service that manages images.
func (c *Core) ImageService() *ImageService { return &ImageService{c} }

var _ caisson.Images = (*ImageService)(nil)

// image returns an image of the caller's account, and pulls it if it is not present.
func (s *ImageService) image(ctx context.Context, ref string) (*caisson.Image, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	name, err := s.c.Images.Canonical(ref)
	if err != nil {
		return nil, err
	}
	if name == "host" {
		return s.c.Images.Host(ctx)
	}
	img, err := s.c.Store.Images().Update(ctx, in, name, func(i *caisson.Image) error {
		i.UsedAt = now()
		return nil
	})
	if caisson.KindOf(err) != caisson.NotFound {
		return img, err
	}
	if isPath(name) {
		return nil, caisson.Errorf(caisson.NotFound, "image %.100q is not present; run caisson image pull %.100q", name, name)
	}
	return s.Pull(ctx, caisson.PullRequest{Reference: ref}, nil)
}

// Pull implements [caisson.Images].
func (s *ImageService) Pull(ctx context.Context, req caisson.PullRequest, progress func(caisson.Progress)) (*caisson.Image, error) {
	c := s.c
	if progress == nil {
		progress = func(caisson.Progress) {}
	}
	_, caller, err := scope(ctx)
	if err == nil && req.Source != nil && !caller.Local {
		err = caisson.Errorf(caisson.Denied, "host paths are accepted only over the unix socket")
	}
	var name string
	if err == nil {
		name, err = c.Images.Canonical(req.Reference)
	}
	if req.Source != nil && (err != nil || name == "host") {
		req.Source.Close()
	}
	if err != nil {
		return nil, err
	}
	if name == "host" {
		return c.Images.Host(ctx)
	}
	defer c.Images.Hold()()
	if isPath(name) && req.Source == nil {
		// An image that was imported from a path is not read again.
		return c.Store.Images().Get(ctx, caisson.In(caller.Account), name)
	}
	req.Local = caller.MayUseHost()
	img, err := c.Images.Pull(ctx, req, caller.Account, progress)
	if err != nil {
		return nil, err
	}
	if _, err := c.Store.Accounts().Ensure(ctx, caller.Account); err != nil {
		return nil, err
	}
	img.Reference, img.Account, img.UsedAt = name, caller.Account, now()
	if img.CreatedAt.IsZero() {
		img.CreatedAt = now()
	}
	stored, err := c.Store.Images().Update(ctx, caisson.In(caller.Account), name, func(old *caisson.Image) error {
		*old = *img
		return nil
	})
	if caisson.KindOf(err) == caisson.NotFound {
		stored, err = img, c.Store.Images().Insert(ctx, img)
	}
	if err != nil {
		return nil, err
	}
	c.Events.Publish(ctx, caller.Account, "image.pulled", name, map[string]string{"digest": img.Digest})
	return stored, nil
}

// ListImages implements [caisson.Images].
func (s *ImageService) ListImages(ctx context.Context) ([]*caisson.Image, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	host, err := s.c.Images.Host(ctx)
	if err != nil {
		return nil, err
	}
	list, err := listAll(ctx, s.c.Store.Images(), in, func(i *caisson.Image) caisson.ID { return caisson.ID(i.Reference) })
	return append([]*caisson.Image{host}, list...), err
}

// RemoveImage implements [caisson.Images].
func (s *ImageService) RemoveImage(ctx context.Context, ref string) error {
	in, caller, err := scope(ctx)
	if err != nil {
		return err
	}
	name, err := s.c.Images.Canonical(ref)
	if err != nil {
		return err
	}
	if name == "host" {
		return caisson.Errorf(caisson.Denied, "the host's image cannot be removed")
	}
	img, err := s.c.Store.Images().Get(ctx, in, name)
	if err != nil {
		return err
	}
	used, err := s.users(ctx, in)
	if err != nil {
		return err
	}
	if by := used[img.Rootfs.Digest]; by != "" {
		return caisson.Errorf(caisson.Conflict, "image %.100q is used by %s; remove that first", name, by)
	}
	if err := s.c.Store.Images().Delete(ctx, in, name); err != nil {
		return err
	}
	s.c.Events.Publish(ctx, caller.Account, "image.removed", name, nil)
	return nil
}

// users returns the root file systems in use: by digest, a description of an object that uses it, for messages.
func (s *ImageService) users(ctx context.Context, in caisson.Scope) (map[string]string, error) {
	used := map[string]string{}
	err := s.eachRootfs(ctx, in, func(r caisson.Rootfs, by string) { used[r.Digest] = by })
	return used, err
}

// eachRootfs calls f for every root file system that an object other than an image uses.
func (s *ImageService) eachRootfs(ctx context.Context, in caisson.Scope, f func(r caisson.Rootfs, by string)) error {
	boxes, err := listAll(ctx, s.c.Store.Sandboxes(), in, func(s *caisson.Sandbox) caisson.ID { return s.ID })
	if err != nil {
		return err
	}
	for _, s := range boxes {
		f(s.Rootfs, "sandbox "+string(s.ID))
	}
	snaps, err := listAll(ctx, s.c.Store.Snapshots(), in, func(s *caisson.Snapshot) caisson.ID { return s.ID })
	if err != nil {
		return err
	}
	for _, s := range snaps {
		f(s.Rootfs, "snapshot "+string(s.ID))
	}
	tpls, err := listAll(ctx, s.c.Store.Templates(), in, func(t *caisson.Template) caisson.ID { return caisson.ID(t.Name) })
	if err != nil {
		return err
	}
	for _, t := range tpls {
		if t.Built != nil {
			f(t.Built.Rootfs, "template "+t.Name)
		}
	}
	return nil
}

// PruneImages implements [caisson.Images]. It removes the caller's unused images, and the layers that no image and no
// other object of any account uses.
func (s *ImageService) PruneImages(ctx context.Context) (caisson.Size, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return 0, err
	}
	used, err := s.users(ctx, in)
	if err != nil {
		return 0, err
	}
	tpls, err := s.c.Templates().ListTemplates(ctx)
	if err != nil {
		return 0, err
	}
	imgs, err := listAll(ctx, s.c.Store.Images(), in, func(i *caisson.Image) caisson.ID { return caisson.ID(i.Reference) })
	if err != nil {
		return 0, err
	}
	for _, img := range imgs {
		named := slices.ContainsFunc(tpls, func(t *caisson.Template) bool {
			ref, err := s.c.Images.Canonical(t.Image)
			return err == nil && ref == img.Reference
		})
		if used[img.Rootfs.Digest] != "" || named {
			continue
		}
		if err := s.c.Store.Images().Delete(ctx, in, img.Reference); err != nil && caisson.KindOf(err) != caisson.NotFound {
			return 0, err
		}
	}
	return s.c.PruneLayers(ctx)
}

// PruneLayers removes the layers that no image and no object of any account uses.
func (c *Core) PruneLayers(ctx context.Context) (caisson.Size, error) {
	keep, err := c.LayersInUse(ctx)
	if err != nil {
		return 0, err
	}
	return c.Images.Prune(ctx, func(dir string) bool { return keep[dir] })
}

// LayersInUse returns the directories of the layers that images and other objects of any account use.
func (c *Core) LayersInUse(ctx context.Context) (map[string]bool, error) {
	keep := map[string]bool{}
	note := func(r caisson.Rootfs, _ string) {
		for _, l := range r.Layers {
			keep[l] = true
		}
	}
	if err := c.ImageService().eachRootfs(ctx, caisson.AllAccounts(), note); err != nil {
		return nil, err
	}
	imgs, err := listAll(ctx, c.Store.Images(), caisson.AllAccounts(), func(i *caisson.Image) caisson.ID { return caisson.ID(i.Reference) })
	if err != nil {
		return nil, err
	}
	for _, i := range imgs {
		note(i.Rootfs, "")
	}
	host, err := c.Images.Host(ctx)
	if err != nil {
		return nil, err
	}
	note(host.Rootfs, "")
	return keep, nil
}
