package sandboxes

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// specs builds the specs with which the runtime starts sandboxes.
type specs struct {
	accounts caisson.AccountStore // accounts with their host uids
	images   interface {
		Host(ctx context.Context) (*caisson.Image, error)
	}
	runtime    interface{ Capabilities() caisson.Capabilities }
	workspaces *workspaces      // workspaces and volumes of sandboxes
	dirs       dirs             // paths and files in the data directory
	programs   caisson.Programs // sets of programs that this daemon supports
}

// forStart returns the runtime's spec for a start of a sandbox from a source, without the network namespace, and writes the
// sandbox's dependencies to its directory. release closes the files that forStart has opened, and must be called even after an
// error.
func (s *specs) forStart(ctx context.Context, sb *caisson.Sandbox, from source) (spec caisson.RuntimeSpec, release func(), err error) {
	spec, release, err = s.baseSpec(ctx, sb)
	if err != nil {
		return spec, release, err
	}
	spec.Files, spec.Randomness = from.files, from.randomness
	if from.depends == nil {
		depends, err := s.dependencies(ctx, sb)
		if err != nil {
			return spec, release, err
		}
		from.depends = &depends
	}
	return spec, release, writeDepends(s.dirs.sandboxDir(sb.ID), *from.depends)
}

// baseSpec returns the runtime's spec of a sandbox, without network namespace and saved files. release closes the files that
// baseSpec has opened, and may be called even after an error.
func (s *specs) baseSpec(ctx context.Context, sb *caisson.Sandbox) (spec caisson.RuntimeSpec, release func(), err error) {
	release = func() {}
	account, err := s.accounts.Get(ctx, sb.Account)
	if err != nil {
		return spec, release, err
	}
	dir := s.dirs.sandboxDir(sb.ID)
	rootfs := sb.Rootfs
	rootfs.Layers = append([]string{filepath.Join(dir, etcLayer)}, rootfs.Layers...)
	spec = caisson.RuntimeSpec{
		Hostname: string(sb.ID), UIDBase: account.UIDBase, Rootfs: rootfs, Dir: dir,
		Command: sb.Spec.Command, Env: env(sb.Spec.Env), Workdir: sb.Spec.Workdir, User: sb.Spec.User,
		Resources: sb.Spec.Resources, ContinueClock: sb.Spec.Randomness == randomnessOpenSSL,
	}
	mounts, err := s.dirs.openMounts(sb.ID)
	if err != nil {
		return spec, release, err
	}
	space, err := s.workspaces.open(ctx, sb)
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

// dependencies returns the dependencies of a sandbox that starts now: what a host must have in common with this one to restore
// the sandbox's memory later.
func (s *specs) dependencies(ctx context.Context, sb *caisson.Sandbox) (d caisson.Dependencies, err error) {
	caps := s.runtime.Capabilities()
	d = caisson.Dependencies{Build: s.programs.Current, CPU: caps.CPU, Rootfs: sb.Rootfs.Digest, Platform: caps.Platform}
	if len(sb.Rootfs.Binds) == 0 {
		return d, nil // A root file system without host directories consists of immutable layers.
	}
	// Host directories can change after the sandbox was created, so the current digest of the host image is included.
	img, err := s.images.Host(ctx)
	if err != nil {
		return d, err
	}
	if img.Digest != d.Rootfs {
		d.Rootfs += " on " + img.Digest
	}
	return d, nil
}

// dependsFile is the file in a sandbox's directory that records the dependencies that the sandbox was started with. In
// a checkpoint, it records the dependencies that the memory can be restored with.
const dependsFile = "depends.json"

// writeDepends records dependencies in a file in dir, the directory of a sandbox.
func writeDepends(dir string, d caisson.Dependencies) error {
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, dependsFile), data, 0o600)
}

// readDepends returns the dependencies that are recorded in dir, the directory of a sandbox or of a checkpoint.
func readDepends(dir string) (d caisson.Dependencies, err error) {
	data, err := os.ReadFile(filepath.Join(dir, dependsFile))
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	return d, err
}

// copyDepends copies the file with the dependencies from one directory to another. A checkpoint depends on what the sandbox was
// started with, not on the current build and host.
func copyDepends(from, to string) error {
	d, err := readDepends(from)
	if err != nil {
		return err
	}
	return writeDepends(to, d)
}

// mismatch returns the reason why a checkpoint with the dependencies had cannot be restored on a host with the dependencies have,
// or "" if it can.
func (s *specs) mismatch(had, have caisson.Dependencies) string {
	switch {
	case !s.programs.Supports(had.Build):
		return "it was taken with programs " + s.programs.DescribeBuild(had.Build)
	case had.Platform != have.Platform:
		return "it was taken on gVisor's platform " + had.Platform
	case had.CPU != have.CPU:
		return "it was taken on another kind of processor"
	case had.Rootfs != have.Rootfs:
		return "the files of its image have changed"
	}
	return ""
}
