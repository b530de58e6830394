package sentry

import (
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	syscalls "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/caisson-dev/caisson/runtime/gvisor/lastwrite"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// A recordFunc records a system call that has succeeded. It reads the call's path from the guest's memory a second time, so
// another thread of the guest can make it record a different path. This is acceptable, because the guest could also have made
// the call with that path.
type recordFunc func(t *kernel.Task, args arch.SyscallArguments, ret uintptr)

// install wraps the system calls that change files. It must run before gVisor starts a kernel.
func (r *recorder) install() {
	seccheck.RegisterSink(seccheck.SinkDesc{Name: protocol.WritersSink, New: r.newSink})
	for sysno, n := range map[uintptr]recordFunc{
		unix.SYS_OPEN:    func(t *kernel.Task, a arch.SyscallArguments, ret uintptr) { r.opened(t, a[1].Uint(), ret) },
		unix.SYS_OPENAT:  func(t *kernel.Task, a arch.SyscallArguments, ret uintptr) { r.opened(t, a[2].Uint(), ret) },
		unix.SYS_OPENAT2: r.opened2,
		unix.SYS_CREAT:   func(t *kernel.Task, _ arch.SyscallArguments, ret uintptr) { r.opened(t, linux.O_WRONLY, ret) },

		unix.SYS_MKDIR:     r.named(cwd, 0, (*lastwrite.Table).Made),
		unix.SYS_MKDIRAT:   r.named(0, 1, (*lastwrite.Table).Made),
		unix.SYS_MKNOD:     r.named(cwd, 0, (*lastwrite.Table).Made),
		unix.SYS_MKNODAT:   r.named(0, 1, (*lastwrite.Table).Made),
		unix.SYS_SYMLINK:   r.named(cwd, 1, (*lastwrite.Table).Made),
		unix.SYS_SYMLINKAT: r.named(1, 2, (*lastwrite.Table).Made),
		unix.SYS_UNLINK:    r.named(cwd, 0, (*lastwrite.Table).Removed),
		unix.SYS_UNLINKAT:  r.named(0, 1, (*lastwrite.Table).Removed),
		unix.SYS_RMDIR:     r.named(cwd, 0, (*lastwrite.Table).Removed),
		unix.SYS_BIND:      r.bound,

		unix.SYS_RENAME:    r.renamed(cwd, 0, cwd, 1, none),
		unix.SYS_RENAMEAT:  r.renamed(0, 1, 2, 3, none),
		unix.SYS_RENAMEAT2: r.renamed(0, 1, 2, 3, 4),
		unix.SYS_LINK:      r.linked(cwd, 0, cwd, 1, none),
		unix.SYS_LINKAT:    r.linked(0, 1, 2, 3, 4),

		unix.SYS_TRUNCATE: r.changed(cwd, 0, none, true),
		unix.SYS_CHMOD:    r.changed(cwd, 0, none, true),
		unix.SYS_FCHMODAT: r.changed(0, 1, none, true),
		unix.SYS_CHOWN:    r.changed(cwd, 0, none, true),
		unix.SYS_LCHOWN:   r.changed(cwd, 0, none, false),
		unix.SYS_FCHOWNAT: r.changed(0, 1, 4, true),

		unix.SYS_FTRUNCATE: r.changedFile,
		unix.SYS_FCHMOD:    r.changedFile,
		unix.SYS_FCHOWN:    r.changedFile,
	} {
		wrap(sysno, r.after(n))
	}
	if _, ok := syscalls.AMD64.Table[unix.SYS_FCHMODAT2]; ok { // not in all versions of gVisor
		wrap(unix.SYS_FCHMODAT2, r.after(r.changed(0, 1, 3, true)))
	}
}

// Values for the index of an argument that a call does not have.
const (
	cwd  = -1 // for a directory: paths are relative to the working directory
	none = -1
)

// after returns a wrapper of a system call that calls n after the call has succeeded.
func (r *recorder) after(n recordFunc) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(original kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			r.findFilesystems(t)
			ret, ctrl, err := original(t, sysno, args)
			if err == nil {
				n(t, args, ret)
			}
			return ret, ctrl, err
		}
	}
}

