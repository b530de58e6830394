package sentry

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"

	"github.com/caisson-dev/caisson/internal/namemask"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// HideAnnotation is the annotation of a spec with the workspaces in which the gofer hides names: a JSON object that maps their
// mount points to [Hidden].
const HideAnnotation = "dev.caisson.hide"

// Hidden describes the names that are hidden in a workspace: names of files that may contain secrets, unless the sandbox has
// created them itself. Files that existed when the workspace was created are hidden by its mask layer; Hidden applies to files
// that appear on the host later.
type Hidden struct {
	Upper      string   // path of the upper layer when the gofer starts
	Hide, Show []string // the patterns of a mask: a name is hidden if it matches one in Hide and none in Show
}

// hideNames adds the annotations that make the gofer hide names in the workspace m, which is mounted on dir. It turns gVisor's
// directfs off for the mount, so that the sandbox opens files through the gofer instead of directly.
func (r *launchRequest) hideNames(m protocol.LaunchMount, dir string) error {
	if len(m.Overlay.Hide) == 0 {
		return nil
	}
	// The gofer's user cannot enter the parent directory of the layers, but it owns the upper layer, which is bind-mounted here.
	upper := dir + "-upper"
	if err := os.Mkdir(upper, 0o711); err != nil {
		return err
	}
	const flags = unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount(filepath.Join(dir+"-dir", m.Overlay.Upper), upper, "", flags, ""); err != nil {
		return fmt.Errorf("bind mount the upper layer: %w", err)
	}
	if err := unix.Mount("", upper, "", flags|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("bind mount the upper layer: %w", err)
	}
	if r.Spec.Annotations == nil {
		r.Spec.Annotations = map[string]string{}
	}
	hidden := map[string]Hidden{}
	if v, ok := r.Spec.Annotations[HideAnnotation]; ok {
		if err := json.Unmarshal([]byte(v), &hidden); err != nil {
			return err
		}
	}
	hidden[m.Target] = Hidden{Upper: upper, Hide: m.Overlay.Hide, Show: m.Overlay.Show}
	v, err := json.Marshal(hidden)
	if err != nil {
		return err
	}
	r.Spec.Annotations[HideAnnotation] = string(v)
	// These are annotations of gVisor, see MountHint in its runsc/boot.
	hint := "dev.gvisor.spec.mount." + filepath.Base(dir) + "."
	for key, value := range map[string]string{"source": dir, "type": "bind", "share": "shared", "directfs": "off"} {
		r.Spec.Annotations[hint+key] = value
	}
	return nil
}

// A nameFilter hides names in one gofer. Requests come from gVisor's sentry, which looks up every name (Walk, WalkStat) before
// it uses it, and reads other names from directory listings (Getdents64). Directories of the lower layer cannot be renamed or
// replaced in an overlay without redirects, so the path of a directory identifies it for as long as it exists.
type nameFilter struct {
	mounts  []filteredMount // mounts of workspaces with hidden names
	targets map[string]bool // mount points that the gofer serves: those of the spec, / and /dev
}

// filteredMount is the mount of a workspace with hidden names.
type filteredMount struct {
	root  string         // path in the gofer's file system, the same as in the sandbox
	upper int            // descriptor of the upper layer, in which the files are that the sandbox has created
	mask  *namemask.Mask // matches the names to hide
}

// gvisorHandlers are the gofer's request handlers. Each server has a slice of this array.
//
//go:linkname gvisorHandlers gvisor.dev/gvisor/pkg/lisafs.handlers
var gvisorHandlers [lisafs.RenameAt2 + 1]lisafs.RPCHandler

// lookupControlFD is an unexported method of gVisor. It returns the descriptor of a connection for a file that is looked up but
// not open; the caller must release the reference.
//
//go:linkname lookupControlFD gvisor.dev/gvisor/pkg/lisafs.(*Connection).lookupControlFD
func lookupControlFD(c *lisafs.Connection, id lisafs.FDID) (*lisafs.ControlFD, error)

// lookupOpenFD is an unexported method of gVisor. It returns the descriptor of a connection for an open file; the caller must
// release the reference.
//
//go:linkname lookupOpenFD gvisor.dev/gvisor/pkg/lisafs.(*Connection).lookupOpenFD
func lookupOpenFD(c *lisafs.Connection, id lisafs.FDID) (*lisafs.OpenFD, error)

// withRenameReadLock is an unexported method of gVisor. It calls f while no file of the server can be renamed.
//
//go:linkname withRenameReadLock gvisor.dev/gvisor/pkg/lisafs.(*Server).withRenameReadLock
func withRenameReadLock(s *lisafs.Server, f func() error) error

