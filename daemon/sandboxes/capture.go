package sandboxes

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// captureAll writes the current state of a sandbox, including the changes in its workspace, to the new directory dir.
// The caller must hold the sandbox's lock.
func (s *Snapshots) captureAll(ctx context.Context, sb *caisson.Sandbox, dir string, memory bool) error {
	if sb.Spec.Workspace == "" {
		return s.capture(ctx, sb, dir, memory)
	}
	return writeDir(dir, func(part string) error {
		both := func() error {
			if err := s.writeCapture(ctx, sb, part, memory); err != nil {
				return err
			}
			return s.c.workspaces.capture(ctx, sb, part)
		}
		if sb.State == caisson.Running {
			return s.whileFrozen(ctx, sb.ID, both)
		}
		return both()
	})
}

// capture writes the current state of a sandbox, without its workspace, to the new directory dir. Returns a Conflict
// error if the placeholder for workspaces contains files. The caller must hold the sandbox's lock.
func (s *Snapshots) capture(ctx context.Context, sb *caisson.Sandbox, dir string, memory bool) error {
	return writeDir(dir, func(part string) error {
		if err := s.writeCapture(ctx, sb, part, memory); err != nil {
			return err
		}
		return s.c.workspaces.checkPlaceholderEmpty(sb)
	})
}

// writeCapture writes a sandbox's files and, if memory is true, its memory to the directory part.
func (s *Snapshots) writeCapture(ctx context.Context, sb *caisson.Sandbox, part string, memory bool) error {
	if sb.State == caisson.Paused {
		// This includes the dependencies file: it records what the sandbox was started on before the pause, not the
		// current build and host.
		return linkCheckpoint(s.c.inDir(sb.ID, pauseDir), part, memory)
	}
	tar := filepath.Join(part, filesTar)
	var err error
	switch {
	case sb.State == caisson.Running && memory:
		if err = s.c.Runtime.Checkpoint(ctx, sb.ID, part, true); err != nil {
			err = errors.Join(err, s.c.freezer.thawOrSuspend(ctx, sb.ID)) // The sandbox may be frozen despite the error.
		}
	case sb.State == caisson.Running:
		err = writeFile(tar, func(f *os.File) error { return s.c.Runtime.SaveFiles(ctx, sb.ID, f) })
	default:
		err = linkFile(s.c.inDir(sb.ID, filesTar), tar)
	}
	if err != nil {
		return err
	}
	return copyDepends(s.c.sandboxDir(sb.ID), part)
}

// linkCheckpoint creates the same checkpoint in another directory. Checkpoints are immutable, so their files can be
// shared.
func linkCheckpoint(from, to string, memory bool) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !memory && e.Name() != filesTar && e.Name() != dependsFile {
			continue
		}
		if err := linkFile(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// whileFrozen calls do while a running sandbox is frozen, so that do captures one point in time.
func (s *Snapshots) whileFrozen(ctx context.Context, id caisson.ID, do func() error) error {
	s.c.fileClients.drop(id) // A frozen sandbox does not reply to it.
	err := s.c.freezer.freeze(ctx, id)
	if err == nil {
		err = do()
	}
	return errors.Join(err, s.c.freezer.thawOrSuspend(ctx, id))
}
