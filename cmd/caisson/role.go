package main

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/guest/guestd"
	"github.com/caisson-dev/caisson/internal/hostcheck"
	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/gate/jobs"
	"github.com/caisson-dev/caisson/job/image"
	"github.com/caisson-dev/caisson/job/relay"
	"github.com/caisson-dev/caisson/job/relay/transport"
	"github.com/caisson-dev/caisson/job/sshproxy"
	"github.com/caisson-dev/caisson/job/worker"
	"github.com/caisson-dev/caisson/runtime/gvisor/sentry"
	"github.com/caisson-dev/caisson/wire"
	"github.com/caisson-dev/caisson/wire/wireproc"
)

// dispatchRole runs this process as a helper process if argv[0] selects one, and reports whether it did. It is called before
// everything else: helper processes must start fast and must not depend on the rest of the program.
func dispatchRole() bool {
	switch {
	case worker.IsWorker():
		worker.Main(slices.Concat(image.Jobs(), jobs.All(), relay.Jobs(), transport.Jobs(), forge.Jobs(), sshproxy.Jobs())...)
	case wire.IsWire():
		os.Exit(wire.Main(wireproc.Process()))
	case sentry.IsRole(): // only in builds without the separate binary caisson-sentry
		sentry.Main()
	case filepath.Base(os.Args[0]) == "inside": // only in builds without the separate binary caisson-guestd
		os.Exit(guestd.Main(os.Args[1:]))
	default:
		return false
	}
	return true
}

// newProbe returns the probe that tests gVisor's platforms.
func newProbe() hostcheck.Probe { return engine.Probe{} }
