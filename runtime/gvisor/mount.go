package gvisor

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// cloneMounts returns the detached mounts that a launcher needs for m, and sets lm.Overlay if m has an overlay.
func (l *launcher) cloneMounts(m caisson.RuntimeMount, uidBase uint32, lm *protocol.LaunchMount) (trees []*os.File, err error) {
	if m.Overlay != nil {
		lm.Overlay, trees, err = l.cloneOverlay(m, uidBase)
		return trees, err
	}
	tree, err := l.cloneMount(m, uidBase)
	return []*os.File{tree}, err
}

// cloneMount returns a detached mount of a host directory with the owner mapping and the access that the sandbox gets.
func (l *launcher) cloneMount(m caisson.RuntimeMount, uidBase uint32) (*os.File, error) {
	owner, err := l.ownerMap(m, uidBase)
	if err != nil {
		return nil, err
	}
	idmap := -1
	if owner != nil {
		defer owner.Close()
		idmap = int(owner.Fd())
	}
	var attr uint64
	if !m.Writable {
		attr = unix.MOUNT_ATTR_RDONLY
	}
	fd, err := protocol.CloneMount(int(m.Source.Fd()), "", attr, idmap)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid,
			"the directory for %s cannot be mounted: its file system must be visible to the daemon and support idmapped mounts (ext4, xfs, btrfs and tmpfs do)", m.Target)
	}
	return os.NewFile(uintptr(fd), "mount"), nil
}

// ownerMap returns a user namespace that maps the owner of a mounted directory to the guest's root. It returns nil if the
// owner is the host's root or a uid of the account. The host's root is never mapped: the guest sees its files as owned by
// nobody and can read only those that all users can read. So a guest can neither create a setuid-root file nor read files
// that only root may read.
func (l *launcher) ownerMap(m caisson.RuntimeMount, uidBase uint32) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(m.Source.Fd()), &st); err != nil {
		return nil, err
	}
	if inAccountRange(st.Uid, uidBase) && inAccountRange(st.Gid, uidBase) {
		return nil, nil
	}
	if m.Writable && (st.Uid == 0 || st.Gid == 0) {
		return nil, caisson.Invalidf("mounts", "the directory for %s belongs to root or to root's group, so it cannot be mounted writable; change its owner to an unprivileged user and group first (chown)", m.Target)
	}
	if st.Uid == 0 {
		return nil, nil
	}
	gid := st.Gid
	if gid == 0 {
		gid = 65534 // the group nogroup; root's group is never mapped
	}
	return l.idmap(st.Uid, gid, uidBase, 1)
}

// inAccountRange reports whether a host uid or gid is in the range of the sandbox's account. A directory with such an owner and
// group is a volume and is mounted without an owner mapping: all users of the guest can own files in it, and the guest's root can
// change the owner of the directory itself. Files that the guest creates there are harmless on the host: their owners are in the
// account's range, which no other user of the host has; a guest cannot create devices, for which the kernel requires privileges
// outside of user namespaces; mounts in sandboxes ignore setuid bits and devices (CloneMount); and on the host, only root can
// enter the parent directory of a volume.
func inAccountRange(id, uidBase uint32) bool { return id >= uidBase && id-uidBase < caisson.UIDRange }