// Offsets in [lisafs.Connection] of the fields with its server and with the path of its mount.
var (
	serverOffset    = fieldOffset[lisafs.Connection, *lisafs.Server]("server")
	mountPathOffset = fieldOffset[lisafs.Connection, string]("mountPath")
)

// readHidden returns the value of HideAnnotation and the mount points of all mounts, from the spec whose descriptor is among a
// gofer's arguments. Both are nil if the spec does not have the annotation.
func readHidden(args []string) (hidden map[string]Hidden, targets []string, err error) {
	spec, err := readSpec(args)
	if err != nil {
		return nil, nil, err
	}
	v, ok := spec.Annotations[HideAnnotation]
	if !ok {
		return nil, nil, nil
	}
	if err := json.Unmarshal([]byte(v), &hidden); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", HideAnnotation, err)
	}
	for _, m := range spec.Mounts {
		targets = append(targets, m.Destination)
	}
	return hidden, targets, nil
}

// installNameFilter makes this gofer hide the names that hidden describes by the mount point of their workspace, and serve only
// the mount points targets, / and /dev, unless hidden is empty. It must run before the gofer leaves the launcher's file system.
func installNameFilter(hidden map[string]Hidden, targets []string) error {
	if len(hidden) == 0 {
		return nil
	}
	if reflect.ValueOf(gvisorHandlers[lisafs.Walk]).Pointer() != reflect.ValueOf(lisafs.WalkHandler).Pointer() {
		return errors.New("gVisor keeps the handlers of its gofer in another way now")
	}
	v := &nameFilter{targets: map[string]bool{"/": true, "/dev": true}}
	for _, target := range targets {
		v.targets[path.Clean("/"+target)] = true
	}
	for target, h := range hidden {
		mask, err := namemask.New(h.Hide, h.Show)
		if err != nil {
			return err
		}
		fd, err := unix.Open(h.Upper, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open the upper layer of "+target, err)
		}
		v.mounts = append(v.mounts, filteredMount{path.Clean("/" + target), fd, mask})
	}
	gvisorHandlers[lisafs.Mount] = v.mountHandler(gvisorHandlers[lisafs.Mount])
	for _, m := range []lisafs.MID{lisafs.Walk, lisafs.WalkStat} {
		gvisorHandlers[m] = v.walkHandler(gvisorHandlers[m], m == lisafs.Walk)
	}
	gvisorHandlers[lisafs.Getdents64] = v.listHandler(gvisorHandlers[lisafs.Getdents64])
	return nil
}

// mountHandler returns a handler of the request Mount that refuses paths which are not targets in the spec. Otherwise, a symlink
// of the image could redirect a mount to a path where no names are hidden.
func (v *nameFilter) mountHandler(original lisafs.RPCHandler) lisafs.RPCHandler {
	return func(c *lisafs.Connection, comm lisafs.Communicator, n uint32) (uint32, error) {
		if !v.targets[path.Clean(*(*string)(unsafe.Add(unsafe.Pointer(c), mountPathOffset)))] {
			return 0, unix.EACCES
		}
		return original(c, comm, n)
	}
}

// findMount returns the mount that contains the path full, and the path relative to the mount; nil if no mount contains it.
func (v *nameFilter) findMount(full string) (m *filteredMount, rel string) {
	for i := range v.mounts {
		if rel, ok := strings.CutPrefix(full+"/", v.mounts[i].root+"/"); ok {
			return &v.mounts[i], strings.TrimSuffix(rel, "/")
		}
	}
	return nil, ""
}

