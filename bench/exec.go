package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor"
)

// execAPI compares ways to execute a program that does nothing: with one HTTP request, over a WebSocket, in-process through the
// package runtime/gvisor, and with a process of runsc.
func (s *suite) execAPI(ctx context.Context) error {
	id, err := s.create(ctx)
	if err != nil {
		return err
	}
	rt, err := s.openRuntime(s.daemon)
	if err != nil {
		return err
	}
	bare, err := s.baseline.bundle(ctx)
	if err == nil {
		err = s.baseline.start(ctx, bare)
	}
	if err != nil {
		return errors.Join(err, rt.Close())
	}
	all, err := compare(ctx, 5*s.N,
		operation{do: func(ctx context.Context) error { return s.exec(ctx, id) }},
		operation{do: func(ctx context.Context) error {
			p, err := s.api.Exec(ctx, id, caisson.ExecRequest{Command: []string{program}})
			return finish(ctx, p, err)
		}},
		operation{do: func(ctx context.Context) error {
			p, err := rt.Exec(ctx, caisson.ID(id), caisson.RuntimeExec{Command: []string{program}})
			return finish(ctx, p, err)
		}},
		operation{do: func(ctx context.Context) error { return s.baseline.exec(ctx, bare) }},
	)
	if err := errors.Join(err, rt.Close(), s.baseline.remove(ctx, bare), s.api.Remove(ctx, id)); err != nil {
		return err
	}
	s.add(newRow("exec.api", "ms", all[0], "runsc exec", all[3]).atMostTimes(0.6))
	s.add(newRow("exec.api.overhead", "ms", all[0], "runtime/gvisor in-process", all[2]).atMostOver(1))
	s.add(newRow("exec.api.stream", "ms", all[1], "runsc exec", all[3]).atMostTimes(0.6))
	s.add(newRow("exec.api.stream.overhead", "ms", all[1], "runtime/gvisor in-process", all[2]).atMostOver(1))
	return nil
}

// openRuntime returns a runtime in this process that has the sandboxes of a daemon. Opening it does not change the sandboxes.
func (s *suite) openRuntime(d *daemon) (*gvisor.Runtime, error) {
	instance, err := os.ReadFile(filepath.Join(d.dir, "instance"))
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Config{
		Dir: filepath.Join(d.dir, "sandboxes"), ToolsDir: filepath.Join(s.Dir, "tools"), Cgroup: "/caisson/" + string(bytes.TrimSpace(instance)),
		Build:    "bench",
		Programs: gvisor.Programs{Exe: filepath.Join(s.Bin, "caisson-sentry"), Guestd: filepath.Join(s.Bin, "caisson-guestd")},
	})
}

// finish reads the output of a process to its end and waits for the process. err is the error of its start, which finish returns.
func finish(ctx context.Context, p caisson.Process, err error) error {
	if err != nil {
		return err
	}
	defer p.Close()
	for _, r := range []io.Reader{p.Stdout(), p.Stderr()} {
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
	}
	status, err := p.Wait(ctx)
	if err == nil && !status.Success() {
		err = fmt.Errorf("%s %s", program, status)
	}
	return err
}
