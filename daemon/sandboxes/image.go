package sandboxes

import (
	"context"
	"slices"

	"github.com/caisson-dev/caisson"
)

// ImageService implements [caisson.Images]: the image driver pulls and unpacks images, and the store records which accounts the
// images belong to.
type ImageService struct {
	driver   Images // pulls and unpacks images
	images   caisson.Table[caisson.Image]
	accounts caisson.AccountStore // accounts with their host uids
	users    rootfsUsers          // finds the objects that use root file systems
	catalog  catalog              // reads templates, including the built-in one
	events   caisson.Publisher
}

var _ caisson.Images = (*ImageService)(nil)

// image returns an image of the caller's account. It pulls an image that is not present, but returns NotFound for a host path.
func (s *ImageService) image(ctx context.Context, ref string) (*caisson.Image, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	name, err := s.driver.Canonical(ref)
	if err != nil {
		return nil, err
	}
	if name == "host" {
		return s.driver.Host(ctx)
	}
	img, err := s.images.Update(ctx, in, name, func(i *caisson.Image) error {
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
	if progress == nil {
		progress = func(caisson.Progress) {}
	}
	caller, err := caisson.CallerOf(ctx)
	if err == nil && req.Source != nil && !caller.Local {
		err = caisson.Errorf(caisson.Denied, "host paths are accepted only over the unix socket")
	}
	var name string
	if err == nil {
		name, err = s.driver.Canonical(req.Reference)
	}
	if req.Source != nil && (err != nil || name == "host") {
		req.Source.Close()
	}
	if err != nil {
		return nil, err
	}
	if name == "host" {
		return s.driver.Host(ctx)
	}
	defer s.driver.ProtectLayers()()
	if isPath(name) && req.Source == nil {
		// If the client sent no descriptor of the path, the image that was imported from this path before is returned.
		return s.images.Get(ctx, caisson.In(caller.Account), name)
	}
	req.Local = caller.MayUseHost()
	img, err := s.driver.Pull(ctx, req, caller.Account, progress)
	if err != nil {
		return nil, err
	}
	if _, err := s.accounts.Ensure(ctx, caller.Account); err != nil {
		return nil, err
	}
	img.Reference, img.Account, img.UsedAt = name, caller.Account, now()
	if img.CreatedAt.IsZero() {
		img.CreatedAt = now()
	}
	stored, err := insertOrChange(ctx, s.images, img.Account, name, img, func(old *caisson.Image) error {
		*old = *img
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.events.Publish(ctx, caller.Account, "image.pulled", name, map[string]string{"digest": img.Digest})
	return stored, nil
}

// ListImages implements [caisson.Images].
func (s *ImageService) ListImages(ctx context.Context) ([]*caisson.Image, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	host, err := s.driver.Host(ctx)
	if err != nil {
		return nil, err
	}
	list, err := caisson.ListAll(ctx, s.images, in, imageKey)
	return append([]*caisson.Image{host}, list...), err
}

// RemoveImage implements [caisson.Images].
func (s *ImageService) RemoveImage(ctx context.Context, ref string) error {
	in, caller, err := caisson.ScopeOf(ctx)
	if err != nil {
		return err
	}
	name, err := s.driver.Canonical(ref)
	if err != nil {
		return err
	}
	if name == "host" {
		return caisson.Errorf(caisson.Denied, "the host's image cannot be removed")
	}
	img, err := s.images.Get(ctx, in, name)
	if err != nil {
		return err
	}
	used, err := s.users.byDigest(ctx, in)
	if err != nil {
		return err
	}
	if by := used[img.Rootfs.Digest]; by != "" {
		return caisson.Errorf(caisson.Conflict, "image %.100q is used by %s; remove that first", name, by)
	}
	if err := s.images.Delete(ctx, in, name); err != nil {
		return err
	}
	s.events.Publish(ctx, caller.Account, "image.removed", name, nil)
	return nil
}

// rootfsUsers finds the objects that use root file systems.
type rootfsUsers struct {
	sandboxes caisson.Table[caisson.Sandbox]
	snapshots caisson.Table[caisson.Snapshot]
	templates caisson.Table[caisson.Template]
}

// byDigest returns, for each root file system that is in use, the description of an object that uses it. The keys are the digests
// of the root file systems; the descriptions are for messages.
func (u rootfsUsers) byDigest(ctx context.Context, in caisson.Scope) (map[string]string, error) {
	used := map[string]string{}
	err := u.each(ctx, in, func(r caisson.Rootfs, by string) { used[r.Digest] = by })
	return used, err
}

// each calls f for every root file system that an object other than an image uses.
func (u rootfsUsers) each(ctx context.Context, in caisson.Scope, f func(r caisson.Rootfs, by string)) error {
	boxes, err := caisson.ListAll(ctx, u.sandboxes, in, sandboxID)
	if err != nil {
		return err
	}
	for _, s := range boxes {
		f(s.Rootfs, "sandbox "+string(s.ID))
	}
	snaps, err := caisson.ListAll(ctx, u.snapshots, in, snapshotID)
	if err != nil {
		return err
	}
	for _, s := range snaps {
		f(s.Rootfs, "snapshot "+string(s.ID))
	}
	tpls, err := caisson.ListAll(ctx, u.templates, in, templateKey)
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

// PruneImages implements [caisson.Images]. It removes the caller's images that no sandbox, snapshot or template uses, and the
// layers that no image and no other object of any account uses.
func (s *ImageService) PruneImages(ctx context.Context) (caisson.Size, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return 0, err
	}
	used, err := s.users.byDigest(ctx, in)
	if err != nil {
		return 0, err
	}
	tpls, err := s.catalog.list(ctx, in)
	if err != nil {
		return 0, err
	}
	imgs, err := caisson.ListAll(ctx, s.images, in, imageKey)
	if err != nil {
		return 0, err
	}
	for _, img := range imgs {
		named := slices.ContainsFunc(tpls, func(t *caisson.Template) bool {
			ref, err := s.driver.Canonical(t.Image)
			return err == nil && ref == img.Reference
		})
		if used[img.Rootfs.Digest] != "" || named {
			continue
		}
		if err := caisson.IgnoreNotFound(s.images.Delete(ctx, in, img.Reference)); err != nil {
			return 0, err
		}
	}
	return s.pruneLayers(ctx)
}

// pruneLayers removes the layers that no image and no object of any account uses.
func (s *ImageService) pruneLayers(ctx context.Context) (caisson.Size, error) {
	keep, err := s.layersInUse(ctx)
	if err != nil {
		return 0, err
	}
	return s.driver.Prune(ctx, func(dir string) bool { return keep[dir] })
}

// layersInUse returns the directories of the layers that images and other objects of any account use.
func (s *ImageService) layersInUse(ctx context.Context) (map[string]bool, error) {
	keep := map[string]bool{}
	note := func(r caisson.Rootfs, _ string) {
		for _, l := range r.Layers {
			keep[l] = true
		}
	}
	if err := s.users.each(ctx, caisson.AllAccounts(), note); err != nil {
		return nil, err
	}
	imgs, err := caisson.ListAll(ctx, s.images, caisson.AllAccounts(), imageKey)
	if err != nil {
		return nil, err
	}
	for _, i := range imgs {
		note(i.Rootfs, "")
	}
	host, err := s.driver.Host(ctx)
	if err != nil {
		return nil, err
	}
	note(host.Rootfs, "")
	return keep, nil
}
