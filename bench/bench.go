// Package bench compares Caisson with the software it is built on: the same work is done by gVisor's own command line
// ("bare runsc", see the command in bench/runsc) of the same version, with the same spec, flags and user namespace.
// Both are measured in the same run and interleaved, so that other load on the machine affects both.
//
// Caisson is measured through the API of a real daemon, from the request to the response. The baseline does less: its
// root file system and network are prepared beforehand, it has no store, and it has no restarts or accounting.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Config configures Run. Bin and Dir are required.
type Config struct {
	Bin  string    // Directory with the programs that make bench builds.
	Dir  string    // Empty directory for all files of the measurements; the caller removes it.
	Rows string    // Only rows whose name has this prefix are measured.
	N    int       // Number of samples of each quick row; 0 means 20. Slow rows have a fraction of it.
	Net  *os.File  // Network namespace from which package registries can be reached; nil means the caller's.
	Log  io.Writer // Receives progress messages; nil discards them.
}

// suite is a run of the benchmarks.
type suite struct {
	Config
	*daemon
	baseline *runsc      // The baseline.
	agents   *agentSetup // nil until a row requires it.
	rows     []Row       // The rows so far.
}

// benchmarks are the functions that measure, with the prefix of the names of the rows that they add.
var benchmarks = []struct {
	rows    string
	measure func(*suite, context.Context) error
}{
	{"sandbox.create.cold", (*suite).createCold},
	{"sandbox.claim.warm", (*suite).claimWarm},
	{"sandbox.create.burst50", (*suite).createBurst},
	{"exec.api", (*suite).execAPI},
	{"snapshot.small", (*suite).snapshotSmall},
	{"fork.small", (*suite).forkSmall},
	{"sandbox.idle.memory", (*suite).idleMemory},
	{"daemon.memory", (*suite).daemonMemory},
	{"gateway.added", trafficBenchmark(traffic.gatewayAdded)},
	{"gateway.inside", trafficBenchmark(traffic.gatewayInside)},
	{"gateway.rate", trafficBenchmark(traffic.gatewayRate)},
	{"wire.out", trafficBenchmark(traffic.wireOut)},
	{"wire.in", trafficBenchmark(traffic.wireIn)},
	{"wire.connect", trafficBenchmark(traffic.wireConnect)},
	{"ssh.scp", trafficBenchmark(traffic.sshCopy)},
	{"dial.connect", trafficBenchmark(traffic.dialConnect)},
	{"dial.throughput", trafficBenchmark(traffic.dialThroughput)},
	{"ingress.added", ingressBenchmark(ingress.added)},
	{"ingress.rate", ingressBenchmark(ingress.rate)},
	{"ingress.inside", ingressBenchmark(ingress.inside)},
	{"wake.suspended", ingressBenchmark(ingress.wakeSuspended)},
	{"wake.paused", ingressBenchmark(ingress.wakePaused)},
	{"sandbox.paused", (*suite).paused},
	{"gate.diff", (*suite).gateDiff},
	{"gate.mount", (*suite).gateMount},
	{"relay.clone", (*suite).relayClone},
	{"agent.shell", agentsBenchmark(agents.ensureSetup, agents.shell)},
	{"agent.caisson.warm", agentsBenchmark(agents.ensureSetup, agents.caisson)},
	{"agent.openclaw.warm", agentsBenchmark(agents.ensureOpenclaw, agents.openclawWarm)},
	{"agent.openclaw.directory", agentsBenchmark(agents.ensureOpenclaw, agents.openclawDirectory)},
	{"agent.openclaw.pool", agentsBenchmark(agents.ensureOpenclaw, agents.openclawPool)},
	{"agent.openclaw.pool.short", agentsBenchmark(agents.ensureOpenclaw, agents.openclawPoolShort)},
	{"agent.openclaw.ten", agentsBenchmark(agents.ensureOpenclaw, agents.openclawTen)},
	{"agent.openclaw.snapshot", agentsBenchmark(agents.ensureOpenclaw, agents.openclawSnapshot)},
	{"agent.openclaw.cold", agentsBenchmark(agents.ensureOpenclaw, agents.openclawCold)},
}

// traffic has the benchmarks of wires and of the model gateway.
type traffic struct{ *suite }

// trafficBenchmark converts a benchmark of traffic to one of suite.
func trafficBenchmark(f func(traffic, context.Context) error) func(*suite, context.Context) error {
	return func(s *suite, ctx context.Context) error { return f(traffic{s}, ctx) }
}

