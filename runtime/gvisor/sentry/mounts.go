package sentry

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// stages are directories that usually exist and that all users may enter. In the launcher's mount namespace, a small tmpfs is
// mounted over one of them, called the stage, on which the root file system is assembled. A directory below the data directory
// would not work, because the gofer runs as an unprivileged user that cannot enter it.
var stages = []string{"/mnt", "/media", "/srv", "/opt", "/boot"}

// buildRootfs mounts the root file system and sets the paths in the spec that refer to it.
func (r *launchRequest) buildRootfs() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// Paths that may be below the stage are opened before the stage is mounted over them.
	var layers []int
	for _, dir := range r.Layers {
		fd, err := protocol.CloneMount(unix.AT_FDCWD, dir, unix.MOUNT_ATTR_RDONLY, r.IDMapFD)
		if err != nil {
			return fmt.Errorf("layer %s: %w", dir, err)
		}
		layers = append(layers, fd)
	}
	binds := make(map[string]int, len(r.Binds))
	for target, source := range r.Binds {
		fd, err := protocol.CloneMount(unix.AT_FDCWD, source, unix.MOUNT_ATTR_RDONLY, -1)
		if err != nil {
			return fmt.Errorf("bind %s: %w", source, err)
		}
		binds[target] = fd
	}
	state, err := protocol.CloneMount(unix.AT_FDCWD, filepath.Join(r.Bundle, protocol.StateDir), 0, -1)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	stage, err := r.makeStage()
	if err != nil {
		return err
	}
	// gVisor's control socket is in its --root, whose path must be short even if that of the data directory is long.
	r.root = filepath.Join(stage, "state")
	if err := os.Mkdir(r.root, 0o700); err != nil {
		return err
	}
	if err := attachMount(state, r.root); err != nil {
		return err
	}
	points, err := r.makeMountPoints(stage)
	if err != nil {
		return err
	}
	root := filepath.Join(stage, "root")
	if err := mountLayers(stage, root, layers, points); err != nil {
		return err
	}
	// Parents are mounted before their children: /usr before /usr/local.
	for _, t := range slices.Sorted(maps.Keys(binds)) {
		if err := moveBeneath(binds[t], root, t); err != nil {
			return fmt.Errorf("bind at %s: %w", t, err)
		}
	}
	r.Spec.Root.Path = root
	return r.mountHostDirs(stage)
}

// makeStage mounts a tmpfs, the stage, over the first directory in stages that exists and does not contain the sandbox's bundle,
// and returns this directory.
func (r *launchRequest) makeStage() (string, error) {
	for _, dir := range stages {
		if strings.HasPrefix(r.Bundle+"/", dir+"/") {
			continue
		}
		err := unix.Mount("caisson", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0711,size=1m")
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("mount stage on %s: %w", dir, err)
		}
		return dir, nil
	}
	return "", fmt.Errorf("none of %s exists; create /mnt", strings.Join(stages, ", "))
}

// makeMountPoints creates, on the tmpfs at stage, a layer with the mount points of host directories, which the image may lack.
// It returns the directory of the layer.
func (r *launchRequest) makeMountPoints(stage string) (string, error) {
	layer := filepath.Join(stage, "points")
	owner := -1
	if ids := r.Spec.Linux.UIDMappings; len(ids) > 0 {
		owner = int(ids[0].HostID)
	}
	dirs := []string{layer}
	for _, m := range r.Mounts {
		dir := layer
		for name := range strings.SplitSeq(strings.Trim(filepath.Clean("/"+m.Target), "/"), "/") {
			dir = filepath.Join(dir, name)
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0); errors.Is(err, os.ErrExist) {
			continue
		} else if err != nil {
			return "", fmt.Errorf("create mount point: %w", err)
		}
		if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, owner, owner)); err != nil {
			return "", fmt.Errorf("create mount point: %w", err)
		}
	}
	return layer, nil
}

// mountLayers mounts an overlay of the layers, topmost first, on root, with the directory lowest as the lowest layer. There is
// no upper layer, because gVisor stores the changes.
func mountLayers(stage, root string, layers []int, lowest string) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	var dirs []string
	for i, fd := range layers {
		dir := filepath.Join(stage, fmt.Sprint("l", i))
		if err := os.Mkdir(dir, 0o711); err != nil {
			return err
		}
		if err := attachMount(fd, dir); err != nil {
			return err
		}
		dirs = append(dirs, dir)
	}
	data := "userxattr,lowerdir=" + strings.Join(append(dirs, lowest), ":")
	if err := unix.Mount("caisson", root, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fmt.Errorf("overlay %d layers: %w", len(layers), err)
	}
	return nil
}

// mountHostDirs mounts the host directories, volumes and workspaces of the request below stage, the directory in which the root
// file system is assembled, and adds them to the spec as sources of bind mounts.
func (r *launchRequest) mountHostDirs(stage string) error {
	for i, m := range r.Mounts {
		dir := filepath.Join(stage, fmt.Sprint("m", i))
		if err := os.Mkdir(dir, 0o711); err != nil {
			return err
		}
		mode := "ro"
		if m.Writable || m.Overlay != nil {
			mode = "rw"
		}
		if m.Overlay != nil {
			if err := mountOverlay(m.Overlay, m.FD, dir); err != nil {
				return &overlayError{m.Target, err}
			}
			if err := r.hideNames(m, dir); err != nil {
				return &overlayError{m.Target, err}
			}
		} else if err := attachMount(m.FD, dir); err != nil {
			return fmt.Errorf("mount at %s: %w", m.Target, err)
		}
		r.Spec.Mounts = append(r.Spec.Mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: dir, Options: []string{mode}})
	}
	return r.addRecordAnnotation()
}

// attachMount attaches the detached mount fd at an absolute path and closes fd.
func attachMount(fd int, path string) error {
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount to %s: %w", path, err)
	}
	return nil
}

// moveBeneath attaches the detached mount fd at the path target inside root and closes fd. Symlinks of the image are resolved
// relative to root.
func moveBeneath(fd int, root, target string) error {
	defer unix.Close(fd)
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(rootFD)
	at, err := unix.Openat2(rootFD, strings.TrimPrefix(target, "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return fmt.Errorf("find mount point: %w", err)
	}
	defer unix.Close(at)
	return unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}
