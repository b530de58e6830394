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
		unix.SYS_OPEN:    func(t *kernel.Task, a arch.SyscallArguments, ret uintptr) { r.recordOpen(t, a[1].Uint(), ret) },
		unix.SYS_OPENAT:  func(t *kernel.Task, a arch.SyscallArguments, ret uintptr) { r.recordOpen(t, a[2].Uint(), ret) },
		unix.SYS_OPENAT2: r.recordOpenat2,
		unix.SYS_CREAT:   func(t *kernel.Task, _ arch.SyscallArguments, ret uintptr) { r.recordOpen(t, linux.O_WRONLY, ret) },

		unix.SYS_MKDIR:     r.recordName(argWorkDir, 0, (*lastwrite.Table).Made),
		unix.SYS_MKDIRAT:   r.recordName(0, 1, (*lastwrite.Table).Made),
		unix.SYS_MKNOD:     r.recordName(argWorkDir, 0, (*lastwrite.Table).Made),
		unix.SYS_MKNODAT:   r.recordName(0, 1, (*lastwrite.Table).Made),
		unix.SYS_SYMLINK:   r.recordName(argWorkDir, 1, (*lastwrite.Table).Made),
		unix.SYS_SYMLINKAT: r.recordName(1, 2, (*lastwrite.Table).Made),
		unix.SYS_UNLINK:    r.recordName(argWorkDir, 0, (*lastwrite.Table).Removed),
		unix.SYS_UNLINKAT:  r.recordName(0, 1, (*lastwrite.Table).Removed),
		unix.SYS_RMDIR:     r.recordName(argWorkDir, 0, (*lastwrite.Table).Removed),
		unix.SYS_BIND:      r.recordBind,

		unix.SYS_RENAME:    r.recordRename(argWorkDir, 0, argWorkDir, 1, argNone),
		unix.SYS_RENAMEAT:  r.recordRename(0, 1, 2, 3, argNone),
		unix.SYS_RENAMEAT2: r.recordRename(0, 1, 2, 3, 4),
		unix.SYS_LINK:      r.recordLink(argWorkDir, 0, argWorkDir, 1, argNone),
		unix.SYS_LINKAT:    r.recordLink(0, 1, 2, 3, 4),

		unix.SYS_TRUNCATE: r.recordChange(argWorkDir, 0, argNone, true),
		unix.SYS_CHMOD:    r.recordChange(argWorkDir, 0, argNone, true),
		unix.SYS_FCHMODAT: r.recordChange(0, 1, argNone, true),
		unix.SYS_CHOWN:    r.recordChange(argWorkDir, 0, argNone, true),
		unix.SYS_LCHOWN:   r.recordChange(argWorkDir, 0, argNone, false),
		unix.SYS_FCHOWNAT: r.recordChange(0, 1, 4, true),

		unix.SYS_FTRUNCATE: r.recordFileChange,
		unix.SYS_FCHMOD:    r.recordFileChange,
		unix.SYS_FCHOWN:    r.recordFileChange,
	} {
		wrapSyscall(sysno, r.recordAfter(n))
	}
	if _, ok := syscalls.AMD64.Table[unix.SYS_FCHMODAT2]; ok { // not all versions of gVisor have the system call
		wrapSyscall(unix.SYS_FCHMODAT2, r.recordAfter(r.recordChange(0, 1, 3, true)))
	}
}

// Values that stand for the index of an argument, for system calls that do not have the argument.
const (
	argWorkDir = -1 // the call has no argument for a directory; paths are relative to the working directory
	argNone    = -1 // the call has no such argument
)

// recordAfter returns a function for wrapSyscall that makes a system call run record after it has succeeded.
func (r *recorder) recordAfter(record recordFunc) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(original kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			r.findFilesystems(t)
			ret, ctrl, err := original(t, sysno, args)
			if err == nil {
				record(t, args, ret)
			}
			return ret, ctrl, err
		}
	}
}

