package main

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/hostcheck"
)

// dispatchRole runs this binary as one of its helper processes if argv[0] says so, and reports whether it did.
func dispatchRole() bool { return false }

// serve runs the daemon until ctx ends or, in the background, until nobody needs it. It calls [signalReady] when it serves.
func serve(_ context.Context, _ *app, _ *config, _ bool) error {
	return caisson.Errorf(caisson.Unavailable, "this build has no daemon")
}

// newProbe returns what tries gVisor's platforms, or nil if this build has no gVisor.
func newProbe() hostcheck.Probe { return nil }
