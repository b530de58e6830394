package sandboxes

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// captures writes captures of sandboxes, for snapshots and forks.
type captures struct {
	runtime interface {
		fileSaver
		Checkpoint(ctx context.Context, id caisson.ID, dir string, keep bool) error
	}
	freezer    *freezer     // freezes and thaws sandboxes
	clients    *fileClients // clients that access files in sandboxes
	workspaces *workspaces  // workspaces and volumes of sandboxes
	dirs       dirs         // paths and files in the data directory
}

// captureAll writes a capture of a sandbox, including the changes in its workspace, to the new directory dir. The capture
// contains the sandbox's memory if memory is true. The caller must hold the sandbox's lock.
func (c *captures) captureAll(ctx context.Context, sb *caisson.Sandbox, dir string, memory bool) error {
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

// capture writes a capture of a sandbox, without its workspace, to the new directory dir. The capture contains the sandbox's
// memory if memory is true. Returns a Conflict error if the sandbox's placeholder for a workspace contains files. The caller must
// hold the sandbox's lock.
func (c *captures) capture(ctx context.Context, sb *caisson.Sandbox, dir string, memory bool) error {
	return writeDir(dir, func(part string) error {
		if err := c.writeCapture(ctx, sb, part, memory); err != nil {
			return err
		}
		return c.workspaces.checkPlaceholderEmpty(sb)
	})
}

// writeCapture writes a sandbox's files and, if memory is true, its memory to the existing directory part.
func (c *captures) writeCapture(ctx context.Context, sb *caisson.Sandbox, part string, memory bool) error {
	if sb.State == caisson.Paused {
		// This links the file with the memory's dependencies, too: the memory depends on the build and the host from before the
		// pause, and not on the current ones.
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

// linkCheckpoint links the files of the checkpoint in the directory from into the directory to. If memory is false, it omits the
// memory. Checkpoints are immutable, so their files can be shared.
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

// whileFrozen freezes a running sandbox, calls do and thaws the sandbox again, so that do captures the state at a single instant.
func (c *captures) whileFrozen(ctx context.Context, id caisson.ID, do func() error) error {
	c.clients.drop(id) // A frozen sandbox does not reply to its file client.
	err := c.freezer.freeze(ctx, id)
	if err == nil {
		err = do()
	}
	return errors.Join(err, c.freezer.thawOrSuspend(ctx, id))
}
