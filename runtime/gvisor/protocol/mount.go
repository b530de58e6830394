package protocol

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CloneMount returns a detached copy of the mount at path (relative to dirfd; "" is dirfd itself), with the attributes attr,
// nosuid and nodev, and with owners mapped by the user namespace idmap unless that is -1. It works only on mounts of the
// caller's mount namespace; the copy can be attached in any.
func CloneMount(dirfd int, path string, attr uint64, idmap int) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(dirfd, path, flags)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	set := unix.MountAttr{Attr_set: attr | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if idmap >= 0 {
		set.Attr_set |= unix.MOUNT_ATTR_IDMAP
		set.Userns_fd = uint64(idmap)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &set); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("mount_setattr: %w", err)
	}
	return fd, nil
}
