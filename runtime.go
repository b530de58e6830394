package caisson

import (
	"context"
	"os"
)

// A Runtime runs sandboxes on this host.
//
// All methods are safe for concurrent use on different IDs. For one ID, callers must serialise all methods but Exec, WaitCommand,
// Signal, Processes and Stats. If ctx is cancelled, a call stops and returns the error of ctx, and Destroy can clean up the
// sandbox. Errors: NotFound for an unknown id, Conflict for one that exists already or is in the wrong state, Exhausted if a
// limit of the host is reached, Invalid for a program that cannot be executed.
type Runtime interface {
	// Create creates the sandbox and starts its init process and, if spec.Command is not empty, the command as a child of init. If
	// Create fails, nothing remains. If the command cannot be executed, Create returns Invalid, or the command exits with 126 or
	// 127.
	Create(ctx context.Context, id ID, spec RuntimeSpec) error
	// Exec starts a further process; ctx applies to the call, not to the process. The process is not restored from a checkpoint; its
	// descendants are restored if they have started a Linux session of their own (setsid). Conflict while frozen.
	Exec(ctx context.Context, id ID, e RuntimeExec) (Process, error)
	// WaitCommand returns how spec.Command ended, also after it has ended, to any number of callers. Conflict without a
	// command. If the sandbox dies with the command, the status is Unknown or contains the reason; a call during which
	// Destroy is called returns such a status, or NotFound.
	WaitCommand(ctx context.Context, id ID) (ExitStatus, error)
	// Done returns a channel that is closed when the sandbox is no longer running, whatever the reason is. For an unknown id, the
	// channel is closed already.
	Done(id ID) <-chan struct{}
	// Signal sends signal (1 to 64, otherwise Invalid) to process pid, or to all but init if pid is -1. NotFound if
	// there is no such process.
	Signal(ctx context.Context, id ID, pid, signal int) error
	Processes(ctx context.Context, id ID) ([]ProcessInfo, error)
	Stats(ctx context.Context, id ID) (*Stats, error)
	// Destroy kills the sandbox and frees all its resources; in RuntimeSpec.Dir it removes the files that the runtime
	// created. It is idempotent, even concurrently, and works after a failed Create, while frozen, and after the death
	// of any of the sandbox's processes.
	Destroy(ctx context.Context, id ID) error
	// List returns all sandboxes of this runtime on this host for this data directory, including those started by other processes.
	List(ctx context.Context) ([]RuntimeSandbox, error)
	// Capabilities returns a description of the runtime.
	Capabilities() Capabilities
}

// A Checkpointer is a Runtime that can capture memory.
type Checkpointer interface {
	// Checkpoint writes memory and the root file system's changes at one instant to the empty directory dir. With keep,
	// the sandbox keeps running afterwards, including exec'd processes; otherwise it is left paused, to be destroyed.
	Checkpoint(ctx context.Context, id ID, dir string, keep bool) error
	// Restore creates the sandbox from the files that Checkpoint wrote to dir. The files are only read, so any number of restores
	// may share them. spec is the spec of the checkpointed sandbox, with the host name, the topmost layer, the network and the
	// outputs of the new sandbox. Mounts with an Overlay may have other directories; Conflict if these lack files that were open in
	// the checkpointed sandbox. If Restore fails, nothing remains.
	Restore(ctx context.Context, id ID, spec RuntimeSpec, dir string) error
	// SaveFiles writes the changes to the root file system to w, as a tar archive that RuntimeSpec.Files can name.
	SaveFiles(ctx context.Context, id ID, w *os.File) error
}

// Freezer is a Runtime that can freeze a sandbox in memory. Freezing a frozen sandbox, and thawing one that is not
// frozen, returns Conflict.
type Freezer interface {
	Freeze(ctx context.Context, id ID) error
	Thaw(ctx context.Context, id ID) error
}

// HostMeter is a Runtime that can determine what its sandboxes use of the host's resources.
type HostMeter interface {
	// Written returns the disk space in bytes of the files that a sandbox has written to its root file system. Returns
	// NotFound or Conflict if the sandbox does not run.
	Written(id ID) (Size, error)
	// Remains returns the ids of sandboxes of this data directory that List does not return but that still have resources on
	// the host.
	Remains() ([]ID, error)
}

// A Dialer is a Runtime that can connect to servers in a sandbox.
type Dialer interface {
	// Dial connects to a server in the sandbox and returns the host's end of the connection: a stream socket in non-blocking
	// mode. Half-close passes in both directions; a reset by the server is an end of file. network "tcp" has a port as its
	// address, which is tried on 127.0.0.1, ::1 and the wire's address; "unix" has the absolute path of a socket in the
	// guest's root. ctx applies to connecting only. A checkpoint ends all connections; freezing does not. Errors: Conflict while
	// frozen, Unavailable if no program listens, Exhausted at the limit of connections, Invalid for a bad address.
	Dial(ctx context.Context, id ID, network, address string) (*os.File, error)
}

