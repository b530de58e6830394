// Package protocol defines the messages between the daemon and gVisor's processes (package sentry): requests to launchers, calls
// of gVisor's control protocol, and annotations of OCI specs. The daemon calls Caisson's own code in the sentry through sinks,
// which gVisor runs when it starts a trace session. The package does not import gVisor, so that the daemon's binary does not
// contain gVisor; tests compare the types for gVisor's own calls with those of gVisor.
package protocol

import (
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// LaunchArg0 is the argv[0] of a launcher.
const LaunchArg0 = "caisson-launch"

// File descriptors of the launcher. 0, 1 and 2 become the sandbox's standard streams.
const (
	RequestFD = 3 // JSON [LaunchRequest], read to its end
	ReplyFD   = 4 // JSON [LaunchReply]
	FirstFD   = 5 // first of the descriptors to which the LaunchRequest refers by number
)

// StateDir is the name of the directory in a bundle for gVisor's state of the sandbox and the control socket.
const StateDir = "state"

// MaxLaunchReply is the maximum size of a LaunchReply in JSON, in bytes.
const MaxLaunchReply = 64 << 10

// A LaunchRequest requests one sandbox from a launcher. Descriptors are numbers in the launcher's descriptor table.
type LaunchRequest struct {
	ID           string            // id of the sandbox
	Flags        []string          // gVisor's command-line flags
	Bundle       string            // directory for config.json and, in [StateDir], the control socket
	Spec         *specs.Spec       // the launcher sets Root.Path and the sources of bind mounts
	Layers       []string          // directories of the layers of the root file system, topmost first
	Binds        map[string]string // sources of the read-only bind mounts, by target
	Mounts       []LaunchMount     // host directories to mount in the sandbox
	IDMapFD      int               // user namespace that maps the owners of files in layers to the uids of the sandbox
	NetNSFD      int               // network namespace of the sandbox, with the TAP of its wire; -1: the sandbox has no network
	EmptyNetNSFD int               // network namespace without interfaces, for the gofer
	Image        string            // checkpoint directory to restore from, or ""
}

// A LaunchMount is a host directory to mount at Target. The caller has cloned its mount, because it may be missing in the
// launcher's mount namespace.
type LaunchMount struct {
	FD       int            // detached mount of the directory, made by [CloneMount]
	Target   string         // mount point in the sandbox
	Writable bool           // the sandbox may write to the directory; has no effect with Overlay
	Overlay  *LaunchOverlay // layers above the directory; nil: the directory itself is mounted
}

// A LaunchOverlay describes the layers of a workspace above its [LaunchMount], which is the lower layer.
type LaunchOverlay struct {
	DirFD       int    // detached mount of the directory with the upper layer and the work directory
	Upper, Work string // names of the upper layer and the work directory in the directory DirFD
	MaskFD      int    // detached mount of the layer that hides names; -1: none
	// Patterns of a mask. The gofer hides files that are created on the host later and match Hide, unless they match Show.
	Hide, Show []string
}

// A LaunchReply contains the processes of the new sandbox, or an error.
type LaunchReply struct {
	PID      int    // PID of the sandbox's sentry
	GoferPID int    // PID of the sandbox's gofer
	Error    string // why the sandbox was not created; "" on success
	Refused  string // target of the workspace that the kernel refused to mount; "" unless that is the cause of Error
}

// LaunchAttr returns the process attributes of a launcher: a new mount namespace, a new session, and SIGKILL when its parent
// exits, so that a launcher does not create a sandbox after its daemon was killed.
func LaunchAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL, Setsid: true}
}

// ReseedAnnotation is the annotation in the spec of a restored sandbox that controls which PIDs its processes get in addition to
// those that they had. With ReseedOpenSSL, getpid returns a new PID in each process, so that random generators such as OpenSSL's
// seed themselves again. With ReseedKeep, it returns the PID that an earlier restore has added, if there is one.
const (
	ReseedAnnotation = "dev.caisson.reseed"
	ReseedOpenSSL    = "openssl"
	ReseedKeep       = "keep"
)

// ClockAnnotation with the value [ClockStill] in the spec of a restored sandbox excludes the time since the checkpoint from its
// monotonic clock.
const (
	ClockAnnotation = "dev.caisson.clock"
	ClockStill      = "still"
)
