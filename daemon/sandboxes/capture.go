package sandboxes

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// capturer writes the state of sandboxes, for snapshots and forks.
type capturer struct {
	runtime interface {
		fileSaver
		Checkpoint(ctx context.Context, id caisson.ID, dir string, keep bool) error
	}
	freezer    *freezer
	clients    *fileClients
	workspaces *workspaceManager
	dirs       dataDir
}

// captureAll writes the current state of a sandbox, including the changes in its workspace, to the new directory dir.
// The caller must hold the sandbox's lock.
func (c *capturer) captureAll(ctx context.Context, sb *caisson.Sandbox, dir string, memory bool) error {
	if sb.Spec.Workspace == "" {
		return c.capture(ctx, sb, dir, memory)
	}
	return writeDir(dir, func(part string) error {
		both := func() error {
			if err := c.writeCapture(ctx, sb, part, memory); err != nil {
				return err
			}
			return c.workspaces.capture(ctx, sb, part)
		}
		if sb.State == caisson.Running {
			return c.whileFrozen(ctx, sb.ID, both)
		}
		return both()
	})
}

// capture writes the current state of a sandbox, without its workspace, to the new directory dir. Returns a Conflict
// error if the placeholder for workspaces contains files. The caller must hold the sandbox's lock.
func (c *capturer) capture(ctx context.Context, sb *caisson.Sandbox, dir string, memory bool) error {
	return writeDir(dir, func(part string) error {
		if err := c.writeCapture(ctx, sb, part, memory); err != nil {
			return err
		}
		return c.workspaces.checkPlaceholderEmpty(sb)
	})
}

// writeCapture writes a sandbox's files and, if memory is true, its memory to the directory part.
func (c *capturer) writeCapture(ctx context.Context, sb *caisson.Sandbox, part string, memory bool) error {
	if sb.State == caisson.Paused {
		// This includes the dependencies file: it records what the sandbox was started on before the pause, not the
		// current build and host.
		return linkCheckpoint(c.dirs.sandboxPath(sb.ID, pauseDir), part, memory)
	}
	tar := filepath.Join(part, filesTar)
	var err error
	switch {
	case sb.State == caisson.Running && memory:
		if err = c.runtime.Checkpoint(ctx, sb.ID, part, true); err != nil {
			err = errors.Join(err, c.freezer.thawOrSuspend(ctx, sb.ID)) // The sandbox may be frozen despite the error.
		}
	case sb.State == caisson.Running:
		err = writeFile(tar, func(f *os.File) error { return c.runtime.SaveFiles(ctx, sb.ID, f) })
	default:
		err = linkFile(c.dirs.sandboxPath(sb.ID, filesTar), tar)
	}
	if err != nil {
		return err
	}
	return copyDepends(c.dirs.sandboxDir(sb.ID), part)
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

// whileFrozen calls do while a running sandbox is frozen, so that do captures the state at a single instant.
func (c *capturer) whileFrozen(ctx context.Context, id caisson.ID, do func() error) error {
	c.clients.drop(id) // A frozen sandbox does not reply to its file client.
	err := c.freezer.freeze(ctx, id)
	if err == nil {
		err = do()
	}
	return errors.Join(err, c.freezer.thawOrSuspend(ctx, id))
}
