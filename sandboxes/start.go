package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// source is what a sandbox's run begins with.
type source struct {
	files string // tar archive of root file system changes, or ""
	image string // checkpoint directory, or "" for a cold start
}

// run brings the processes of a sandbox into being: its wire, then its runtime. On failure nothing of them is left.
func (c *Core) run(ctx context.Context, sb *caisson.Sandbox, from source) (err error) {
	c.dropGuest(sb.ID) // a stand-in from when it did not run
	spec, release, err := c.runtimeSpec(ctx, sb)
	defer release()
	if err != nil {
		return err
	}
	spec.Files = from.files
	if c.Wires != nil {
		netns, err := c.Wires.Attach(ctx, sb.ID)
		if err != nil {
			return fmt.Errorf("attach wire: %w", err)
		}
		defer netns.Close()
		spec.NetNS = netns
	}
	if from.image == "" {
		err = c.Runtime.Create(ctx, sb.ID, spec)
	} else {
		err = c.Runtime.Restore(ctx, sb.ID, spec, from.image)
		if err == nil {
			err = c.probe(ctx, sb)
		}
	}
	if err != nil {
		return errors.Join(err, c.halt(context.WithoutCancel(ctx), sb.ID))
	}
	return nil
}

// halt ends the processes of a sandbox at once and frees what they had on the host.
func (c *Core) halt(ctx context.Context, id caisson.ID) error {
	c.dropGuest(id)
	err := c.Runtime.Destroy(ctx, id)
	if c.Wires != nil {
		err = errors.Join(err, c.Wires.Detach(ctx, id))
	}
	return err
}

// runtimeSpec translates a sandbox for the runtime. release closes what it opened, and may be called in any case.
func (c *Core) runtimeSpec(ctx context.Context, sb *caisson.Sandbox) (spec caisson.RuntimeSpec, release func(), err error) {
	release = func() {}
	account, err := c.Store.Accounts().Get(ctx, sb.Account)
	if err != nil {
		return spec, release, err
	}
	dir := c.sandboxDir(sb.ID)
	rootfs := sb.Rootfs
	rootfs.Layers = append([]string{filepath.Join(dir, etcLayer)}, rootfs.Layers...)
	spec = caisson.RuntimeSpec{
		Hostname: string(sb.ID), UIDBase: account.UIDBase, Rootfs: rootfs, Dir: dir,
		Command: sb.Spec.Command, Env: env(sb.Spec.Env), Workdir: sb.Spec.Workdir, User: sb.Spec.User,
		Resources: sb.Spec.Resources,
	}
	mounts, err := c.openMounts(sb.ID)
	if err != nil {
		return spec, release, err
	}
	spec.Mounts = mounts
	if len(sb.Spec.Command) > 0 {
		// Read-write: the sandbox then holds a reader too, and a daemon that is gone costs it no more than a full pipe.
		out, err := os.OpenFile(filepath.Join(dir, outputFIFO), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			closeMounts(mounts)
			return spec, release, err
		}
		// The guest's writes are to wait for room, not to fail.
		if err := unix.SetNonblock(int(out.Fd()), false); err != nil {
			closeMounts(mounts)
			out.Close()
			return spec, release, err
		}
		spec.Stdout, spec.Stderr = out, out
	}
	return spec, func() {
		closeMounts(mounts)
		if spec.Stdout != nil {
			spec.Stdout.Close()
		}
	}, nil
}

// probeTime bounds how long a restored sandbox may take to run a first process.
const probeTime = 20 * time.Second

// probe tells whether a restored sandbox works. A restore may report success and the sandbox die silently, for example
// where an executable below had been replaced.
func (c *Core) probe(ctx context.Context, sb *caisson.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	p, err := c.Runtime.Exec(ctx, sb.ID, caisson.RuntimeExec{Command: []string{"/.caisson/init", "-"}})
	if err != nil {
		return fmt.Errorf("the restored sandbox does not work: %w", err)
	}
	defer p.Close()
	status, err := p.Wait(ctx)
	if err == nil && !status.Success() {
		err = fmt.Errorf("a first process %s", status)
	}
	if err != nil {
		return fmt.Errorf("the restored sandbox does not work: %w", err)
	}
	return nil
}

