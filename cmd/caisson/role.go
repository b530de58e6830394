package main

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-dev/caisson/edge"
	"github.com/caisson-dev/caisson/engine"
	"github.com/caisson-dev/caisson/forge"
	"github.com/caisson-dev/caisson/gate/tool"
	"github.com/caisson-dev/caisson/image"
	"github.com/caisson-dev/caisson/inside"
	"github.com/caisson-dev/caisson/internal/hostcheck"
	"github.com/caisson-dev/caisson/relay"
	"github.com/caisson-dev/caisson/relay/link"
	"github.com/caisson-dev/caisson/runtime/gvisor/sentry"
	"github.com/caisson-dev/caisson/wire"
	"github.com/caisson-dev/caisson/worker"
)

// dispatchRole runs this binary as one of its helper processes if argv[0] says so, and reports whether it did. It comes
// before everything else: these processes are to start fast and to know nothing of the rest.
func dispatchRole() bool {
	switch {
	case worker.IsWorker():
		worker.Main(slices.Concat(image.Jobs(), tool.Jobs(), relay.Jobs(), link.Jobs(), forge.Jobs())...)
	case wire.IsWire():
		os.Exit(wire.Main(edge.Process()))
	case sentry.IsRole(): // where this build carries no lean binary for it
		sentry.Main()
	case filepath.Base(os.Args[0]) == "inside": // likewise
		os.Exit(inside.Main(os.Args[1:]))
	default:
		return false
	}
	return true
}

// newProbe returns what tries gVisor's platforms.
func newProbe() hostcheck.Probe { return engine.Probe{} }
