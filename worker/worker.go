// Package worker runs short jobs without privileges: everything that reads what strangers wrote.
//
// A job is one process of a small binary that the main one carries (cmd/caisson-worker). It gets its request over a pipe, an empty
// environment, the descriptors listed for it and nothing else. A job without network lives in user, mount, network,
// pid, ipc and uts namespaces of its own, its file system is one directory or nothing at all, and no_new_privs, seccomp,
// rlimits and an almost empty set of capabilities hold it there. A job with network runs as a user that owns nothing,
// without capabilities, and under Landlock where the kernel has it. Either dies with its parent. What it answers is
// bounded, decoded strictly, and still to be treated as hostile.
//
// A job with programs is one without network that may start programs of the host, as git: it sees them read-only, its own
// directories at /work and where [Request.Mounts] says, and reaches itself over a loopback device. What it starts is held as it
// is and ends with it. It is process 1: what its programs leave behind becomes its child and stays a zombie until then. No
// program can read the job's memory, or get a descriptor that the job does not hand on. Processes, threads and zombies together
// are at most 512, but limits on memory, processor time and file size are each process's own, and files in /tmp (64 MiB)
// and shared memory are no part of them: only [Limits.Time] is the whole job's. A program that a limit ends is killed by a
// signal, which the job sees and has to turn into an error.
//
// A package declares its jobs, each as a [Job], and the binary hands them to [Main] in an explicit table.
//
// worker is infrastructure: drivers may import it.
package worker

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// DefaultUID is a uid for jobs with network that belongs to no account and to no layer.
const DefaultUID = caisson.LayerUIDBase + caisson.UIDRange + 0xfffe

// Config configures a Runner.
type Config struct {
	// Exe is the binary whose main calls [Main]; required. It must be static, and the world must be able to execute it, if not to
	// find it: jobs run as users that own nothing, and execute a descriptor of it.
	Exe string
	// UIDBase is the first of the 65536 host uids and gids that a job's own user namespace is mapped to; required.
	UIDBase uint32
	// WorkUID is the uid and gid of jobs with network; required, and nobody else's. See [DefaultUID].
	WorkUID uint32
	// Log gets what jobs write to standard error; nil discards it.
	Log *slog.Logger
}

// A Runner starts jobs. It has no state but its program, and is safe for concurrent use.
type Runner struct {
	program *os.File // stays what it was, whatever becomes of its path
	exe     string   // names program in each process that has its descriptor
	uidBase uint32
	workUID uint32
	log     *slog.Logger
}

// New returns a Runner, or an Invalid error that says what is wrong with cfg.
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
	program, err := hold(cfg.Exe)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "worker: cannot open the program %q", cfg.Exe)
	}
	exe := fmt.Sprintf("/proc/self/fd/%d", program.Fd())
	return &Runner{program: program, exe: exe, uidBase: cfg.UIDBase, workUID: cfg.WorkUID, log: log.With("component", "worker")}, nil
}

// hold opens a program in order to execute it. Descriptors below firstHeld are where a job gets its own before that.
func hold(exe string) (*os.File, error) {
	const firstHeld = 512
	fd, err := unix.Open(exe, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstHeld)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(high), exe), nil
}

// A Request is one job to run. The caller keeps its descriptors and may close them when Run has returned.
type Request struct {
	Job  string // name in the table given to [Main]
	Args any    // marshalled to JSON; may hold secrets, they travel over a pipe only
	// Files are the job's descriptors, in order; see [Call.Files]. A job without network gets directories as mounts of their
	// own, so what is above them, or mounted below them, is out of its reach.
	Files []*os.File
	// Input is what [Call.Input] reads; nil for none. An *os.File goes to the job as it is.
	Input io.Reader
	// Root is the directory that becomes the job's whole file system, without the mounts below it; nil leaves it an empty
	// one. Only for jobs without network.
	Root *os.File
	// Access says what the job may do in Root.
	Access Access
	// Network gives the job the host's network and takes away everything else.
	Network bool
	// Programs lets the job start the host's programs, of which it sees /usr, /bin, /sbin, /lib, /lib64 and a few files of /etc
	// read-only, and gives it a loopback device of its own and a small /tmp. Its Root, then required, is at /work; Mounts are
	// where they say. Only for jobs without network, with Access ReadAsOwner or WriteAsOwner. Such a job never has capabilities,
	// has TCP and socket pairs, and unix sockets with a name only if all its directories belong to accounts. Directories
	// of root's are idmapped for it, but those in Files are not.
	Programs bool
	Mounts   []Mount // only with Programs
	Limits   Limits
	// Progress gets what the job reports with [Call.Progress], one call at a time; nil ignores it.
	Progress func(json.RawMessage)
}

// Access is what a job may do in its root directory.
type Access int

// The kinds of access.
const (
	// ReadAsOwner reads with the rights of the user who owns the directory, and changes nothing. If that is root, it
	// reads everything.
	ReadAsOwner Access = iota
	// ReadGuest reads everything in a directory that belongs to a guest: of the 65536 uids and gids from its owner's on.
	ReadGuest
	// Populate makes files of any guest uid and gid: the job is root of the uids from Config.UIDBase on.
	Populate
	// WriteAsOwner reads and writes with the rights of the user and group who own the directory, and with no others: it has
	// no capabilities and no other groups, even if the owner is root. What it makes belongs to them.
	WriteAsOwner
)

// Limits bound a job; zero fields mean the default.
type Limits struct {
	Time     time.Duration // wall clock; 1 hour
	CPU      time.Duration // processor time, whole seconds; 30 minutes
	Memory   int64         // bytes of private memory; 1 GiB
	FileSize int64         // largest file it may write, in bytes; 64 GiB
}

func (l Limits) withDefaults() Limits {
	if l.Time <= 0 {
		l.Time = time.Hour
	}
	if l.CPU < time.Second {
		l.CPU = 30 * time.Minute
	}
	if l.Memory <= 0 {
		l.Memory = 1 << 30
	}
	if l.FileSize <= 0 {
		l.FileSize = 64 << 30
	}
	return l
}