// hidden reports whether the file at rel, a path relative to the mount, is hidden: the mask matches it, and it is not in the
// upper layer, or the upper layer cannot be read. The lookup uses openat2 and fstatat, because gVisor's seccomp filter for the
// gofer allows these calls.
func (m *filteredMount) hidden(rel string) bool {
	if !m.mask.Hides(rel) {
		return false
	}
	dir, name := path.Split(rel)
	at := m.upper
	if dir != "" {
		fd, err := unix.Openat2(m.upper, dir, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
		if err != nil {
			return true
		}
		defer unix.Close(fd)
		at = fd
	}
	var st unix.Stat_t
	return unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || isWhiteout(&st)
}

// isWhiteout reports whether an entry of an overlay's layer is a whiteout, a character device 0:0.
func isWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// nodePath returns the path of a node, a file that the gofer serves on the connection c.
func nodePath(c *lisafs.Connection, node *lisafs.Node) (p string) {
	server := *(**lisafs.Server)(unsafe.Add(unsafe.Pointer(c), serverOffset))
	withRenameReadLock(server, func() error {
		p = node.FilePath()
		return nil
	})
	return p
}

// walkHandler returns a handler of the request Walk or WalkStat that replies as if the first hidden name did not exist. hasStatus
// reports whether the reply contains a status, as that of Walk does.
func (v *nameFilter) walkHandler(original lisafs.RPCHandler, hasStatus bool) lisafs.RPCHandler {
	return func(c *lisafs.Connection, comm lisafs.Communicator, n uint32) (uint32, error) {
		var req lisafs.WalkReq
		if _, ok := req.CheckedUnmarshal(comm.PayloadBuf(n)); !ok {
			return 0, unix.EIO
		}
		keep, err := v.countVisible(c, req.DirFD, req.Path)
		if err != nil {
			return 0, err
		}
		if keep == len(req.Path) {
			return original(c, comm, n)
		}
		// The buffer with the request is overwritten with the shortened request. The strings in req.Path do not share its memory.
		req.Path = req.Path[:keep]
		size := uint32(req.SizeBytes())
		req.MarshalBytes(comm.PayloadBuf(size))
		got, err := original(c, comm, size)
		if err == nil && hasStatus {
			// The first byte of the reply is the status. Only success needs to be replaced.
			if buf := comm.PayloadBuf(got); lisafs.WalkStatus(buf[0]) == lisafs.WalkSuccess {
				buf[0] = byte(lisafs.WalkComponentDoesNotExist)
			}
		}
		return got, err
	}
}

// countVisible returns how many elements of names, a path relative to dir, precede the first element that is hidden.
func (v *nameFilter) countVisible(c *lisafs.Connection, dir lisafs.FDID, names []string) (int, error) {
	fd, err := lookupControlFD(c, dir)
	if err != nil {
		return 0, err
	}
	defer fd.DecRef(nil)
	m, rel := v.findMount(nodePath(c, fd.Node()))
	if m == nil {
		return len(names), nil
	}
	for i, name := range names {
		rel = path.Join(rel, name)
		if m.hidden(rel) {
			return i, nil
		}
	}
	return len(names), nil
}

// listHandler returns a handler of the request Getdents64 that omits hidden names.
func (v *nameFilter) listHandler(original lisafs.RPCHandler) lisafs.RPCHandler {
	return func(c *lisafs.Connection, comm lisafs.Communicator, n uint32) (uint32, error) {
		var req lisafs.Getdents64Req
		if _, ok := req.CheckedUnmarshal(comm.PayloadBuf(n)); !ok {
			return 0, unix.EIO
		}
		for {
			got, err := original(c, comm, n)
			if err != nil {
				return got, err
			}
			left, hid, err := v.filterList(c, comm, req.DirFD, got)
			// An empty reply means the end of the directory, so an empty reply after filtering must be replaced by the next one.
			if err != nil || !hid || left > emptyListSize {
				return left, err
			}
			if req.Count < 0 {
				req.Count = -req.Count // a negative count restarts the listing, which must happen only once
			}
			n = uint32(req.SizeBytes())
			req.MarshalUnsafe(comm.PayloadBuf(n))
		}
	}
}

// emptyListSize is the size in bytes of a reply to Getdents64 that lists no name: it contains only their number, 16 bits.
const emptyListSize = 2

// filterList removes hidden names from a Getdents64 reply of n bytes, for dir. It returns the new size and whether it removed
// any.
func (v *nameFilter) filterList(c *lisafs.Connection, comm lisafs.Communicator, dir lisafs.FDID, n uint32) (size uint32, hid bool, err error) {
	fd, err := lookupOpenFD(c, dir)
	if err != nil {
		return 0, false, err
	}
	defer fd.DecRef(nil)
	m, rel := v.findMount(nodePath(c, fd.ControlFD().FD().Node()))
	if m == nil {
		return n, false, nil
	}
	var answer lisafs.Getdents64Resp
	if _, ok := answer.CheckedUnmarshal(comm.PayloadBuf(n)); !ok {
		return 0, false, unix.EIO
	}
	seen := answer.Dirents[:0]
	for _, d := range answer.Dirents {
		if name := string(d.Name); name == "." || name == ".." || !m.hidden(path.Join(rel, name)) {
			seen = append(seen, d)
		}
	}
	if len(seen) == len(answer.Dirents) {
		return n, false, nil
	}
	answer.Dirents = seen
	size = uint32(answer.SizeBytes())
	answer.MarshalBytes(comm.PayloadBuf(size))
	return size, true, nil
}
