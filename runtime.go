package caisson

import (
	"context"
	"os"
)

// A Runtime runs sandboxes on this host.
//
// All methods are safe for concurrent use on different IDs. For one ID, callers serialise everything but Exec, Wait,
// Signal, Processes and Stats. A cancelled ctx stops a call, whose error is then ctx's own, but leaves the sandbox in a
// state that Destroy cleans up.
// Errors: NotFound for an unknown id, Conflict for one that exists already or is in the wrong state, Exhausted when a
// limit of the host is reached, Invalid for a program that cannot be executed.
type Runtime interface {
	// Create makes the sandbox and starts it: its init process, and spec.Command as a child of that if there is one.
	// A failed Create leaves nothing behind. A command that cannot be executed is Invalid, or exits with 126 or 127.
	Create(ctx context.Context, id ID, spec RuntimeSpec) error
	// Exec starts a further process; ctx is that of the call, not of the process. It lives no longer than this sandbox's
	// present run: it is not in what is restored from a checkpoint, unless it has put itself into a session of its own
	// (setsid) as a child of an exec'd process. Conflict while frozen.
	Exec(ctx context.Context, id ID, e RuntimeExec) (Process, error)
	// WaitCommand returns how spec.Command ended, before or after the fact; any number of callers. Without a command it
	// is a Conflict. If the sandbox dies with the command, the status is Unknown or says why; a call
	// that Destroy overtakes returns such a status, or NotFound.
	WaitCommand(ctx context.Context, id ID) (ExitStatus, error)
	// Done is closed when the sandbox is no longer running, for whatever reason; it is closed already for unknown ids.
	Done(id ID) <-chan struct{}
	// Signal sends signal (1 to 64, else Invalid) to process pid, or to all but init for pid -1. NotFound if there is no
	// such process.
	Signal(ctx context.Context, id ID, pid, signal int) error
	Processes(ctx context.Context, id ID) ([]ProcessInfo, error)
	Stats(ctx context.Context, id ID) (*Stats, error)
	// Destroy ends the sandbox at once and frees everything it had; of RuntimeSpec.Dir it removes what the runtime made.
	// Idempotent, even concurrently; works after a half-failed Create, while frozen, and after the death of any of its
	// processes.
	Destroy(ctx context.Context, id ID) error
	// List returns whatever of this runtime exists on this host for this data directory, whoever started it.
	List(ctx context.Context) ([]RuntimeSandbox, error)
	// Capabilities says what this runtime can do and is, as data.
	Capabilities() Capabilities
}

// A Checkpointer is a Runtime that can capture memory.
type Checkpointer interface {
	// Checkpoint writes memory and the root file system's changes at one instant into the empty directory dir. With
	// keep the sandbox runs on afterwards, exec'd processes included, else it is left paused, to be destroyed.
	Checkpoint(ctx context.Context, id ID, dir string, keep bool) error
	// Restore makes the sandbox from what Checkpoint left in dir, which is only read: any number of restores may share
	// it. spec is the one of the checkpointed sandbox with host name, etc layer, network and logs of the new one, and perhaps
	// other directories in place of those in Mounts with an Overlay: a Conflict if they lack what was open there. A failed
	// Restore leaves nothing behind.
	Restore(ctx context.Context, id ID, spec RuntimeSpec, dir string) error
	// SaveFiles writes the changes to the root file system as a tar archive; RuntimeSpec.Files takes it.
	SaveFiles(ctx context.Context, id ID, w *os.File) error
}

// Freezer is a Runtime that can stop time for a sandbox and keep it in memory. Freezing what is frozen, and thawing what
// is not, is a Conflict.
type Freezer interface {
	Freeze(ctx context.Context, id ID) error
	Thaw(ctx context.Context, id ID) error
}

// Sharer is a Runtime that knows which programs of a restored sandbox may draw secrets that another fork of the same checkpoint
// draws too.
type Sharer interface {
	// SharedRandomness names those programs among what came out of the checkpoint, sorted, at most 16 of them, and then one line
	// that says how many others there are. They are what the sandbox says, as one line of visible text each. Empty if there
	// are none, or if the sandbox was not restored.
	SharedRandomness(ctx context.Context, id ID) ([]string, error)
}

// Recorder is a Runtime that notes which process of a sandbox was the last to change each file of a workspace.
type Recorder interface {
	// Writers returns that for the mount with an Overlay at target, since the sandbox was created or restored; also while it is
	// frozen. NotFound if there is no such mount.
	Writers(ctx context.Context, id ID, target string) (*Writers, error)
}

// MaxWriters bounds the list of Writers.
const MaxWriters = 20_000

// Writers says who was the last to change what in a workspace. It is what the sandbox's kernel saw, and told: a sandbox that has
// taken over its kernel can tell anything.
type Writers struct {
	List    []Writer `json:"list"`    // oldest first
	Dropped uint64   `json:"dropped"` // at least so many paths are not in the list for lack of room
}

// After returns what was known before together with what has happened since, which is w. Either may be nil, for nothing.
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
	all := &Writers{Dropped: max(before.Dropped, w.Dropped)} // what was kept of w already has counted them
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

