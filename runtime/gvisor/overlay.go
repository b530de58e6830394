package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// cloneOverlay returns the description of a workspace for the launcher and its detached mounts: the host directory, read-only
// and with mapped owners; the directory with the upper layer and its work directory; and the mask layer, if there is one.
func (l *launcher) cloneOverlay(m caisson.RuntimeMount, uidBase uint32) (o *protocol.LaunchOverlay, files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeFiles(files)
			files = nil
		}
	}()
	owners, err := l.overlayOwnerMap(m, uidBase)
	if err != nil {
		return nil, nil, err
	}
	defer owners.Close()
	clone := func(dir int, attr uint64, idmap int) error {
		fd, err := protocol.CloneMount(dir, "", attr, idmap)
		if err == nil {
			files = append(files, os.NewFile(uintptr(fd), "mount"))
		}
		return err
	}
	if err := clone(int(m.Source.Fd()), unix.MOUNT_ATTR_RDONLY, int(owners.Fd())); err != nil {
		return nil, files, overlayError(err, m.Target)
	}
	parent, upper, work, err := overlayNames(m.Overlay)
	if err != nil {
		return nil, files, fmt.Errorf("workspace at %s: %w", m.Target, err)
	}
	defer unix.Close(parent)
	if err := clone(parent, 0, -1); err != nil {
		return nil, files, fmt.Errorf("workspace at %s: %w", m.Target, err)
	}
	if mask := m.Overlay.Mask; mask != nil {
		if err := clone(int(mask.Fd()), unix.MOUNT_ATTR_RDONLY, -1); err != nil {
			return nil, files, fmt.Errorf("workspace at %s: %w", m.Target, err)
		}
	}
	return &protocol.LaunchOverlay{Upper: upper, Work: work, Hide: m.Overlay.Hide, Show: m.Overlay.Show}, files, nil
}

// overlayError returns the error for a host directory that cannot be the lower layer of a workspace.
func overlayError(cause error, target string) error {
	return caisson.Wrap(cause, caisson.Invalid,
		"the directory for %s cannot be used as a workspace: that requires Linux 5.19 or newer and a file system that is visible to the daemon and supports idmapped mounts (ext4, xfs, btrfs and tmpfs do); use a copy of the directory instead", target)
}

// overlayNames returns the common parent of the upper layer and its work directory, and their names in it: overlayfs requires
// both to be on the same mount, which two separate clones would not be.
func overlayNames(o *caisson.RuntimeOverlay) (parent int, upper, work string, err error) {
	parent, err = unix.Openat(int(o.Upper.Fd()), "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", "", err
	}
	upper, err = nameInParent(parent, o.Upper)
	if err == nil {
		work, err = nameInParent(parent, o.Work)
	}
	if err != nil {
		unix.Close(parent)
		return -1, "", "", err
	}
	return parent, upper, work, nil
}

// nameInParent returns the name of the open directory dir in its parent directory, whose descriptor is parent.
func nameInParent(parent int, dir *os.File) (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return "", err
	}
	name := filepath.Base(path)
	var want, have unix.Stat_t
	if err := errors.Join(unix.Fstat(int(dir.Fd()), &want), unix.Fstatat(parent, name, &have, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
		return "", err
	}
	if want.Dev != have.Dev || want.Ino != have.Ino || strings.ContainsAny(name, `:,\`) {
		return "", fmt.Errorf("%q is not a directory of the workspace", path)
	}
	return name, nil
}

// overlayOwnerMap returns a user namespace that maps the directory's owner to the guest's root. The guest sees the files of all
// other users as owned by nobody and can read only those that all users can read.
//
// Groups are mapped to the same numbers in the guest. If a file's group were unmapped, the owner could not change the file,
// because the kernel does not copy up files with unmapped ids. The guest's processes are members of none of these groups on
// the host.
func (l *launcher) overlayOwnerMap(m caisson.RuntimeMount, uidBase uint32) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(m.Source.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Uid == 0 && !m.Overlay.Root {
		return nil, caisson.Invalidf("workspace", "the directory for %s belongs to root, so only root can have it as a workspace; use a copy that is your own", m.Target)
	}
	uids := []syscall.SysProcIDMap{{ContainerID: int(st.Uid), HostID: int(uidBase), Size: 1}}
	return l.newUserNS(uids, groupMap(int(st.Gid), int(uidBase), m.Overlay.Root))
}

// nobody is the uid and gid that a guest sees for unmapped owners.
const nobody = 65534

// groupMap maps the directory's group gid to the group of the guest's root, and all other groups below nobody to themselves.
// Group 0 of the host is mapped to group 0 of the guest only if it is the directory's group and root is set, which permits that.
// Otherwise the guest sees it as gid 65534.
func groupMap(gid, base int, root bool) []syscall.SysProcIDMap {
	var gids []syscall.SysProcIDMap
	if gid != 0 || root {
		gids = append(gids, syscall.SysProcIDMap{ContainerID: gid, HostID: base, Size: 1})
	}
	if gid != 0 || !root {
		gids = append(gids, syscall.SysProcIDMap{ContainerID: 0, HostID: base + nobody, Size: 1})
	}
	for _, r := range [][2]int{{1, min(gid, nobody)}, {max(gid+1, 1), nobody}} { // half-open ranges of mapped groups
		if r[0] < r[1] {
			gids = append(gids, syscall.SysProcIDMap{ContainerID: r[0], HostID: base + r[0], Size: r[1] - r[0]})
		}
	}
	return gids
}

// closeFiles closes all files and ignores errors.
func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