// recordOpen records that a file was opened, if it was opened for writing or may have been created.
func (r *recorder) recordOpen(t *kernel.Task, flags uint32, ret uintptr) {
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

// recordOpenat2 records that a file was opened with openat2, whose flags are in the guest's memory.
func (r *recorder) recordOpenat2(t *kernel.Task, args arch.SyscallArguments, ret uintptr) {
	var how linux.OpenHow
	if _, err := how.CopyInN(t, args[2].Pointer(), linux.OPEN_HOW_SIZE_VER0); err == nil {
		r.recordOpen(t, uint32(how.Flags), ret)
	}
}

// recordFileChange records a change of the open file whose descriptor is the call's first argument.
func (r *recorder) recordFileChange(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
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

// recordName returns the recordFunc of a call that creates or removes a name. what is the method of the table that records the
// call. dir and path are the indexes of the call's arguments with the directory and the path.
func (r *recorder) recordName(dir, path int, what func(*lastwrite.Table, string, lastwrite.Process)) recordFunc {
	return func(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
		if p, ok := r.readPath(t, dirFD(args, dir), args[path].Pointer()); ok {
			what(p.table, p.path, callingProcess(t))
		}
	}
}

// recordBind records that a UNIX socket was bound to a path.
func (r *recorder) recordBind(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
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
	if p, ok := r.resolvePath(t, linux.AT_FDCWD, name); ok {
		p.table.Made(p.path, callingProcess(t))
	}
}

// recordRename returns the recordFunc of a call that renames a file. The parameters are the indexes of the call's arguments.
func (r *recorder) recordRename(oldDir, oldPath, newDir, newPath, flags int) recordFunc {
	return func(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
		from, ok := r.readPath(t, dirFD(args, oldDir), args[oldPath].Pointer())
		to, ok2 := r.readPath(t, dirFD(args, newDir), args[newPath].Pointer())
		if ok && ok2 && from.table == to.table { // rename cannot move a file to another file system
			swap := flags != argNone && args[flags].Uint()&linux.RENAME_EXCHANGE != 0
			from.table.Renamed(from.path, to.path, swap, callingProcess(t))
		}
	}
}

// recordLink returns the recordFunc of a call that creates a hard link. The parameters are the indexes of the call's arguments.
func (r *recorder) recordLink(oldDir, oldPath, newDir, newPath, flags int) recordFunc {
	return func(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
		to, ok := r.readPath(t, dirFD(args, newDir), args[newPath].Pointer())
		if !ok {
			return
		}
		var how int32
		if flags != argNone {
			how = args[flags].Int()
		}
		from, ok := r.findPath(t, dirFD(args, oldDir), args[oldPath].Pointer(), how&linux.AT_SYMLINK_FOLLOW != 0, how)
		if ok && from.table == to.table {
			from.table.Linked(from.path, to.path, callingProcess(t))
		} else { // The old name is not known, for example of an unlinked file that was linked by its descriptor.
			to.table.Made(to.path, callingProcess(t))
		}
	}
}

// recordChange returns the recordFunc of a call that changes an existing file. dir, path and flags are the indexes of the call's
// arguments; follow reports whether the call follows a symlink at the path unless a flag says otherwise.
func (r *recorder) recordChange(dir, path, flags int, follow bool) recordFunc {
	return func(t *kernel.Task, args arch.SyscallArguments, _ uintptr) {
		var how int32
		if flags != argNone {
			how = args[flags].Int()
		}
		if p, ok := r.findPath(t, dirFD(args, dir), args[path].Pointer(), follow && how&linux.AT_SYMLINK_NOFOLLOW == 0, how); ok {
			p.table.Wrote(p.path, callingProcess(t))
		}
	}
}

// dirFD returns the descriptor in the argument with the index arg, or AT_FDCWD if arg is argWorkDir.
func dirFD(args arch.SyscallArguments, arg int) int32 {
	if arg == argWorkDir {
		return linux.AT_FDCWD
	}
	return args[arg].Int()
}

// findPath reads a path from the guest's memory at addr and returns the workspace path of the file there, which must exist.
// dir is the descriptor of the directory that the path is relative to; if the path is "" and flags contain AT_EMPTY_PATH, dir is
// the file itself. If follow is set, a symlink at the path is followed. ok is false if the file is not in a workspace.
func (r *recorder) findPath(t *kernel.Task, dir int32, addr hostarch.Addr, follow bool, flags int32) (p workspacePath, ok bool) {
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

// readPath reads a path from the guest's memory at addr and returns it as a workspace path, whether or not a file exists there.
// dir is the descriptor of the directory that the path is relative to. ok is false if the path is not in a workspace.
func (r *recorder) readPath(t *kernel.Task, dir int32, addr hostarch.Addr) (p workspacePath, ok bool) {
	name, err := t.CopyInString(addr, linux.PATH_MAX)
	if err != nil {
		return p, false
	}
	return r.resolvePath(t, dir, name)
}

// resolvePath returns a path as a workspace path, whether or not a file exists there. dir is the descriptor of the directory that
// the path is relative to. ok is false if the path is not in a workspace.
func (r *recorder) resolvePath(t *kernel.Task, dir int32, path string) (p workspacePath, ok bool) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/') + 1
	name := path[i:]
	if name == "" || name == "." || name == ".." {
		return p, false
	}
	r.lookUp(t, dir, path[:i], true, func(at vfs.VirtualDentry) { p, ok = r.locate(t, at) })
	return p.below(name), ok
}

// lookUp resolves path in the same way as the system call that has succeeded, and calls f with the result. A relative path is
// resolved from the directory with the descriptor dir; if path is "", the result is that directory. If follow is set, a symlink
// at the path is followed.
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
