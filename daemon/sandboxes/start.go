package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
)

// source is the state that a sandbox is started from.
type source struct {
	files      string // path of a tar archive with changes to the root file system, or ""; not set together with checkpoint
	checkpoint string // directory of the checkpoint to restore, or "" for a start without memory
	// depends are the sandbox's dependencies, to be recorded in dependsFile; nil: the start determines them.
	depends *caisson.Dependencies
	// If randomness is "openssl", OpenSSL's random generators in restored processes reseed.
	randomness string
}

// processes starts and kills the processes of sandboxes, using the runtime and the wires.
type processes struct {
	runtime    starter                    // creates, restores and destroys sandboxes
	randomness caisson.RandomnessReporter // finds programs in a fork that may draw the random numbers of another fork; may be nil
	specs      *specs                     // builds specs for the runtime
	network    network                    // configures wires and creates budgets
	writers    *writers                   // stores which process changed each file of a workspace
	clients    *fileClients               // clients that access files in sandboxes

	leftovers *idSet       // sandboxes that could not be stopped, or whose resources could not be freed
	checkHost func() error // returns an error if the host lacks what every sandbox needs; may be nil
}

// run attaches the wire of a sandbox and starts its processes from the given source. If the start fails, it kills the processes
// and detaches the wire.
func (h *processes) run(ctx context.Context, sb *caisson.Sandbox, from source) (err error) {
	h.clients.drop(sb.ID) // The open client uses a stand-in, because the sandbox did not run.
	if h.leftovers.has(sb.ID) {
		if err := h.halt(ctx, sb.ID); err != nil {
			return err
		}
	}
	var netns *os.File
	var wire errgroup.Group // attaches the wire in parallel with the other preparations
	wire.Go(func() (err error) {
		netns, err = h.network.attach(ctx, sb)
		return err
	})
	spec, release, err := h.specs.forStart(ctx, sb, from)
	defer release()
	if err = errors.Join(err, wire.Wait()); netns != nil {
		defer netns.Close()
		spec.NetNS = netns
	}
	switch {
	case err != nil:
	case from.checkpoint == "":
		err = h.runtime.Create(ctx, sb.ID, spec)
	default:
		spec.Programs = sb.Build
		if err = h.runtime.Restore(ctx, sb.ID, spec, from.checkpoint); err == nil {
			err = h.probe(ctx, sb)
		}
	}
	if err != nil {
		return errors.Join(h.explain(err), h.halt(context.WithoutCancel(ctx), sb.ID))
	}
	return nil
}

// explain returns the error to report for a failed start. If err is an internal error and the host lacks something that every
// sandbox needs, it returns an error that says so; otherwise it returns err.
func (h *processes) explain(err error) error {
	if h.checkHost == nil || caisson.KindOf(err) != caisson.Internal {
		return err
	}
	if lacks := h.checkHost(); lacks != nil {
		return caisson.Wrap(err, caisson.KindOf(lacks), "%s", caisson.MessageOf(lacks))
	}
	return err
}

// runFrom starts a sandbox from the checkpoint in dir: with its memory if the memory can be restored on this host, and otherwise
// with its files only. filesOnly is the reason for a start with files only, or "". If randomness is "openssl", OpenSSL's random
// generators reseed. runFrom sets sb.Build, because memory must be restored with the programs with which it was captured.
func (h *processes) runFrom(ctx context.Context, sb *caisson.Sandbox, dir, randomness string) (filesOnly string, err error) {
	had, err := readDepends(dir)
	if err != nil {
		return "", err
	}
	have, err := h.specs.dependencies(ctx, sb)
	if err != nil {
		return "", err
	}
	if why := h.specs.mismatch(had, have); why != "" {
		sb.Build = have.Build
		return "memory could not be restored because " + why + "; files only", h.run(ctx, sb, source{files: filepath.Join(dir, filesTar), depends: &have})
	}
	sb.Build, have.Build = had.Build, had.Build
	return "", h.run(ctx, sb, source{checkpoint: dir, depends: &have, randomness: randomness})
}

// haltFunc is a function that kills the processes of a sandbox and frees its resources on the host.
type haltFunc = func(ctx context.Context, id caisson.ID) error

// halt kills the processes of a sandbox and frees its resources on the host. If the processes cannot be killed, they
// keep their wire.
func (h *processes) halt(ctx context.Context, id caisson.ID) error {
	h.clients.drop(id)
	err := h.kill(ctx, id)
	if err == nil || ended(h.runtime, id) {
		err = errors.Join(err, h.network.detach(ctx, id))
	}
	h.leftovers.set(id, err != nil)
	return err
}

// kill kills the processes of a sandbox. Before that, it saves the sandbox's records of which process has changed which file.
func (h *processes) kill(ctx context.Context, id caisson.ID) error {
	h.writers.save(ctx, id)
	return h.runtime.Destroy(ctx, id)
}

// ended reports whether no process of a sandbox is left. The runtime may still hold other resources of the sandbox.
func ended(runtime doneReporter, id caisson.ID) bool {
	select {
	case <-runtime.Done(id):
		return true
	default:
		return false
	}
}

// sharedRandomness returns the names of the programs in a fork that may draw the same random numbers as in another fork; nil if
// the runtime cannot determine them.
func (h *processes) sharedRandomness(ctx context.Context, id caisson.ID) ([]string, error) {
	if h.randomness == nil {
		return nil, nil
	}
	return h.randomness.SharedRandomness(ctx, id)
}

// probeTimeout is the timeout for the process that is started in a restored sandbox to check that it works.
const probeTimeout = 20 * time.Second

// probe checks that a restored sandbox can run a process. A restore may succeed although the sandbox dies immediately
// afterwards, for example if an executable in its root file system has been replaced.
func (h *processes) probe(ctx context.Context, sb *caisson.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	p, err := h.runtime.Exec(ctx, sb.ID, caisson.RuntimeExec{Command: []string{"/.caisson/init", "-"}})
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