// Run measures and returns the rows. It must run as root in separate mount and network namespaces, which it changes.
// Sandboxes that an error leaves behind are killed with the processes of the caller's pid namespace.
func Run(ctx context.Context, cfg Config) ([]Row, error) {
	if cfg.N == 0 {
		cfg.N = 20
	}
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	for _, name := range []string{"caisson", "caisson-sentry", "caisson-worker", "caisson-guestd", "runsc", loadProgram, gatewayProgram} {
		if _, err := os.Stat(filepath.Join(cfg.Bin, name)); err != nil {
			return nil, fmt.Errorf("%w; run make bench", err)
		}
	}
	s := &suite{Config: cfg}
	var selected []func(*suite, context.Context) error
	for _, b := range benchmarks {
		if strings.HasPrefix(b.rows, cfg.Rows) || strings.HasPrefix(cfg.Rows, b.rows) {
			selected = append(selected, b.measure)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("no row begins with %q", cfg.Rows)
	}
	err := s.run(ctx, selected)
	s.rows = slices.DeleteFunc(s.rows, func(r Row) bool { return !strings.HasPrefix(r.Name, cfg.Rows) })
	return s.rows, err
}

// run starts the daemon and the baseline, and measures the selected rows.
func (s *suite) run(ctx context.Context, selected []func(*suite, context.Context) error) (err error) {
	unix.Umask(0o077)
	if err := makeHostAddress(); err != nil {
		return err
	}
	if s.daemon, err = startDaemon(ctx, s.Config, "main"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.daemon.stop()) }()
	// The donor is the sandbox whose bundle the baseline uses.
	donor, err := s.create(ctx)
	if err != nil {
		return err
	}
	if s.baseline, err = newRunsc(ctx, s.Config, s.daemon, donor); err != nil {
		return fmt.Errorf("prepare the baseline: %w", err)
	}
	defer func() { err = errors.Join(err, s.baseline.end()) }()
	defer func() {
		if s.agents != nil {
			err = errors.Join(err, s.agents.end())
		}
	}()
	for _, measure := range selected {
		if err := measure(s, ctx); err != nil {
			return fmt.Errorf("%w%s", err, s.logs())
		}
	}
	return s.api.Remove(ctx, donor)
}

// maxLog is the maximum number of bytes of a daemon's log that are shown.
const maxLog = 16 << 10

// logs returns the end of the daemons' logs.
func (s *suite) logs() string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(s.Dir, "*.log")) // The pattern is well-formed.
	for _, file := range files {
		said, _ := os.ReadFile(file)
		fmt.Fprintf(&b, "\n%s:\n%s", filepath.Base(file), said[max(0, len(said)-maxLog):])
	}
	return b.String()
}

// add adds a row to the result and prints it.
func (s *suite) add(r Row) {
	s.rows = append(s.rows, r)
	fmt.Fprintln(s.Log, r)
}

// side is one of the compared operations. do is timed; before and after are not, and may be nil.
type side struct {
	before func(context.Context) error
	do     func(context.Context) error
	after  func(context.Context) error
}

// compare takes n samples of each side in turns, after one uncounted sample of each. The side that starts changes with
// each turn.
func compare(ctx context.Context, n int, sides ...side) ([]samples, error) {
	measures := make([]measure, len(sides))
	for i, s := range sides {
		measures[i] = s.measure()
	}
	return interleave(ctx, n, measures...)
}

// A measure takes samples.
type measure func(context.Context) (samples, error)

// measure returns a measure that takes one sample of s.
func (s side) measure() measure {
	return func(ctx context.Context) (samples, error) {
		ms, err := s.sample(ctx)
		return samples{ms}, err
	}
}

// interleave collects the samples of n calls of each measure, in the order that compare uses.
func interleave(ctx context.Context, n int, measures ...measure) ([]samples, error) {
	all := make([]samples, len(measures))
	for turn := range n + 1 {
		for i := range measures {
			at := (turn + i) % len(measures)
			got, err := measures[at](ctx)
			if err != nil {
				return nil, err
			}
			if turn > 0 {
				all[at] = append(all[at], got...)
			}
		}
	}
	return all, nil
}

// sample returns the duration of do in milliseconds.
func (s side) sample(ctx context.Context) (ms float64, err error) {
	if s.before != nil {
		if err := s.before(ctx); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	err = s.do(ctx)
	ms = milliseconds(time.Since(start))
	if err == nil && s.after != nil {
		err = s.after(ctx)
	}
	return ms, err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
