package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/caisson-dev/caisson"
)

// FilesName is the file in a checkpoint's directory with the changes to the root file system, as SaveFiles writes them: what
// remains of the checkpoint where its memory cannot be restored.
const FilesName = "files.tar"

// Checkpoint implements [caisson.Checkpointer]. Memory is written without compression: a restore can then map pages as
// they are needed. Files and memory are of one instant because the guest stands still.
func (r *Runtime) Checkpoint(ctx context.Context, id caisson.ID, dir string, keep bool) error {
	s, err := r.getRunning(id)
	if err != nil {
		return err
	}
	return s.whileFrozen(ctx, !keep, func() error { return s.capture(ctx, dir) })
}

// capture writes files and memory into dir.
func (s *sandbox) capture(ctx context.Context, dir string) error {
	files, err := os.OpenFile(filepath.Join(dir, FilesName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer files.Close()
	if err := s.saveFiles(ctx, files); err != nil {
		return err
	}
	opts := &control.SaveOpts{
		Metadata: statefile.CompressionLevelNone.ToMetadata(), HavePagesFile: true, Resume: true,
		// A page of zeroes costs nothing in memory and need not be on disk.
		AppMFExcludeCommittedZeroPages: true,
	}
	var out []*os.File
	defer func() {
		for _, f := range out {
			f.Close()
		}
	}()
	for _, name := range []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		out = append(out, f)
	}
	if err := s.call(ctx, boot.ContMgrCheckpoint, opts, nil, out...); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// Restore implements [caisson.Checkpointer].
func (r *Runtime) Restore(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, dir string) error {
	spec.Files = "" // they are in the checkpoint
	return r.launch(ctx, id, spec, dir)
}

// SaveFiles implements [caisson.Checkpointer].
func (r *Runtime) SaveFiles(ctx context.Context, id caisson.ID, w *os.File) error {
	s, err := r.getRunning(id)
	if err != nil {
		return err
	}
	return s.saveFiles(ctx, w)
}

func (s *sandbox) saveFiles(ctx context.Context, w *os.File) error {
	opts := &control.TarRootfsUpperLayerOpts{ContainerID: string(s.id)}
	if err := s.call(ctx, boot.FsTarRootfsUpperLayer, opts, nil, w); err != nil {
		return fmt.Errorf("save files: %w", err)
	}
	return nil
}