// RandomnessReporter is a Runtime that can determine which programs of a restored sandbox may draw the same secrets as another
// fork of the same checkpoint.
type RandomnessReporter interface {
	// SharedRandomness returns the names of the restored programs that may draw the same secrets as another fork: at most 16,
	// sorted, and then one line with the number of further programs. The names come from the sandbox; each is one line of visible
	// text. The result is empty if there is no such program, or if the sandbox was not restored.
	SharedRandomness(ctx context.Context, id ID) ([]string, error)
}

// WriterRecorder is a Runtime that records which process of a sandbox was the last to change each file of a workspace.
type WriterRecorder interface {
	// Writers returns the last changes of files since the sandbox was created or restored, in the mount with an Overlay at
	// target. It may be called while the sandbox is frozen. NotFound if there is no such mount.
	Writers(ctx context.Context, id ID, target string) (*Writers, error)
}

// MemoryWaiter is a Runtime whose restored sandboxes run before all of their memory has been read.
type MemoryWaiter interface {
	// WaitForMemory waits until all memory of a restored sandbox has been read. NotFound or Conflict if the sandbox stops before
	// that.
	WaitForMemory(ctx context.Context, id ID) error
}

// EndReporter is a Runtime that can determine why a sandbox stopped.
type EndReporter interface {
	// EndReason returns a short description of why the sandbox stopped. It must be called after the sandbox has stopped and
	// before Destroy.
	EndReason(id ID) string
}

// MaxWriters is the maximum number of paths of a workspace for which Writers names the process that last changed them.
const MaxWriters = 20_000

// Writers contains the process that was the last to change each file in a workspace, as recorded by the sandbox's
// kernel. It is untrusted: a sandbox that controls its kernel can return anything.
type Writers struct {
	List    []Writer `json:"list"`    // records, oldest first
	Dropped uint64   `json:"dropped"` // at least this number of paths is missing, because the list was full
}

// After returns the earlier records before, merged with the later records w. w and before may be nil, which means no records.
func (w *Writers) After(before *Writers) *Writers {
	switch {
	case w == nil:
		return before
	case before == nil:
		return w
	}
	again := make(map[string]bool, len(w.List))
	for _, x := range w.List {
		again[x.Path] = true
	}
	// Dropped is not before.Dropped plus w.Dropped: before may come from the same sandbox as w, and w.Dropped then includes the
	// paths that before has dropped.
	all := &Writers{Dropped: max(before.Dropped, w.Dropped)}
	for _, x := range before.List {
		if !again[x.Path] {
			all.List = append(all.List, x)
		}
	}
	all.List = append(all.List, w.List...)
	if more := len(all.List) - MaxWriters; more > 0 {
		all.List, all.Dropped = all.List[more:], all.Dropped+uint64(more)
	}
	return all
}

// A Writer is the process that was the last to change the file or directory at Path.
type Writer struct {
	Path string `json:"path"` // relative to the workspace, clean, "" for its root; shown with escapes if not UTF-8
	// Moved means that the process has renamed the file or directory at Path, or away from it: this also applies to the
	// files below it, unless they have been changed since.
	Moved   bool   `json:"moved,omitempty"`
	PID     int    `json:"pid"`     // process id in the sandbox's PID namespace
	UID     uint32 `json:"uid"`     // uid in the sandbox
	Command string `json:"command"` // program name, at most 16 bytes; unprintable characters are escaped
}

// RuntimeSpec is the configuration of a sandbox for a Runtime. Paths on the host are absolute and come from Caisson only.
type RuntimeSpec struct {
	Hostname  string
	UIDBase   uint32 // first host uid and gid of the account's range; guest ids 0 to 65535 are mapped there
	Rootfs    Rootfs
	Mounts    []RuntimeMount
	Files     string // tar archive from SaveFiles with the initial changes to the root file system, or ""
	Dir       string // directory of this sandbox, created by the caller, owned by the runtime from Create to Destroy
	Command   []string
	Env       []string // KEY=value, for the command; sorted
	Workdir   string   // working directory of the command in the sandbox
	User      string   // user of the command, see RuntimeExec.User
	Resources Resources
	// Programs is the id of the set of programs that a checkpoint is restored with; "" means the current set, see [Programs].
	Programs string
	// Randomness "openssl" makes OpenSSL's random generators in restored processes reseed; "" does not.
	Randomness string
	// ContinueClock means that the monotonic clock of restored processes continues at the time of the checkpoint. Otherwise it
	// also includes the time between checkpoint and restore.
	ContinueClock bool
	Stdout        *os.File // file or FIFO (opened with O_RDWR) that gets the command's output, also after the caller's exit; or nil
	Stderr        *os.File // file or FIFO (opened with O_RDWR) that gets the command's error output; or nil
	NetNS         *os.File // network namespace with the wire's TAP; nil means loopback only. It may be closed after the call
}

