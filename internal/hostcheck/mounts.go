package hostcheck

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// tryMounts tries a user namespace, an idmapped mount and an overlay on the file system of the data directory. The
// mounts are never attached to the tree, so they disappear when their descriptors are closed.
func tryMounts(dataDir string) []caisson.Check {
	if os.Geteuid() != 0 {
		return []caisson.Check{warning("mounts", "run it with sudo", "user namespaces, idmapped mounts and overlays were not tried: they need root")}
	}
	dir, err := os.MkdirTemp(nearestExisting(dataDir), ".caisson-doctor-")
	if err != nil {
		return []caisson.Check{failed("mounts", "choose another directory with --data", "cannot write to the data directory: %v", err)}
	}
	defer os.RemoveAll(dir)

	var checks []caisson.Check
	userns, err := openUserNamespace()
	if err != nil {
		checks = append(checks, failed("userns", "sysctl -w user.max_user_namespaces=100000; in a container allow user namespaces",
			"cannot make a user namespace: %v", err))
	} else {
		defer userns.Close()
		checks = append(checks, ok("userns", "a user namespace could be made"))
		if err := tryIdmap(dir, userns); err != nil {
			checks = append(checks, failed("idmap", "put the data directory on ext4, xfs, btrfs or tmpfs",
				"the file system of %s takes no idmapped mounts: %v", dataDir, err))
		} else {
			checks = append(checks, ok("idmap", "idmapped mounts work at %s", nearestExisting(dataDir)))
		}
	}
	if err := tryOverlay(dir); err != nil {
		return append(checks, failed("overlay", "modprobe overlay; put the data directory on ext4, xfs or btrfs",
			"cannot overlay directories at %s: %v", dataDir, err))
	}
	return append(checks, ok("overlay", "overlays work at %s", nearestExisting(dataDir)))
}

// firstHostID is the first of the host ids to which the user namespace of the checks maps its ids; no file is owned by them.
const firstHostID = 0x6fff0000

// openUserNamespace returns a new user namespace. It is created by a copy of this program that is stopped before its
// first instruction and never runs.
func openUserNamespace() (*os.File, error) {
	runtime.LockOSThread() // With ptrace, only the thread that started the process may control it.
	defer runtime.UnlockOSThread()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: firstHostID, Size: 65536}}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
}

// tryIdmap creates an idmapped mount of dir and reads through it.
func tryIdmap(dir string, userns *os.File) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Userns_fd: uint64(userns.Fd()),
	})
	if err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(tree, "", &st, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if st.Uid != firstHostID {
		return fmt.Errorf("root's file shows uid %d instead of %d", st.Uid, firstHostID)
	}
	return nil
}

// tryOverlay creates an overlay of two directories below dir.
func tryOverlay(dir string) error {
	options := map[string]string{}
	for opt, name := range map[string]string{"lowerdir": "lower", "upperdir": "upper", "workdir": "work"} {
		options[opt] = filepath.Join(dir, name)
		if err := os.Mkdir(options[opt], 0o700); err != nil {
			return err
		}
	}
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	for opt, value := range options {
		if err := unix.FsconfigSetString(fs, opt, value); err != nil {
			return fmt.Errorf("%s: %w", opt, err)
		}
	}
	if err := unix.FsconfigSetFlag(fs, "userxattr"); err != nil {
		return fmt.Errorf("userxattr: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("fsconfig: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	return unix.Close(mount)
}