// opened records that a file was opened, if it was opened for writing or may have been created.
func (r *recorder) opened(t *kernel.Task, flags uint32, ret uintptr) {
	writes := flags&linux.O_ACCMODE != linux.O_RDONLY || flags&linux.O_TRUNC != 0
	if flags&linux.O_PATH != 0 || !writes && flags&linux.O_CREAT == 0 {
		return
	}
	r.withFile(t, int32(ret), func(p workspacePath) {
		if writes {
			p.table.Wrote(p.path, callingProcess(t))
		} else {
			p.table.Opened(p.path, callingProcess(t))
		}
	})
}

// opened2 is like opened for openat2, whose flags are in the guest's memory.
func (r *recorder) opened2(t *kernel.Task, args arch.SyscallArguments, ret uintptr) {
	var how linux.OpenHow
	if _, err := how.CopyInN(t, args[2].Pointer(), linux.OPEN_HOW_SIZE_VER0); err == nil {
		r.opened(t, uint32(how.Flags), ret)
	}
}

// changedFile records a change of the open file whose descriptor is the call's first argument.
func (r *recorder) changedFile(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
	r.withFile(t, args[0].Int(), func(p workspacePath) { p.table.Wrote(p.path, callingProcess(t)) })
}

// withFile calls f with the path of an open file in its workspace, if it is in one.
func (r *recorder) withFile(t *kernel.Task, fd int32, f func(workspacePath)) {
	file := t.GetFile(fd)
	if file == nil {
		return
	}
	defer file.DecRef(t)
	if p, ok := r.locate(t, file.VirtualDentry()); ok {
		f(p)
	}
}

// named returns the recordFunc of a call that creates or removes a name. It calls what to record the call. dir and path are the
// indexes of the arguments with the directory and the path.
func (r *recorder) named(dir, path int, what func(*lastwrite.Table, string, lastwrite.Process)) recordFunc {
	return func(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
		if p, ok := r.nameAt(t, dirOf(args, dir), args[path].Pointer()); ok {
			what(p.table, p.path, callingProcess(t))
		}
	}
}

// bound records that a UNIX socket was bound to a path.
func (r *recorder) bound(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
	const family, longest = 2, 110 // sizes in bytes of the family and of the longest address
	size := int(args[2].Uint())
	if size <= family || size > longest {
		return
	}
	addr := make([]byte, size)
	if _, err := t.CopyInBytes(args[1].Pointer(), addr); err != nil || hostarch.ByteOrder.Uint16(addr) != linux.AF_UNIX || addr[family] == 0 {
		return
	}
	name, _, _ := strings.Cut(string(addr[family:]), "\x00")
	if p, ok := r.nameFrom(t, linux.AT_FDCWD, name); ok {
		p.table.Made(p.path, callingProcess(t))
	}
}

// renamed returns the recordFunc of a call that renames a file. The parameters are the indexes of the call's arguments.
func (r *recorder) renamed(oldDir, oldPath, newDir, newPath, flags int) recordFunc {
	return func(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
		from, ok := r.nameAt(t, dirOf(args, oldDir), args[oldPath].Pointer())
		to, ok2 := r.nameAt(t, dirOf(args, newDir), args[newPath].Pointer())
		if ok && ok2 && from.table == to.table { // rename does not work across file systems
			swap := flags != none && args[flags].Uint()&linux.RENAME_EXCHANGE != 0
			from.table.Renamed(from.path, to.path, swap, callingProcess(t))
		}
	}
}

// linked returns the recordFunc of a call that creates a hard link. The parameters are the indexes of the call's arguments.
func (r *recorder) linked(oldDir, oldPath, newDir, newPath, flags int) recordFunc {
	return func(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
		to, ok := r.nameAt(t, dirOf(args, newDir), args[newPath].Pointer())
		if !ok {
			return
		}
		var how int32
		if flags != none {
			how = args[flags].Int()
		}
		from, ok := r.existing(t, dirOf(args, oldDir), args[oldPath].Pointer(), how&linux.AT_SYMLINK_FOLLOW != 0, how)
		if ok && from.table == to.table {
			from.table.Linked(from.path, to.path, callingProcess(t))
		} else { // The old name is not known, for example of an unlinked file that was linked by its descriptor.
			to.table.Made(to.path, callingProcess(t))
		}
	}
}

