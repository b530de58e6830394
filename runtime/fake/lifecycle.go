package fake

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
)

// treeName is the name of the root file system's directory in the sandbox's directory on the host.
const treeName = "root"

// Create implements [caisson.Runtime].
func (r *Runtime) Create(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec) error {
	if err := r.takeFault(OpCreate); err != nil {
		return err
	}
	return r.createSandbox(ctx, id, spec, func(s *sandbox) error { return s.boot() })
}

// createSandbox creates a sandbox and calls boot to start its processes. On error, it removes everything it has created.
func (h *sharedState) createSandbox(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, boot func(*sandbox) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := h.reserve(id, spec.Dir); err != nil {
		return err
	}
	s := &sandbox{
		id: id, spec: spec, programs: h.programs, started: time.Now(),
		done: make(chan struct{}), running: true, table: map[int]*Proc{}, lastPID: commandPID,
	}
	defer func() {
		if err == nil {
			return
		}
		s.shutdown("")
		s.goroutines.Wait()
		s.free()
		_ = os.RemoveAll(filepath.Join(spec.Dir, treeName))
		_ = h.forget(id)
	}()
	if s.out, err = newOutput(spec.Stdout); err != nil {
		return caisson.Wrap(err, caisson.Invalid, "cannot use the given standard output")
	}
	if s.errOut, err = newOutput(spec.Stderr); err != nil {
		return caisson.Wrap(err, caisson.Invalid, "cannot use the given standard error")
	}
	if s.tree, err = newTree(filepath.Join(spec.Dir, treeName), &s.spec); err != nil {
		if caisson.KindOf(err) != caisson.Internal {
			return err
		}
		return caisson.Wrap(err, caisson.Internal, "cannot assemble the root file system")
	}
	if err := s.tree.loadArchive(spec.Files); err != nil {
		return err
	}
	if err := boot(s); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sandboxes[id] = s
	s.flushPeriodically()
	return nil
}

// loadArchive applies the archive at path to the tree. It does nothing if path is "".
func (t *tree) loadArchive(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "cannot open the saved files")
	}
	defer f.Close()
	return caisson.Wrap(t.load(f), caisson.Internal, "cannot apply the saved files")
}

// Destroy implements [caisson.Runtime].
func (r *Runtime) Destroy(ctx context.Context, id caisson.ID) error {
	if err := r.takeFault(OpDestroy); err != nil {
		return err
	}
	r.mu.Lock()
	s, dir := r.sandboxes[id], r.remains[id]
	r.mu.Unlock()
	if s != nil {
		dir = s.spec.Dir
		s.shutdown("the sandbox was destroyed")
		gone := make(chan struct{})
		go func() { s.goroutines.Wait(); close(gone) }()
		select {
		case <-gone:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.free()
	}
	if dir == "" {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(dir, treeName)); err != nil {
		return caisson.Wrap(err, caisson.Internal, "cannot remove the files of sandbox %s", id)
	}
	return caisson.Wrap(r.forget(id), caisson.Internal, "cannot remove the record of sandbox %s", id)
}

// shutdown stops the sandbox if it is running. reason becomes the reason of its processes' exit status.
func (s *sandbox) shutdown(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop(caisson.ExitStatus{Code: -1, Unknown: true, Reason: reason})
}

// free closes the sandbox's descriptors. No process of the sandbox may be running.
func (s *sandbox) free() {
	s.freed.Do(func() {
		if s.out != nil {
			s.out.release()
		}
		if s.errOut != nil {
			s.errOut.release()
		}
		if s.tree != nil {
			s.tree.close()
		}
	})
}

// alive reports whether the sandbox is running; a frozen sandbox is running too.
func (s *sandbox) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}