// A Writer is the process that was the last to change what is at a path.
type Writer struct {
	Path string `json:"path"` // relative to the workspace, clean, "" for itself; as in a Change, if it is not UTF-8
	// Moved says that the process has renamed what is, or was, there: this holds for what is below, too, unless that has been
	// changed since.
	Moved   bool   `json:"moved,omitempty"`
	PID     int    `json:"pid"` // as the sandbox's first process sees it
	UID     uint32 `json:"uid"`
	Command string `json:"command"` // the name of its program, at most 16 bytes; what is not plain text is shown as escapes
}

// RuntimeSpec is what a Runtime needs to know of a sandbox. All paths are absolute host paths made by Caisson.
type RuntimeSpec struct {
	Hostname  string
	UIDBase   uint32 // first host uid and gid of the account's range; guest ids 0 to 65535 are mapped there
	Rootfs    Rootfs
	Mounts    []RuntimeMount
	Files     string // tar archive from SaveFiles with the initial changes to the root file system, or ""
	Dir       string // directory of this sandbox, made by the caller, owned by the runtime from Create to Destroy
	Command   []string
	Env       []string // KEY=value, for the command; sorted
	Workdir   string
	User      string
	Resources Resources
	// Randomness "openssl" makes OpenSSL's generators in processes that come out of a checkpoint seed themselves anew.
	Randomness string
	// StillClock makes the monotonic clock of what comes out of a checkpoint go on where it was; else it jumps by the time since.
	StillClock bool
	Stdout     *os.File // the command's output, kept open by the sandbox; nil discards. Must outlive the caller: a FIFO opened O_RDWR
	Stderr     *os.File
	NetNS      *os.File // network namespace with the wire's TAP in it; nil means loopback only. Not needed after the call
}

// A RuntimeMount shows a host directory inside.
type RuntimeMount struct {
	Source   *os.File // O_PATH descriptor
	Target   string
	Writable bool
	// Overlay, if not nil, takes what is written; Source is only read, and Writable is not looked at.
	Overlay *RuntimeOverlay
}

// A RuntimeOverlay is the layers that make a workspace of a host directory. Its directories are made by the caller and belong to
// the guest's root (UIDBase).
type RuntimeOverlay struct {
	// Upper gets what is written, in the format of Linux's overlayfs (character devices 0:0, trusted.overlay.opaque; no
	// redirects, no metacopy, no index). Work is beside it, on the same file system.
	Upper, Work *os.File
	// Mask is a layer between the two, with a whiteout for each name that is hidden; nil hides nothing.
	Mask *os.File
	// Hide are patterns of names that are hidden as well when they appear in Source later, unless one of Show matches: see
	// package namemask. What the guest makes itself it sees.
	Hide, Show []string
	// Root says that Source's owner is shown as the guest's root even if that is the host's root: because the host's root
	// asked for it.
	Root bool
}

// RuntimeExec is a process to start.
type RuntimeExec struct {
	Command []string // resolved in PATH of Env, inside the sandbox
	Env     []string
	Workdir string // "" is "/"
	// User is "USER" or "USER:GROUP", names or numbers; "" is 0:0. Names are resolved in the sandbox's /etc, as is the group
	// of a user without one, which is 0 if nothing is found. An unknown user is Invalid, or a process that runs nothing and
	// exits with 125.
	User       string
	TTY        bool
	Rows, Cols uint16
	Stdin      bool
}

// RuntimeSandbox is what a Runtime knows of a sandbox after a restart.
type RuntimeSandbox struct {
	ID      ID
	Running bool // false: only remains, to be destroyed
	PID     int  // host pid of the sandbox's main process if running
}

// Capabilities says what a Runtime is and can do.
type Capabilities struct {
	Name     string `json:"name"`     // "gvisor", "fake"
	Platform string `json:"platform"` // "systrap", "ptrace"; "" if there is none
	Version  string `json:"version"`
	CPU      string `json:"cpu"`    // hash of the processor features that a checkpoint depends on
	Memory   bool   `json:"memory"` // Checkpointer
}

// Wires is the network attachment of sandboxes.
//
// A wire belongs to a sandbox's ID. All methods are safe for concurrent use.
type Wires interface {
	// Attach makes a network namespace with a TAP whose other end Caisson's wire process holds, and returns the
	// namespace. It lives as long as the descriptor, or a process in it, does. spec is in force from the first packet.
	Attach(ctx context.Context, id ID, spec WireSpec) (*os.File, error)
	// Reattach takes up the TAP in the namespace of a running sandbox again, after a restart of either end.
	Reattach(ctx context.Context, id ID, netns *os.File, spec WireSpec) error
	// Configure replaces the spec of a wire. When it returns, the new one is in force and connections that it does not
	// allow have ended. NotFound if the sandbox has no wire.
	Configure(ctx context.Context, id ID, spec WireSpec) error
	// Detach lets go of the sandbox's TAP, when the last answers to its calls of models are in the ledger. Idempotent.
	Detach(ctx context.Context, id ID) error
}
