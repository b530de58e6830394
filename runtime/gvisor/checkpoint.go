package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// FilesName is the name of the file in a checkpoint's directory with the changes to the root file system, as a tar archive. The
// file can be used without the memory if the memory cannot be restored.
const FilesName = "files.tar"

// Checkpoint implements [caisson.Checkpointer]. Memory is written without compression, so that a restore can load pages on
// demand. Files and memory are consistent, because the sandbox is frozen meanwhile.
func (r *Runtime) Checkpoint(ctx context.Context, id caisson.ID, dir string, keep bool) error {
	s, err := r.getRunning(id)
	if err != nil {
		return err
	}
	return s.whileFrozen(ctx, !keep, func() error { return s.capture(ctx, dir) })
}

// capture writes the sandbox's files and memory to new files in dir. The sandbox must be frozen.
func (s *sandbox) capture(ctx context.Context, dir string) error {
	if err := endConnections(ctx, s); err != nil {
		return err
	}
	files, err := os.OpenFile(filepath.Join(dir, FilesName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer files.Close()
	if err := s.saveFiles(ctx, files); err != nil {
		return err
	}
	opts := &protocol.SaveOpts{
		Metadata: map[string]string{protocol.CompressionKey: protocol.CompressionNone}, HavePagesFile: true, Resume: true,
		AppMFExcludeCommittedZeroPages: true,
	}
	var out []*os.File
	defer func() {
		for _, f := range out {
			f.Close()
		}
	}()
	for _, name := range []string{protocol.StateFile, protocol.PagesMetadataFile, protocol.PagesFile} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		out = append(out, f)
	}
	if err := s.call(ctx, protocol.MethodCheckpoint, opts, nil, out...); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// Restore implements [caisson.Checkpointer].
func (r *Runtime) Restore(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, dir string) error {
	spec.Files = "" // the checkpoint contains the files
	err := r.launch(ctx, id, spec, dir)
	// gVisor reopens open files and working directories by path. gVisor's errors have no codes, so their text is compared.
	if err != nil && caisson.KindOf(err) == caisson.Internal && strings.Contains(err.Error(), "failed to walk") &&
		slices.ContainsFunc(spec.Mounts, func(m caisson.RuntimeMount) bool { return m.Overlay != nil }) {
		return caisson.Wrap(err, caisson.Conflict, "a process has an open file or its working directory in the workspace, and the directory given instead does not have it; end it before the snapshot, or let it leave the workspace")
	}
	return err
}

// SaveFiles implements [caisson.Checkpointer].
func (r *Runtime) SaveFiles(ctx context.Context, id caisson.ID, w *os.File) error {
	s, err := r.getRunning(id)
	if err != nil {
		return err
	}
	return s.saveFiles(ctx, w)
}

// saveFiles writes an archive of the changes to the root file system to w. The sentry gets a pipe instead of w: this
// enforces the size limit even if that process is compromised, and it cannot keep a descriptor of the saved file.
func (s *sandbox) saveFiles(ctx context.Context, w *os.File) error {
	pr, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	defer pr.Close()
	defer s.raiseMemoryLimit()()
	copied := make(chan error, 1)
	go func() {
		err := copySparse(w, pr, s.saveLimit())
		if err != nil {
			pr.Close() // writes of the sentry then fail instead of blocking
		}
		copied <- err
	}()
	opts := &protocol.TarOpts{ContainerID: string(s.id)}
	callErr := s.call(ctx, protocol.MethodTarRootfs, opts, nil, pw)
	pw.Close()
	if callErr != nil {
		pr.SetReadDeadline(time.Now().Add(time.Second)) // no EOF comes if the sentry keeps its end of the pipe open
	}
	if err := <-copied; caisson.KindOf(err) == caisson.Exhausted || callErr == nil {
		return err
	}
	return fmt.Errorf("save files: %w", callErr)
}

// saveSlack is the number of bytes by which an archive may exceed the disk limit, for headers and for holes, which the archive
// contains as zeroes.
const saveSlack = 1 << 30

// saveLimit returns the maximum size in bytes of an archive of the sandbox's files: the disk limit or the default, and saveSlack.
func (s *sandbox) saveLimit() int64 {
	if s.state.Disk == 0 {
		return int64(caisson.DefaultResources().Disk) + saveSlack
	}
	return int64(s.state.Disk) + saveSlack
}

// copySparse copies r to the empty file w and leaves holes for blocks of zeroes, because gVisor writes the holes of sparse
// files as zeroes. Returns Exhausted for more than limit bytes or if the disk is full.
func copySparse(w *os.File, r io.Reader, limit int64) error {
	const block = 64 << 10
	buf, zero := make([]byte, block), make([]byte, block)
	var size int64
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if size += int64(n); size > limit {
				return caisson.Errorf(caisson.Exhausted, "the sandbox's files are larger than its disk limit allows (sparse files count with their full size); remove some of them")
			}
			if bytes.Equal(buf[:n], zero[:n]) {
				_, err := w.Seek(int64(n), io.SeekCurrent)
				if err != nil {
					return err
				}
			} else if _, err := w.Write(buf[:n]); err != nil {
				return durable.DiskFull(err)
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return w.Truncate(size)
		case err != nil:
			return err
		}
	}
}
