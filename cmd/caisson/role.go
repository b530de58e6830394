package main

import (
	"os"

	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/internal/hostcheck"
	"github.com/caisson-dev/caisson/wire"
	"github.com/caisson-dev/caisson/wire/wireproc"
)

// dispatchRole runs this process as the wire process if argv[0] says so, and reports whether it did. It is called before everything
// else: the wire process must start fast and must not depend on the rest of the program.
func dispatchRole() bool {
	if !wire.IsWire() {
		return false
	}
	os.Exit(wire.Main(wireproc.Process()))
	return true
}

// newProbe returns the probe that tests gVisor's platforms.
func newProbe() hostcheck.Probe { return engine.Probe{} }
