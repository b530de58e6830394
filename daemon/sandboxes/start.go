package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// source is the state that a sandbox is started from.
type source struct {
	files      string // path of a tar archive with changes to the root file system, or ""; not used if image is set
	checkpoint string // directory of the checkpoint to restore, or "" for a start without memory
	// depends contains the dependencies to record if the caller has already determined them; nil otherwise.
	depends *caisson.Dependencies
	// randomness determines what happens to random state in the restored memory, see Randomness in [caisson.RuntimeSpec].
	randomness string
}

// processes manages the processes of sandboxes, using the runtime and the wires.
type processes struct {
	c *Core

	leftovers idSet // sandboxes that could not be stopped, or whose resources could not be freed
}

// run attaches the wire of a sandbox and starts its processes. If it fails, both are removed again.
func (h *processes) run(ctx context.Context, sb *caisson.Sandbox, from source) (err error) {
	h.c.fileClients.drop(sb.ID) // It uses a stand-in, which dates from when the sandbox did not run.
	if h.leftovers.has(sb.ID) {
		if err := h.halt(ctx, sb.ID); err != nil {
			return err
		}
	}
	var netns *os.File
	var wire errgroup.Group // attaches in parallel with the other preparations
	wire.Go(func() (err error) {
		netns, err = h.c.network.attach(ctx, sb)
		return err
	})
	spec, release, err := h.prepareSpec(ctx, sb, from)
	defer release()
	if err = errors.Join(err, wire.Wait()); netns != nil {
		defer netns.Close()
		spec.NetNS = netns
	}
	switch {
	case err != nil:
	case from.checkpoint == "":
		err = h.c.Runtime.Create(ctx, sb.ID, spec)
	default:
		if err = h.c.Runtime.Restore(ctx, sb.ID, spec, from.checkpoint); err == nil {
			err = h.probe(ctx, sb)
		}
	}
	if err != nil {
		return errors.Join(err, h.halt(context.WithoutCancel(ctx), sb.ID))
	}
	return nil
}

// prepareSpec returns the runtime's spec for a start, without the network namespace, and writes the dependencies to the
// sandbox's directory. release closes the files that it opened, and must be called even after an error.
func (h *processes) prepareSpec(ctx context.Context, sb *caisson.Sandbox, from source) (spec caisson.RuntimeSpec, release func(), err error) {
	spec, release, err = h.runtimeSpec(ctx, sb)
	if err != nil {
		return spec, release, err
	}
	spec.Files, spec.Randomness = from.files, from.randomness
	if from.depends == nil {
		depends, err := h.dependencies(ctx, sb)
		if err != nil {
			return spec, release, err
		}
		from.depends = &depends
	}
	return spec, release, writeDepends(h.c.sandboxDir(sb.ID), *from.depends)
}

// halt kills the processes of a sandbox and frees its resources on the host. If the processes cannot be killed, they
// keep their wire.
func (h *processes) halt(ctx context.Context, id caisson.ID) error {
	h.c.fileClients.drop(id)
	h.c.writers.keep(ctx, id)
	err := h.c.Runtime.Destroy(ctx, id)
	if err == nil || h.ended(id) {
		err = errors.Join(err, h.c.network.detach(ctx, id))
	}
	h.leftovers.set(id, err != nil)
	return err
}

// ended reports whether a sandbox has no process left. The runtime may still hold other resources of it.
func (h *processes) ended(id caisson.ID) bool {
	select {
	case <-h.c.Runtime.Done(id):
		return true
	default:
		return false
	}
}

// runtimeSpec returns the runtime's spec of a sandbox, without network namespace and saved files. release closes the files
// that it opened, and may be called even after an error.
func (h *processes) runtimeSpec(ctx context.Context, sb *caisson.Sandbox) (spec caisson.RuntimeSpec, release func(), err error) {
	release = func() {}
	account, err := h.c.Store.Accounts().Get(ctx, sb.Account)
	if err != nil {
		return spec, release, err
	}
	dir := h.c.sandboxDir(sb.ID)
	rootfs := sb.Rootfs
	rootfs.Layers = append([]string{filepath.Join(dir, etcLayer)}, rootfs.Layers...)
	spec = caisson.RuntimeSpec{
		Hostname: string(sb.ID), UIDBase: account.UIDBase, Rootfs: rootfs, Dir: dir,
		Command: sb.Spec.Command, Env: env(sb.Spec.Env), Workdir: sb.Spec.Workdir, User: sb.Spec.User,
		Resources: sb.Spec.Resources, ContinueClock: sb.Spec.Randomness == randomnessOpenSSL,
	}
	mounts, err := h.c.openMounts(sb.ID)
	if err != nil {
		return spec, release, err
	}
	space, err := h.c.workspaces.open(ctx, sb)
	if err != nil {
		closeMounts(mounts)
		return spec, release, err
	}
	mounts = append(mounts, space...)
	spec.Mounts = mounts
	if len(sb.Spec.Command) > 0 {
		// The FIFO is opened read-write: the sandbox then holds a reader too, so that while no daemon reads, writes do not
		// fail with EPIPE but block when the pipe is full.
		out, err := os.OpenFile(filepath.Join(dir, outputFIFO), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			closeMounts(mounts)
			return spec, release, err
		}
		// The guest gets the FIFO in blocking mode: its writes to a full pipe must block, not fail with EAGAIN.
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

// sharedRandomness returns the names of the programs in a fork that may draw the same random numbers as in another fork; nil if
// the runtime cannot determine them.
func (h *processes) sharedRandomness(ctx context.Context, id caisson.ID) ([]string, error) {
	s, ok := h.c.Runtime.(caisson.RandomnessReporter)
	if !ok {
		return nil, nil
	}
	return s.SharedRandomness(ctx, id)
}

// probeTimeout is the timeout for the first process in a restored sandbox.
const probeTimeout = 20 * time.Second

// probe checks that a restored sandbox can run a process. A restore may succeed although the sandbox dies immediately
// afterwards, for example if an executable in its root file system has been replaced.
func (h *processes) probe(ctx context.Context, sb *caisson.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	p, err := h.c.Runtime.Exec(ctx, sb.ID, caisson.RuntimeExec{Command: []string{"/.caisson/init", "-"}})
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
