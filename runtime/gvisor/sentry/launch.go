package sentry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// A launchRequest is a request with the state of the launcher that executes it.
type launchRequest struct {
	protocol.LaunchRequest
	root string // value of gVisor's flag --root, the directory of its control socket; set when the root file system is built
}

// launch reads a request, creates the sandbox that the request describes, writes a reply, and returns the launcher's exit code.
// The launcher has a mount namespace of its own, which the gofer inherits, so the kernel removes all mounts when the sandbox's
// processes have exited.
func launch() int {
	// By default, gVisor logs to standard error, which is that of the sandbox's command.
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	// The sandbox must inherit only descriptors that gVisor passes explicitly. The others cannot be closed here, because those
	// of Go's poller are among them, so they are set close-on-exec.
	if err := unix.CloseRange(protocol.RequestFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 2
	}
	var req launchRequest
	f := os.NewFile(protocol.RequestFD, "request")
	reply := os.NewFile(protocol.ReplyFD, "reply")
	err := json.NewDecoder(f).Decode(&req.LaunchRequest)
	f.Close()
	var res protocol.LaunchReply
	if err == nil {
		res, err = req.run()
	}
	if err != nil {
		res = protocol.LaunchReply{Error: err.Error(), Refused: refusedTarget(err)}
	}
	if json.NewEncoder(reply).Encode(res) != nil || err != nil {
		return 1
	}
	return 0
}

// run mounts the root file system, writes config.json, and creates and starts or restores the sandbox.
func (r *launchRequest) run() (res protocol.LaunchReply, err error) {
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
	return protocol.LaunchReply{PID: c.SandboxPid(), GoferPID: c.GoferPid.Load()}, nil
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
