package sentry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
)

// File descriptors of the launcher. 0, 1 and 2 become the sandbox's standard streams.
const (
	requestFD = 3 // JSON [LaunchRequest], read to its end
	replyFD   = 4 // JSON [LaunchReply]
	FirstFD   = 5 // first of the descriptors to which the request refers by number
)

// StateDir is the name of the directory in a bundle for gVisor's state of the sandbox and the control socket.
const StateDir = "state"

// MaxLaunchReply is the maximum size of a reply in bytes.
const MaxLaunchReply = 64 << 10

// A LaunchRequest requests one sandbox from a launcher. Descriptors are numbers in the launcher's descriptor table.
type LaunchRequest struct {
	ID           string
	Flags        []string          // gVisor's command-line flags
	Bundle       string            // directory for config.json and, in [StateDir], the control socket
	Spec         *specs.Spec       // the launcher sets Root.Path and the sources of bind mounts
	Layers       []string          // topmost first
	Binds        map[string]string // target → source
	Mounts       []LaunchMount
	IDMapFD      int    // user namespace that maps the owners of files in layers to the uids of the sandbox
	NetNSFD      int    // network namespace of the sandbox, with the TAP of its wire; -1: the sandbox has no network
	EmptyNetNSFD int    // network namespace without interfaces, for the gofer
	Image        string // checkpoint directory to restore from, or ""

	root string // gVisor's --root, set by buildRootfs
}

// A LaunchMount is a host directory to mount at Target. The caller has cloned its mount, because it may be missing in the
// launcher's mount namespace.
type LaunchMount struct {
	FD       int // detached mount, from [CloneMount]
	Target   string
	Writable bool
	Overlay  *LaunchOverlay // nil: the directory itself
}

// A LaunchReply contains the processes of the new sandbox, or an error.
type LaunchReply struct {
	PID      int // the sandbox's main process
	GoferPID int
	Error    string
	Refused  string // target of the workspace that the kernel refused to mount; "" unless that is the cause of Error
}

// launch creates the sandbox that the request describes and returns the launcher's exit code. It mounts in a separate mount
// namespace, which the gofer inherits: when the sandbox's processes have exited, the kernel removes the mounts.
func launch() int {
	// By default, gVisor logs to standard error, which is that of the sandbox's command.
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	// The sandbox must inherit only descriptors that gVisor passes explicitly. The others cannot be closed here, because those
	// of Go's poller are among them, so they are set close-on-exec.
	if err := unix.CloseRange(requestFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 2
	}
	var req LaunchRequest
	f := os.NewFile(requestFD, "request")
	reply := os.NewFile(replyFD, "reply")
	err := json.NewDecoder(f).Decode(&req)
	f.Close()
	var res LaunchReply
	if err == nil {
		res, err = req.run()
	}
	if err != nil {
		res = LaunchReply{Error: err.Error(), Refused: refusedTarget(err)}
	}
	if json.NewEncoder(reply).Encode(res) != nil || err != nil {
		return 1
	}
	return 0
}

// run mounts the root file system, writes config.json, and creates and starts or restores the sandbox.
func (r *LaunchRequest) run() (res LaunchReply, err error) {
	unix.Umask(0o077)
	os.Clearenv()

	if err := r.buildRootfs(); err != nil {
		return res, err
	}
	for i, ns := range r.Spec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace && r.NetNSFD >= 0 {
			r.Spec.Linux.Namespaces[i].Path = fdPath(r.NetNSFD)
		}
	}
	data, err := json.Marshal(r.Spec)
	if err != nil {
		return res, err
	}
	if err := os.WriteFile(filepath.Join(r.Bundle, "config.json"), data, 0o600); err != nil {
		return res, err
	}

	conf, err := parseFlags(append(r.Flags, "--root="+r.root, "--gofer-network-namespace="+fdPath(r.EmptyNetNSFD)))
	if err != nil {
		return res, err
	}
	c, err := container.New(conf, container.Args{ID: r.ID, Spec: r.Spec, BundleDir: r.Bundle})
	if err != nil {
		return res, err
	}
	if r.Image == "" {
		err = c.Start(conf)
	} else {
		err = c.Restore(conf, r.Image, false, true, nil)
	}
	if err != nil {
		err = errors.Join(err, c.Destroy())
		return res, err
	}
	return LaunchReply{PID: c.SandboxPid(), GoferPID: c.GoferPid.Load()}, nil
}

// parseFlags parses gVisor's command-line flags.
func parseFlags(args []string) (*config.Config, error) {
	fs := flag.NewFlagSet("caisson", flag.ContinueOnError)
	config.RegisterFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return config.NewFromFlags(fs)
}

// fdPath returns a path of the open descriptor fd that is valid in this process.
func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// LaunchAttr returns the process attributes of a launcher: a new mount namespace, a new session, and SIGKILL when its parent
// exits, so that a launcher does not create a sandbox after its daemon was killed.
func LaunchAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL, Setsid: true}
}
