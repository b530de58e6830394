// Package worker runs short unprivileged jobs, in particular every job that parses untrusted input.
//
// A job is one process of a small binary embedded in the main binary (cmd/caisson-worker). The job gets its request over a
// pipe, an empty environment, the file descriptors listed in the request and nothing else. A job without network runs in new
// user, mount, network, pid, ipc and uts namespaces; its file system is one directory or empty, and it is confined by
// no_new_privs, seccomp, rlimits and an almost empty set of capabilities. A job with network runs as a user that owns no files,
// without capabilities, and under Landlock if the kernel supports it. Every job is killed when its parent dies. Replies are
// bounded and decoded strictly, and callers must still treat them as hostile.
//
// A job with programs is a job without network that may start programs of the host, such as git: host directories such as /usr
// are mounted read-only, the job's directories are at /work and at the paths in [Request.Mounts], and it can connect to itself
// over a loopback device. The programs it starts are confined like the job and are killed with it. The job is process 1 of its
// pid namespace: orphaned processes become its children and remain zombies until it exits. No program can read the job's
// memory, or get a file descriptor that the job does not pass on. Processes, threads and zombies together are at most 512. The
// limits on memory, processor time and file size apply to each process separately and do not cover files in /tmp (64 MiB) or
// shared memory; only [Limits.Time] applies to the whole job. A program that exceeds a limit is killed by a signal, which the
// job must detect and turn into an error.
//
// A package declares its jobs, each as a [Job], and the binary passes them to [Main] in an explicit table.
//
// Package worker is infrastructure: drivers may import it.
package worker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// DefaultUID is a uid for jobs with network. It is outside the ranges of accounts and layers.
const DefaultUID = caisson.LayerUIDBase + caisson.UIDRange + 0xfffe

// Config configures a Runner.
type Config struct {
	// Exe is the binary whose main calls [Main]; required. It must be static, and executable by every user, because jobs run as
	// users that own no files. Its directory need not be accessible: jobs execute it through a file descriptor.
	Exe string
	// UIDBase is the first of the 65536 host uids and gids that a job's user namespace is mapped to; required.
	UIDBase uint32
	// WorkUID is the uid and gid of jobs with network; required, and must not be used by anything else. See [DefaultUID].
	WorkUID uint32
	// Log gets what jobs write to standard error; nil discards it.
	Log *slog.Logger
}

// A Runner starts jobs. Its only state is its program; it is safe for concurrent use.
type Runner struct {
	program *os.File // an open descriptor, so that replacing the file at its path has no effect
	exe     string   // path of program under /proc/self/fd
	uidBase uint32   // first uid and gid for the user namespaces of jobs; see Config.UIDBase
	workUID uint32   // uid and gid of jobs with network; see Config.WorkUID
	log     *slog.Logger
}

// New returns a Runner, or an Invalid error if cfg is not valid.
func New(cfg Config) (*Runner, error) {
	if cfg.UIDBase == 0 || cfg.WorkUID == 0 {
		return nil, caisson.Errorf(caisson.Invalid, "worker: the uids of jobs must be set and must not be root's")
	}
	if cfg.WorkUID-cfg.UIDBase < caisson.UIDRange {
		return nil, caisson.Errorf(caisson.Invalid, "worker: the uid of jobs with network owns files in layers; choose one outside their range")
	}
	fi, err := os.Stat(cfg.Exe)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "worker: cannot find the program %q", cfg.Exe)
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o001 == 0 {
		return nil, caisson.Errorf(caisson.Invalid, "worker: unprivileged users cannot execute %q; chmod it to 755", cfg.Exe)
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	program, err := openProgram(cfg.Exe)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "worker: cannot open the program %q", cfg.Exe)
	}
	exe := fmt.Sprintf("/proc/self/fd/%d", program.Fd())
	return &Runner{program: program, exe: exe, uidBase: cfg.UIDBase, workUID: cfg.WorkUID, log: log.With("component", "worker")}, nil
}

// openProgram opens a program in order to execute it. The descriptor is at least minFD, because lower numbers are used for the
// job's descriptors before the program is executed.
func openProgram(exe string) (*os.File, error) {
	const minFD = 512
	fd, err := unix.Open(exe, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, minFD)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(high), exe), nil
}

// A Request is one job to run. The caller keeps its descriptors and may close them when Run has returned.
type Request struct {
	Job  string // name in the table given to [Main]
	Args any    // marshalled to JSON; may hold secrets, they travel over a pipe only
	// Files are the job's descriptors, in order; see [Call.Files]. A job without network gets directories as separate mounts,
	// so that it cannot access their parent directories or the mounts below them.
	Files []*os.File
	// Input is the source that [Call.Input] reads; nil means an empty one. An *os.File is passed to the job directly.
	Input io.Reader
	// Root is the directory that becomes the job's whole file system, without the mounts below it; nil means an empty file
	// system. Only for jobs without network.
	Root *os.File
	// Access is the access of the job to Root.
	Access Access
	// Network gives the job the host's network, and excludes Root, Programs and all capabilities.
	Network bool
	// Programs lets the job start the host's programs. It mounts /usr, /bin, /sbin, /lib, /lib64 and a few files of /etc
	// read-only and provides a loopback device and a small /tmp. Root is then required and is mounted at /work; Mounts are at
	// the paths they name. Only for jobs without network, with Access ReadAsOwner or WriteAsOwner. Such a job never has
	// capabilities; it can use TCP and socket pairs, and named unix sockets only if no user of the host owns Root or a Mount.
	// Directories owned by root are idmapped for it, except those in Files.
	Programs bool
	Mounts   []Mount // further directories for the job; only with Programs
	Limits   Limits  // limits of the job
	// Progress gets each value that the job reports with [Call.Progress], one call at a time; nil ignores them.
	Progress func(json.RawMessage)
}

// Access is the access that a job has to its root directory.
type Access int

// The kinds of access that a job has to its root directory.
const (
	// ReadAsOwner reads with the rights of the user who owns the directory, and changes nothing. If the owner is root, it reads
	// everything.
	ReadAsOwner Access = iota
	// ReadGuest reads everything in a directory that belongs to a guest. The job's user namespace has the 65536 uids and gids
	// that start with those of the directory's owner.
	ReadGuest
	// Populate creates files with any guest uid and gid: the job is root of a user namespace mapped to the uids from
	// Config.UIDBase on.
	Populate
	// WriteAsOwner reads and writes with the rights of the user and group that own the directory, and no others: the job has no
	// capabilities and no other groups, even if the owner is root. The files it creates belong to that user and group.
	WriteAsOwner
)

// Limits bound a job; a zero field means its default.
type Limits struct {
	Time     time.Duration // wall clock time; default 1 hour
	CPU      time.Duration // processor time, in whole seconds; default 30 minutes
	Memory   int64         // private memory, in bytes; default 1 GiB
	FileSize int64         // size of the largest file that the job may write, in bytes; default 64 GiB
}

// withDefaults returns l with defaults for zero and negative fields.
func (l Limits) withDefaults() Limits {
	l.Time = cmp.Or(max(l.Time, 0), time.Hour)
	if l.CPU < time.Second {
		l.CPU = 30 * time.Minute
	}
	l.Memory = cmp.Or(max(l.Memory, 0), 1<<30)
	l.FileSize = cmp.Or(max(l.FileSize, 0), 64<<30)
	return l
}
