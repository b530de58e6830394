package gvisor

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/sentry"
)

// cloneAny returns the detached mounts that a launcher needs for m, and says in lm what to make of them.
func (l *launcher) cloneAny(m caisson.RuntimeMount, uidBase uint32, lm *sentry.LaunchMount) (trees []*os.File, err error) {
	if m.Overlay != nil {
		lm.Overlay, trees, err = l.cloneOverlay(m, uidBase)
		return trees, err
	}
	tree, err := l.cloneMount(m, uidBase)
	return []*os.File{tree}, err
}

// cloneMount returns a detached mount of a host directory as a sandbox may see it.
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
	fd, err := sentry.CloneMount(int(m.Source.Fd()), "", attr, idmap)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid,
			"the directory for %s cannot be mounted: its file system must be one that the daemon sees and that can map owners (ext4, xfs, btrfs and tmpfs can)", m.Target)
	}
	return os.NewFile(uintptr(fd), "mount"), nil
}

// ownerMap returns a user namespace that shows the files of a mounted directory's owner as the guest root's, nil for a
// directory of root's or of the guest's own. Root's files are never mapped: the guest sees them as nobody's and reads what
// everyone may read. So a guest cannot make a setuid-root file, and cannot read what only root may.
func (l *launcher) ownerMap(m caisson.RuntimeMount, uidBase uint32) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(m.Source.Fd()), &st); err != nil {
		return nil, err
	}
	if ownID(st.Uid, uidBase) && ownID(st.Gid, uidBase) {
		return nil, nil
	}
	if m.Writable && (st.Uid == 0 || st.Gid == 0) {
		return nil, caisson.Invalidf("mounts", "the directory for %s belongs to root or to root's group, so it cannot be mounted writable; give it to an ordinary user and group first (chown)", m.Target)
	}
	if st.Uid == 0 {
		return nil, nil
	}
	gid := st.Gid
	if gid == 0 {
		gid = 65534 // nobody's group: root's is never mapped
	}
	return l.idmap(st.Uid, gid, uidBase, 1)
}

// ownID reports whether a host uid or gid is one of the sandbox's account. A directory with such an owner and group, which is a
// volume, is shown as it is: all users of the guest can own files in it, and its root can give the directory itself to one. What
// they make there is harmless on the host. Its owners are uids of the account's range, which nobody else has, or the guest could
// not have named them; a guest cannot make devices, for which the kernel wants rights outside of user namespaces; in sandboxes no
// mount honours setuid or devices (CloneMount); and on the host only root passes the directory above a volume.
func ownID(id, uidBase uint32) bool { return id >= uidBase && id-uidBase < caisson.UIDRange }
