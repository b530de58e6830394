package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/sqlite"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
	"github.com/caisson-dev/caisson/wire"
)

// runsc is gVisor's own command line, with which Caisson is compared. Each operation on its sandboxes runs one command of it.
//
// Its spec and flags are those that Caisson used for one of its sandboxes, the donor, except for resources that cannot be
// shared. The root file system is created once, before the measurements, from the same layers and directories. Each network
// namespace is also created before the measurements, with the same device in it. The cgroup is separate and has the same limits.
type runsc struct {
	exe    string     // Path of runsc.
	dir    string     // Directory for bundles, files of overlays and checkpoints.
	root   string     // Directory of gVisor's flag --root.
	cgroup string     // Parent of the containers' cgroups, relative to the root of each hierarchy.
	flags  []string   // gVisor's flags in every call of runsc.
	spec   specs.Spec // Spec of the containers; bundle replaces host name, cgroup, network namespace and, if given, arguments.

	wires *wire.Manager // Wires of the containers.
	end   func() error  // Stops the wire process that serves the wires.
	mu    sync.Mutex
	nets  map[string]*os.File // Network namespaces by container; guarded by mu.
}

// newRunsc returns a runsc with the OCI spec, the flags and the root file system of donor, a running sandbox of the daemon d.
func newRunsc(ctx context.Context, cfg Config, d *daemon, donor string) (*runsc, error) {
	r := &runsc{
		exe: filepath.Join(cfg.Bin, "runsc"), dir: filepath.Join(cfg.Dir, "bare"), root: filepath.Join(cfg.Dir, "bare", "state"),
		cgroup: "/" + filepath.Base(cfg.Dir), nets: map[string]*os.File{},
	}
	if err := r.startWires(ctx, filepath.Join(cfg.Bin, "caisson")); err != nil {
		return nil, err
	}
	for _, dir := range []string{r.dir, r.root, filepath.Join(r.dir, "fs")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	data, err := os.ReadFile(filepath.Join(d.runtimeDir(donor), "bundle", "config.json"))
	if err == nil {
		err = json.Unmarshal(data, &r.spec)
	}
	if err != nil {
		return nil, err
	}
	if r.flags, err = r.mainFlags(d.runtimeDir(donor)); err != nil {
		return nil, err
	}
	r.spec.Root.Path, err = r.mountRootfs(ctx, d, donor)
	return r, err
}

// startWires starts a separate wire process for the sandboxes of r.
func (r *runsc) startWires(ctx context.Context, exe string) (err error) {
	r.wires, err = wire.New(wire.Config{
		Exe: exe, Log: slog.New(slog.DiscardHandler),
		NetNS: func(caisson.ID) (*os.File, error) { return nil, errors.New("the wire process died") },
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	settings := func(context.Context) (*caisson.GatewayConfig, error) { return &caisson.GatewayConfig{}, nil }
	go func() { ended <- r.wires.Run(ctx, wire.Handlers{Settings: settings}) }()
	r.end = func() error {
		cancel()
		return <-ended
	}
	return nil
}

// mainFlags returns the gVisor flags of the main process of the donor, a sandbox of Caisson, adapted to the directories of r.
// dir is the runtime's subdirectory of the donor's directory.
func (r *runsc) mainFlags(dir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "state.json"))
	var state struct{ Main struct{ PID int } }
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	if err == nil {
		data, err = os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", state.Main.PID))
	}
	if err != nil {
		return nil, err
	}
	flags := []string{"--root=" + r.root}
	for _, arg := range strings.Split(string(data), "\x00")[1:] {
		switch name, _, _ := strings.Cut(arg, "="); {
		case !strings.HasPrefix(arg, "--"): // The command follows the flags.
			return flags, nil
		case name == "--root", name == "--gofer-network-namespace":
			// Both flags are left out: --root is set above, and without --gofer-network-namespace, all gofers share an empty network
			// namespace, as the gofers of Caisson do.
		case name == "--overlay2":
			flags = append(flags, strings.Replace(arg, filepath.Join(dir, "fs"), filepath.Join(r.dir, "fs"), 1))
		default:
			flags = append(flags, arg)
		}
	}
	return nil, errors.New("the donor's main process has no command")
}

// mountRootfs mounts the root file system of donor, a sandbox of the daemon d, a second time: in this process's mount namespace,
// at a path that processes of any user can access.
func (r *runsc) mountRootfs(ctx context.Context, d *daemon, donor string) (string, error) {
	store, err := sqlite.Open(ctx, sqlite.Config{
		Path:     filepath.Join(d.dir, "caisson.db"),
		AuditKey: func() (caisson.Secret, bool, error) { return credential.LoadKeyFile(filepath.Join(d.dir, "audit.key")) },
	})
	if err != nil {
		return "", err
	}
	defer store.Close()
	sb, err := store.Sandboxes().Get(ctx, caisson.AllAccounts(), donor)
	if err != nil {
		return "", err
	}
	tools, err := filepath.Glob(filepath.Join(d.dir, "tools", "*"))
	if err != nil || len(tools) != 1 {
		return "", fmt.Errorf("found %d layers of tools: %w", len(tools), err)
	}
	layers := append([]string{tools[0], filepath.Join(d.sandboxDir(donor), "etc")}, sb.Rootfs.Layers...)
	ids, err := userNamespace(r.spec.Linux.UIDMappings[0].HostID)
	if err != nil {
		return "", err
	}
	defer ids.Close()

	stage := "/mnt"
	if err := unix.Mount("caisson-bench", stage, "tmpfs", 0, "mode=0711"); err != nil {
		return "", err
	}
	for i, layer := range layers {
		at := filepath.Join(stage, fmt.Sprint("l", i))
		if err := mountClone(layer, at, int(ids.Fd())); err != nil {
			return "", err
		}
		layers[i] = at
	}
	root := filepath.Join(stage, "root")
	if err := os.Mkdir(root, 0o711); err != nil {
		return "", err
	}
	options := "userxattr,lowerdir=" + strings.Join(layers, ":")
	if err := unix.Mount("caisson-bench", root, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return "", fmt.Errorf("mount overlay: %w", err)
	}
	binds := map[string]string{}
	for _, b := range sb.Rootfs.Binds {
		binds[b.Target] = b.Source
	}
	for _, target := range slices.Sorted(maps.Keys(binds)) {
		if err := mountClone(binds[target], filepath.Join(root, target), -1); err != nil {
			return "", err
		}
	}
	return root, nil
}

// mountClone mounts a read-only clone of source at target, which is created if it does not exist.
func mountClone(source, target string, idmap int) error {
	if err := os.Mkdir(target, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fd, err := protocol.CloneMount(unix.AT_FDCWD, source, unix.MOUNT_ATTR_RDONLY, idmap)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	defer unix.Close(fd)
	return unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// userNamespace returns a user namespace that maps the ids of the owners of layers to the host's ids from uid on.
func userNamespace(uid uint32) (*os.File, error) {
	ids := []syscall.SysProcIDMap{{ContainerID: caisson.LayerUIDBase, HostID: int(uid), Size: caisson.UIDRange}}
	cmd := exec.Command("/bin/sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
}

// bundle creates an OCI bundle and a network namespace for a container that runs args. Without args the container runs Caisson's
// init, which sleeps. release removes both again.
func (r *runsc) bundle(ctx context.Context, args ...string) (id string, err error) {
	sandbox := caisson.NewID(caisson.SandboxPrefix)
	guest := caisson.Guest{Sandbox: sandbox, Account: caisson.LocalAccount}
	net, err := r.wires.Attach(ctx, sandbox, caisson.WireSpec{Guest: guest})
	if err != nil {
		return "", err
	}
	id = string(sandbox)
	r.mu.Lock()
	r.nets[id] = net
	r.mu.Unlock()
	spec, process, linux := r.spec, *r.spec.Process, *r.spec.Linux
	linux.CgroupsPath = filepath.Join(r.cgroup, id)
	linux.Namespaces = slices.Clone(linux.Namespaces)
	for i, ns := range linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), net.Fd())
		}
	}
	if len(args) > 0 {
		process.Args = args
	}
	spec.Process, spec.Linux, spec.Hostname = &process, &linux, id
	data, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(r.dir, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	return id, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

// runCommand runs one command of runsc.
func (r *runsc) runCommand(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.exe, append(slices.Clone(r.flags), args...)...)
	cmd.Env = []string{}
	// The output goes to a file instead of a pipe: sandboxes inherit the output, so that reading a pipe would wait until they end.
	out, err := os.CreateTemp(r.dir, "output-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(out.Name())
		return fmt.Errorf("runsc %v: %w: %.500s", args, err, bytes.TrimSpace(said))
	}
	return nil
}

// run creates a sandbox, runs the bundle's program in it and removes the sandbox, in one process.
func (r *runsc) run(ctx context.Context, id string) error {
	return r.runCommand(ctx, "run", "--bundle", filepath.Join(r.dir, id), id)
}

// start creates a running sandbox from a bundle.
func (r *runsc) start(ctx context.Context, id string) error {
	return r.runCommand(ctx, "run", "--detach", "--bundle", filepath.Join(r.dir, id), id)
}

// exec runs program in a running sandbox.
func (r *runsc) exec(ctx context.Context, id string) error {
	return r.runCommand(ctx, "exec", id, program)
}

// checkpoint writes a checkpoint of a running sandbox to the directory image. The sandbox continues to run.
func (r *runsc) checkpoint(ctx context.Context, id, image string) error {
	return r.runCommand(ctx, "checkpoint", "--leave-running", "--compression=none", "--image-path", image, id)
}

// restore creates a running sandbox from a bundle and the checkpoint in the directory image.
func (r *runsc) restore(ctx context.Context, id, image string) error {
	return r.runCommand(ctx, "restore", "--detach", "--background", "--image-path", image, "--bundle", filepath.Join(r.dir, id), id)
}

// remove removes sandboxes and their bundles, at most four at a time.
func (r *runsc) remove(ctx context.Context, ids ...string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, id := range ids {
		g.Go(func() error { return errors.Join(r.runCommand(ctx, "delete", "--force", id), r.release(ctx, id)) })
	}
	return g.Wait()
}

// release removes the bundle and the network namespace of a container that has been removed.
func (r *runsc) release(ctx context.Context, id string) error {
	r.mu.Lock()
	net := r.nets[id]
	delete(r.nets, id)
	r.mu.Unlock()
	return errors.Join(net.Close(), r.wires.Detach(ctx, caisson.ID(id)), os.RemoveAll(filepath.Join(r.dir, id)))
}

// cgroupProcesses returns the ids of the processes in a cgroup. group is its path in the hierarchy for memory (v1) or in the
// unified hierarchy (v2).
func cgroupProcesses(group string) ([]int, error) {
	var data []byte
	err := errors.New("no hierarchy")
	for _, root := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
		if data, err = os.ReadFile(filepath.Join(root, group, "cgroup.procs")); err == nil {
			break
		}
	}
	var pids []int
	for line := range strings.Lines(string(data)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}