// Programs determines which sets of programs this daemon can run sandboxes with. A set contains the programs of one build, and
// has an id that depends on their contents.
type Programs struct {
	Current string               // id of the set that new sandboxes are started with
	Older   func(id string) bool // reports whether this daemon has a set and can use it; nil: it can use Current only
	Newer   func(id string) bool // reports whether a set requires a newer protocol with its daemon; nil: none does
}

// Supports reports whether this daemon can run sandboxes with the set of this id.
func (p Programs) Supports(id string) bool { return id == p.Current || p.Older != nil && p.Older(id) }

// DescribeBuild describes the build that an unsupported set of programs belongs to. The result completes a sentence: "of another
// build of Caisson".
func (p Programs) DescribeBuild(id string) string {
	if p.Newer != nil && p.Newer(id) {
		return "of a newer build of Caisson, whose protocol this one does not know"
	}
	return "of another build of Caisson"
}

// A RuntimeMount mounts a host directory in a sandbox.
type RuntimeMount struct {
	Source   *os.File // O_PATH descriptor of the directory or file
	Target   string   // absolute path in the sandbox
	Writable bool
	// Overlay, if not nil, receives all writes; Source is only read, and Writable is ignored.
	Overlay *RuntimeOverlay
}

// A RuntimeOverlay contains the layers that make a workspace from a host directory. Its directories are created by the
// caller and belong to the guest's root (UIDBase).
type RuntimeOverlay struct {
	// Upper receives the written files, in the format of Linux's overlayfs (character devices 0:0,
	// trusted.overlay.opaque; no redirects, no metacopy, no index). Work is overlayfs's work directory, on the same file system.
	Upper, Work *os.File
	// Mask is a layer between Upper and Source with a whiteout for each hidden name; nil hides nothing.
	Mask *os.File
	// Hide and Show contain patterns of names, see package namemask. A file that is created in Source later is hidden if its name
	// matches a pattern in Hide and none in Show. Files that the guest creates itself are visible to it.
	Hide, Show []string
	// Root means that Source's owner is shown as the guest's root even if that is the host's root, because the host's
	// root requested it.
	Root bool
}

// RuntimeExec describes a process to start.
type RuntimeExec struct {
	Command []string // resolved in PATH of Env, inside the sandbox
	Env     []string // KEY=value
	Workdir string   // working directory in the sandbox; "" is "/"
	// User is "USER" or "USER:GROUP", names or numbers; "" is 0:0. Names are looked up in the sandbox's /etc/passwd and /etc/group.
	// Without GROUP, the group is the user's in /etc/passwd, or 0 if the user is not there. For an unknown user, starting fails with
	// Invalid, or the process exits with 125 without running the program.
	User       string
	TTY        bool // the process gets a terminal, of the size Rows and Cols
	Rows, Cols uint16
	Stdin      bool // the process gets a standard input that the caller writes; otherwise it is empty
}

// RuntimeSandbox is a sandbox that a Runtime has found on the host.
type RuntimeSandbox struct {
	ID      ID
	Running bool // the sandbox runs; if not, only resources remain, which must be destroyed
	PID     int  // host pid of the sandbox's sentry if Running
}

// Capabilities describes a Runtime.
type Capabilities struct {
	Name     string `json:"name"`     // name of the implementation: "gvisor" or "fake"
	Platform string `json:"platform"` // "systrap", "ptrace"; "" if there is none
	Version  string `json:"version"`  // version of the implementation
	CPU      string `json:"cpu"`      // hash of the processor features that a checkpoint depends on
	Memory   bool   `json:"memory"`   // the Runtime can capture memory: it is a Checkpointer
}

// Wires manages the network attachments of sandboxes.
//
// A wire belongs to a sandbox's ID. All methods are safe for concurrent use.
type Wires interface {
	// Attach creates a network namespace with a TAP that the wire process serves, and returns a descriptor of the namespace. The
	// namespace exists as long as a descriptor of it is open or a process is in it. spec is in force from the first packet.
	Attach(ctx context.Context, id ID, spec WireSpec) (*os.File, error)
	// Reattach attaches the TAP in the namespace of a running sandbox again, after a restart of the daemon or of the wire process.
	Reattach(ctx context.Context, id ID, netns *os.File, spec WireSpec) error
	// Configure replaces the spec of a wire. When it returns, the new spec is in force, and connections that the new spec does not
	// allow have ended. NotFound if the sandbox has no wire.
	Configure(ctx context.Context, id ID, spec WireSpec) error
	// Detach closes the sandbox's TAP, once its last model calls are in the ledger. Idempotent.
	Detach(ctx context.Context, id ID) error
}