// changed returns the recordFunc of a call that changes an existing file. dir, path and flags are the indexes of the call's
// arguments; follow reports whether the call follows a symlink at the path unless a flag says otherwise.
func (r *recorder) changed(dir, path, flags int, follow bool) recordFunc {
	return func(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
		var how int32
		if flags != none {
			how = args[flags].Int()
		}
		if p, ok := r.existing(t, dirOf(args, dir), args[path].Pointer(), follow && how&linux.AT_SYMLINK_NOFOLLOW == 0, how); ok {
			p.table.Wrote(p.path, callingProcess(t))
		}
	}
}

// dirOf returns the descriptor in the argument with the index arg, or AT_FDCWD if arg is cwd.
func dirOf(args arch.SyscallArguments, arg int) int32 {
	if arg == cwd {
		return linux.AT_FDCWD
	}
	return args[arg].Int()
}

// existing returns the path in its workspace of the existing file at a path that is read from the guest's memory at addr. dir is
// the descriptor of the directory that the path is relative to; if the path is "" and flags contain AT_EMPTY_PATH, dir is the
// file itself.
func (r *recorder) existing(t *kernel.Task, dir int32, addr hostarch.Addr, follow bool, flags int32) (p workspacePath, ok bool) {
	name, err := t.CopyInString(addr, linux.PATH_MAX)
	if err != nil {
		return p, false
	}
	if name == "" {
		if flags&linux.AT_EMPTY_PATH != 0 && dir != linux.AT_FDCWD {
			r.withFile(t, dir, func(at workspacePath) { p, ok = at, true })
		}
		return p, ok
	}
	r.lookUp(t, dir, name, follow, func(at vfs.VirtualDentry) { p, ok = r.locate(t, at) })
	return p, ok
}

// nameAt returns the path in its workspace for a path that is read from the guest's memory, whether or not a file exists there.
func (r *recorder) nameAt(t *kernel.Task, dir int32, addr hostarch.Addr) (p workspacePath, ok bool) {
	name, err := t.CopyInString(addr, linux.PATH_MAX)
	if err != nil {
		return p, false
	}
	return r.nameFrom(t, dir, name)
}

// nameFrom returns the path in its workspace for a path relative to the directory with the descriptor dir, whether or not a file
// exists there.
func (r *recorder) nameFrom(t *kernel.Task, dir int32, path string) (p workspacePath, ok bool) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/') + 1
	name := path[i:]
	if name == "" || name == "." || name == ".." {
		return p, false
	}
	r.lookUp(t, dir, path[:i], true, func(at vfs.VirtualDentry) { p, ok = r.locate(t, at) })
	return p.below(name), ok
}

// lookUp resolves path in the same way as the system call that has succeeded, and calls f with the result. If path is "", the
// result is the directory that paths are relative to.
func (r *recorder) lookUp(t *kernel.Task, dir int32, path string, follow bool, f func(vfs.VirtualDentry)) {
	root := t.FSContext().RootDirectory()
	defer root.DecRef(t)
	start := root
	switch {
	case strings.HasPrefix(path, "/"):
	case dir == linux.AT_FDCWD:
		start = t.FSContext().WorkingDirectory()
		defer start.DecRef(t)
	default:
		file := t.GetFile(dir)
		if file == nil {
			return
		}
		defer file.DecRef(t)
		start = file.VirtualDentry()
	}
	if path == "" {
		f(start)
		return
	}
	at, err := t.Kernel().VFS().GetDentryAt(t, t.Credentials(), &vfs.PathOperation{
		Root: root, Start: start, Path: fspath.Parse(path), FollowFinalSymlink: follow,
	}, &vfs.GetDentryOptions{})
	if err != nil {
		return
	}
	defer at.DecRef(t)
	f(at)
}
