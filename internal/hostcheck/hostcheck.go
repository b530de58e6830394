// Package hostcheck checks whether a machine meets the requirements of Caisson. It tries features on the file system of
// the data directory where possible, and otherwise reads settings of the kernel. It leaves nothing behind.
package hostcheck

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
)

// probeTimeout limits one probe of gVisor, which takes 0.1 seconds where it works.
const probeTimeout = 15 * time.Second

// A Probe tests whether gVisor can run on this machine.
type Probe interface {
	// Probe returns nil if gVisor runs a program on the platform ("systrap", "ptrace"), otherwise the reason why it does not.
	Probe(ctx context.Context, platform string) error
}

// Config configures [Run].
type Config struct {
	DataDir string // Data directory of the daemon. Required; it need not exist.
	Probe   Probe  // Tests gVisor's platforms; if it is nil, they are not checked.
}

// Run makes all checks, in the order in which their problems are best fixed.
func Run(ctx context.Context, cfg Config) []caisson.Check {
	checks := []caisson.Check{root(), kernel(), cgroups(), tun()}
	checks = append(checks, tryMounts(cfg.DataDir)...)
	checks = append(checks, confinement(), disk(cfg.DataDir), memory(), pids(), namespaces(), git(ctx))
	return append(checks, platforms(ctx, cfg.Probe)...)
}

// CheckSandboxDevices returns an Unavailable error if the machine has no usable cgroups or no TUN device. Every sandbox needs
// both, but the daemon can run without them. CheckSandboxDevices takes less than a millisecond.
func CheckSandboxDevices() error { return firstFailure(cgroups(), tun()) }

// firstFailure returns an Unavailable error for the first check that has failed, or nil.
func firstFailure(checks ...caisson.Check) error {
	for _, c := range checks {
		if c.Status == caisson.CheckFailed {
			return caisson.Errorf(caisson.Unavailable, "%s: %s; to fix it: %s (see caisson doctor)", c.Name, c.Detail, c.Remedy)
		}
	}
	return nil
}

// Worst returns the worst status among checks.
func Worst(checks []caisson.Check) string {
	worst := caisson.CheckOK
	for _, c := range checks {
		if c.Status == caisson.CheckFailed || (c.Status == caisson.CheckWarning && worst == caisson.CheckOK) {
			worst = c.Status
		}
	}
	return worst
}

// ok returns the result of the check name with the status ok. format describes what was found.
func ok(name, format string, args ...any) caisson.Check {
	return caisson.Check{Name: name, Status: caisson.CheckOK, Detail: fmt.Sprintf(format, args...)}
}

// warning returns the result of the check name with the status warning. remedy tells how to fix the problem.
func warning(name, remedy, format string, args ...any) caisson.Check {
	return caisson.Check{Name: name, Status: caisson.CheckWarning, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

// failed returns the result of the check name with the status failed. remedy tells how to fix the problem.
func failed(name, remedy, format string, args ...any) caisson.Check {
	return caisson.Check{Name: name, Status: caisson.CheckFailed, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

// root checks that this process runs as root.
func root() caisson.Check {
	if os.Geteuid() == 0 {
		return ok("root", "running as root")
	}
	return failed("root", "run it with sudo", "running as uid %d; caisson needs root for now", os.Geteuid())
}

// platforms checks on which of gVisor's platforms sandboxes can run.
func platforms(ctx context.Context, p Probe) []caisson.Check {
	if p == nil {
		return nil
	}
	systrap := probeWithTimeout(ctx, p, "systrap")
	if systrap == nil {
		return []caisson.Check{ok("platform", "gVisor runs on systrap")}
	}
	if ptrace := probeWithTimeout(ctx, p, "ptrace"); ptrace != nil {
		return []caisson.Check{failed("platform", "allow seccomp filters and ptrace on this machine",
			"gVisor runs neither on systrap (%v) nor on ptrace (%v)", systrap, ptrace)}
	}
	return []caisson.Check{warning("platform", "set platform: ptrace, or find out what blocks systrap",
		"gVisor does not run on systrap (%v), only on ptrace, which is slower", systrap)}
}

// probeWithTimeout calls Probe with probeTimeout: a platform on which the probe hangs counts as one that does not work.
func probeWithTimeout(ctx context.Context, p Probe, platform string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return p.Probe(ctx, platform)
}

// nearestExisting returns dir, or its nearest ancestor that exists: it is on the file system on which dir would be created.
func nearestExisting(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return dir
		}
		dir = up
	}
}
