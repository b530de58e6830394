package volumes

import (
	"context"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// Service implements [caisson.Volumes].
type Service struct{ c *Core }

var _ caisson.Volumes = (*Service)(nil)

// maxVolumes is the maximum number of volumes of an account. A client can also create a volume by naming it in a request for a
// sandbox.
const maxVolumes = 1000

// CreateVolume implements [caisson.Volumes].
func (s *Service) CreateVolume(ctx context.Context, req caisson.VolumeRequest) (*caisson.Volume, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(caisson.CheckVolumeName("name", req.Name), caisson.CheckLabels("labels", req.Labels)); err != nil {
		return nil, err
	}
	return s.c.create(ctx, caller.Account, req)
}

// create creates a volume of an account. The caller has checked the name and the labels.
func (c *Core) create(ctx context.Context, account string, req caisson.VolumeRequest) (*caisson.Volume, error) {
	release, err := c.createLocks.Acquire(ctx, account)
	if err != nil {
		return nil, err
	}
	defer release()
	list, _, err := c.Store.Volumes().List(ctx, caisson.In(account), caisson.Filter{Limit: maxVolumes})
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		if v.Name == req.Name {
			return nil, caisson.Errorf(caisson.Conflict, "a volume named %s exists already; choose another name or remove it first", v.Name)
		}
	}
	if len(list) >= maxVolumes {
		return nil, caisson.Errorf(caisson.Exhausted, "the account has %d volumes, which is the maximum; remove some", len(list))
	}
	a, err := c.Store.Accounts().Ensure(ctx, account)
	if err != nil {
		return nil, err
	}
	v := &caisson.Volume{ID: caisson.NewID(caisson.VolumePrefix), Account: account, Name: req.Name, Labels: req.Labels, CreatedAt: now()}
	// The directory is created first, so that every volume in the store is complete. Cancellation by the caller is ignored from
	// here on, because it would leave the volume half-made.
	ctx = context.WithoutCancel(ctx)
	if err := c.makeDir(v.ID, a.UIDBase); err != nil {
		return nil, errors.Join(err, c.removeDir(ctx, string(v.ID)))
	}
	if err := c.Store.Volumes().Insert(ctx, v); err != nil {
		return nil, errors.Join(err, c.removeDir(ctx, string(v.ID)))
	}
	c.event(ctx, v, "volume.created", "")
	return v, nil
}

// GetVolume implements [caisson.Volumes].
func (s *Service) GetVolume(ctx context.Context, ref string) (*caisson.Volume, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	v, err := s.c.Store.Volumes().Get(ctx, in, ref)
	if err != nil {
		return nil, err
	}
	return s.c.recount(ctx, v), nil
}

// ListVolumes implements [caisson.Volumes].
func (s *Service) ListVolumes(ctx context.Context, f caisson.Filter) ([]*caisson.Volume, bool, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, false, err
	}
	return s.c.Store.Volumes().List(ctx, in, f)
}

// removeWait is how long RemoveVolume waits for the files to be removed. The record of the volume is deleted before the wait.
const removeWait = 2 * time.Second

// RemoveVolume implements [caisson.Volumes]. Its files may be removed later, in the background; no sandbox can access them any
// more.
func (s *Service) RemoveVolume(ctx context.Context, ref string) error {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return err
	}
	v, err := s.c.Store.Volumes().Get(ctx, in, ref)
	if err != nil {
		return err
	}
	if err := s.c.deleteRecord(ctx, in, v.ID); err != nil {
		return err
	}
	s.c.event(ctx, v, "volume.removed", "")
	s.c.counts.forget(v.ID)
	done := make(chan struct{})
	ok := s.c.background.Start(func(ctx context.Context) {
		defer close(done)
		if err := s.c.removeDir(ctx, string(v.ID)); err != nil && ctx.Err() == nil {
			s.c.Log.ErrorContext(ctx, "the files of a removed volume could not be removed; the next start of the daemon tries again", "volume", v.ID, "err", err)
		}
	})
	if !ok {
		return nil // Reconcile removes the directory at the next start of the daemon
	}
	select {
	case <-done:
	case <-time.After(removeWait):
	case <-ctx.Done():
	}
	return nil
}

// deleteRecord deletes the record of a volume that is not attached. From then on, its directory is garbage.
func (c *Core) deleteRecord(ctx context.Context, in caisson.Scope, id caisson.ID) error {
	release, err := c.locks.Acquire(ctx, string(id))
	if err != nil {
		return err
	}
	defer release()
	if err := c.detachIfSandboxGone(ctx, id); err != nil {
		return err
	}
	v, err := c.Store.Volumes().Get(ctx, in, string(id)) // read again: a sandbox may have attached the volume in the meantime
	if err != nil {
		return err
	}
	if v.Sandbox != "" {
		return caisson.Errorf(caisson.Conflict, "sandbox %s has volume %s; remove the sandbox first (caisson sandbox rm %s)", v.Sandbox, v.Name, v.Sandbox)
	}
	return c.Store.Volumes().Delete(ctx, in, string(id))
}
