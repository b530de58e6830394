package engine

import (
	"path/filepath"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/internal/hostcheck"
	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/image"
	"github.com/caisson-dev/caisson/job/relay/transport"
	"github.com/caisson-dev/caisson/job/worker"
	"github.com/caisson-dev/caisson/runtime/gvisor"
	"github.com/caisson-dev/caisson/wire"
)

// Drivers are the parts of an engine that depend on the host. All fields except Programs and CheckHost are required.
type Drivers struct {
	Runtime   sandboxes.Runtime                // runs sandboxes
	Dialer    caisson.Dialer                   // connects to servers in sandboxes; the same object as Runtime
	Images    Images                           // pulls and unpacks images
	Wires     func(wire.Config) (Wires, error) // creates the driver of wires
	Worker    *worker.Runner                   // runs the jobs of workspaces and of the relay
	Transport repos.Transport                  // connects to remote repositories
	Forge     repos.Forges                     // opens pull requests at forges
	Agents    []*caisson.Agent                 // the built-in agents
	Programs  *programs                        // programs that start sandboxes; nil if the runtime needs none
	CheckHost func() error                     // returns an error if the host lacks something that every sandbox needs
	Close     func() error                     // closes the drivers; called after all other parts of the engine are closed
}

// Images is an image driver: it implements [sandboxes.Images], and lists the layers that it has unpacked.
type Images interface {
	sandboxes.Images
	Layers() ([]image.Layer, error) // lists the unpacked layers
}

// Wires contains the three interfaces of the driver that manages the wires of sandboxes. [wire.Manager] implements all three.
type Wires struct {
	caisson.Wires
	sandboxes.Traffic
	wire.Supervisor
}

// NewWires returns Wires whose three interfaces are all implemented by w.
func NewWires[W interface {
	caisson.Wires
	sandboxes.Traffic
	wire.Supervisor
}](w W) Wires {
	return Wires{w, w, w}
}

// newDrivers constructs the drivers of a real daemon: gVisor, the wire process, and images on disk. Tests use other drivers.
func (e *Engine) newDrivers() (*Drivers, error) {
	programs, err := openPrograms(filepath.Join(e.cfg.Data.Dir, "programs"))
	if err != nil {
		return nil, err
	}
	runner, err := worker.New(worker.Config{
		Exe: programs.worker, UIDBase: caisson.LayerUIDBase, WorkUID: workUID, Log: e.cfg.Log.With("component", "worker"),
	})
	if err != nil {
		return nil, err
	}
	images, err := image.New(image.Config{
		Dir: filepath.Join(e.cfg.Data.Dir, "images"), Worker: runner, InsecureRegistries: e.cfg.Images.InsecureRegistries,
		RegistryCA: e.cfg.Images.CA, OwnAddresses: e.cfg.ownAddresses(), Log: e.cfg.Log.With("component", "image"),
	})
	if err != nil {
		return nil, err
	}
	runtime, err := gvisor.New(gvisor.Config{
		Dir: filepath.Join(e.cfg.Data.Dir, "sandboxes"), Programs: programs.set, Find: programs.Find,
		ToolsDir: filepath.Join(e.cfg.Data.Dir, "tools"), Cgroup: "/caisson/" + string(e.data.instance),
		Platform: e.cfg.Platform, Build: programs.current, Log: e.cfg.Log.With("component", "gvisor"),
	})
	if err != nil {
		return nil, err
	}
	return &Drivers{
		Runtime: sandboxes.RuntimeOf(runtime), Dialer: runtime, Images: imageDriver{images}, Worker: runner, Transport: transport.NewTool(runner), Forge: forge.NewTool(runner),
		Wires: func(cfg wire.Config) (Wires, error) {
			m, err := wire.New(cfg)
			return NewWires(m), err
		},
		Agents: agent.Builtin(), Programs: programs, CheckHost: hostcheck.CheckSandboxDevices, Close: runtime.Close,
	}, nil
}
