package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// sandboxPair contains the ids of two idle sandboxes to compare: one of Caisson, and one made with runsc, gVisor's command line.
type sandboxPair struct{ caissonID, runscID string }

// makePair creates an idle sandbox with Caisson and one with gVisor's command line.
func (s *suite) makePair(ctx context.Context) (p sandboxPair, err error) {
	if p.caissonID, err = s.create(ctx); err != nil {
		return p, err
	}
	if p.runscID, err = s.baseline.bundle(ctx); err != nil {
		return p, err
	}
	return p, s.baseline.start(ctx, p.runscID)
}

// removePair removes the sandboxes of a pair.
func (s *suite) removePair(ctx context.Context, p sandboxPair) error {
	return errors.Join(s.api.Remove(ctx, p.caissonID), s.baseline.remove(ctx, p.runscID))
}

// snapshotSmall compares snapshots of an idle sandbox, which keeps running, with checkpoints by gVisor's command line.
// Caisson's snapshot is durable when the request returns, and includes the changed files as a separate archive.
func (s *suite) snapshotSmall(ctx context.Context) error {
	p, err := s.makePair(ctx)
	if err != nil {
		return err
	}
	var snap string
	image := filepath.Join(s.baseline.dir, "image")
	all, err := compare(ctx, s.N,
		operation{
			do: func(ctx context.Context) error {
				got, err := s.api.Snapshot(ctx, p.caissonID, caisson.SnapshotRequest{})
				if err == nil {
					snap = string(got.ID)
				}
				return err
			},
			after: func(ctx context.Context) error { return s.api.RemoveSnapshot(ctx, snap) },
		},
		operation{
			do:    func(ctx context.Context) error { return s.baseline.checkpoint(ctx, p.runscID, image) },
			after: func(context.Context) error { return os.RemoveAll(image) },
		},
	)
	if err := errors.Join(err, s.removePair(ctx, p)); err != nil {
		return err
	}
	s.add(newRow("snapshot.small", "ms", all[0], "runsc checkpoint", all[1]).under(60))
	return nil
}

// forkSmall compares the time until a fork of a snapshot, or of a running sandbox, is running with the time in which gVisor's
// command line restores a sandbox. When a fork is running, Caisson has already executed a process in it.
func (s *suite) forkSmall(ctx context.Context) error {
	p, err := s.makePair(ctx)
	if err != nil {
		return err
	}
	image, second := filepath.Join(s.baseline.dir, "image"), filepath.Join(s.baseline.dir, "image2")
	if err := s.baseline.checkpoint(ctx, p.runscID, image); err != nil {
		return err
	}
	snap, err := s.api.Snapshot(ctx, p.caissonID, caisson.SnapshotRequest{})
	if err != nil {
		return err
	}
	var fork, restored string
	ours := func(ref string) operation {
		return operation{
			do: func(ctx context.Context) error {
				forks, err := s.api.Fork(ctx, ref, caisson.ForkRequest{})
				if err == nil {
					fork = string(forks[0].ID)
				}
				return err
			},
			after: func(ctx context.Context) error { return s.api.Remove(ctx, fork) },
		}
	}
	bundle := func(ctx context.Context) (err error) { restored, err = s.baseline.bundle(ctx); return err }
	all, err := compare(ctx, s.N,
		ours(string(snap.ID)),
		operation{
			before: bundle,
			do:     func(ctx context.Context) error { return s.baseline.restore(ctx, restored, image) },
			after:  func(ctx context.Context) error { return s.baseline.remove(ctx, restored) },
		},
		ours(p.caissonID),
		operation{
			before: bundle,
			do: func(ctx context.Context) error {
				if err := s.baseline.checkpoint(ctx, p.runscID, second); err != nil {
					return err
				}
				return s.baseline.restore(ctx, restored, second)
			},
			after: func(ctx context.Context) error {
				return errors.Join(s.baseline.remove(ctx, restored), os.RemoveAll(second))
			},
		},
	)
	if err := errors.Join(err, s.api.RemoveSnapshot(ctx, string(snap.ID)), os.RemoveAll(image), s.removePair(ctx, p)); err != nil {
		return err
	}
	s.add(newRow("fork.small", "ms", all[0], "runsc restore -detach", all[1]).under(120))
	s.add(newRow("fork.small.running", "ms", all[2], "runsc checkpoint, restore", all[3]).under(120))
	return nil
}