// depends is what a memory snapshot taken now depends on.
func (c *Core) depends(sb *caisson.Sandbox) caisson.Dependencies {
	caps := c.Runtime.Capabilities()
	return caisson.Dependencies{Build: c.Build, CPU: caps.CPU, Rootfs: sb.Rootfs.Digest, Platform: caps.Platform}
}

// watch follows a sandbox that has been started: its command's output and end, and its own.
func (c *Core) watch(sb *caisson.Sandbox) {
	ctx, cancel := context.WithCancel(c.ctx)
	c.mu.Lock()
	if end := c.watches[sb.ID]; end != nil {
		end()
	}
	c.watches[sb.ID] = cancel
	c.mu.Unlock()
	if len(sb.Spec.Command) > 0 {
		c.do(func(context.Context) { c.collect(ctx, sb.ID) })
		if sb.Exit == nil {
			c.do(func(context.Context) { c.watchCommand(ctx, sb) })
		}
	}
	done := c.Runtime.Done(sb.ID)
	c.do(func(context.Context) {
		select {
		case <-ctx.Done():
		case <-done:
			c.died(c.ctx, ctx, sb.ID)
		}
	})
}

// unwatch ends the watch before a sandbox is ended on purpose.
func (c *Core) unwatch(id caisson.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if end := c.watches[id]; end != nil {
		end()
		delete(c.watches, id)
	}
}

// watchCommand records how the command ended.
func (c *Core) watchCommand(ctx context.Context, sb *caisson.Sandbox) {
	status, err := c.Runtime.WaitCommand(ctx, sb.ID)
	if err != nil || status.Unknown || ctx.Err() != nil {
		return // the sandbox ended with it, or the watch did
	}
	_, err = c.Store.Sandboxes().Update(ctx, caisson.Everyone(), string(sb.ID), func(s *caisson.Sandbox) error {
		s.Exit = &status
		return nil
	})
	if err != nil {
		c.Log.WarnContext(ctx, "the end of a command could not be stored", "sandbox", sb.ID, "err", err)
		return
	}
	c.event(ctx, sb, "command.ended", map[string]string{"status": status.String()})
}

// died records the end of a sandbox that nobody asked for. What it had written is lost with it.
func (c *Core) died(ctx, watch context.Context, id caisson.ID) {
	release, err := c.locks.acquire(ctx, id)
	if err != nil {
		return
	}
	defer release()
	if watch.Err() != nil {
		return // ended on purpose meanwhile
	}
	reason := "the sandbox ended unexpectedly"
	if status, err := c.Runtime.WaitCommand(ctx, id); err == nil && status.Reason != "" {
		reason = "the sandbox ended: " + status.Reason
	} else if r, ok := c.Runtime.(interface{ EndReason(caisson.ID) string }); ok {
		reason = "the sandbox ended: " + r.EndReason(id)
	}
	c.unwatch(id)
	sb, err := c.setState(ctx, id, caisson.Failed, func(s *caisson.Sandbox) error {
		if s.State != caisson.Running {
			return errUnchanged
		}
		s.Reason = reason
		return nil
	})
	if err != nil {
		return
	}
	if err := c.halt(ctx, id); err != nil {
		c.Log.ErrorContext(ctx, "remains of a sandbox could not be removed", "sandbox", id, "err", err)
	}
	c.event(ctx, sb, "sandbox.failed", map[string]string{"reason": reason})
}

// errUnchanged ends an update that finds nothing to do.
var errUnchanged = errors.New("unchanged")

// setState stores a state, and what else change sets.
func (c *Core) setState(ctx context.Context, id caisson.ID, to caisson.State, change func(*caisson.Sandbox) error) (*caisson.Sandbox, error) {
	return c.Store.Sandboxes().Update(ctx, caisson.Everyone(), string(id), func(s *caisson.Sandbox) error {
		if change != nil {
			if err := change(s); err != nil {
				return err
			}
		}
		if s.State != to {
			s.ChangedAt = now()
		}
		s.State = to
		return nil
	})
}
