// Package bench compares Caisson with the software it is built on. Unless a row names another program, that is gVisor's own
// command line, runsc (see the command in bench/runsc), of the same version, with the same spec, flags and user namespace.
// Both do the same work in the same run and interleaved, so that other load on the machine affects both.
//
// Caisson is measured through the API of a real daemon, from the request to the response. runsc does less: its root file
// system and network are prepared beforehand, it has no store, and it has no restarts or accounting.
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
	Net  *os.File  // Network namespace from which package registries can be reached; nil means that of the caller.
	Log  io.Writer // Receives progress messages; nil discards them.
}

// suite is an execution of the benchmarks.
type suite struct {
	Config
	*daemon
	baseline *runsc      // gVisor's command line, with which Caisson is compared.
	agents   *agentSetup // The set-up for benchmarks of agents; nil until a benchmark uses it.
	rows     []Row       // The rows that have been measured so far.
}

// benchmarks are the functions that measure. rows is the prefix of the names of the rows that a function adds.
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

// traffic has the benchmarks of connections, of wires and of the model gateway.
type traffic struct{ *suite }

// trafficBenchmark converts a benchmark of traffic to a benchmark of suite.
func trafficBenchmark(f func(traffic, context.Context) error) func(*suite, context.Context) error {
	return func(s *suite, ctx context.Context) error { return f(traffic{s}, ctx) }
}

// Run measures the rows that cfg selects and returns them. It must run as root in its own mount and network namespaces, which it
// changes. After an error, sandboxes may remain; they end with the caller's pid namespace.
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

// run starts the daemon, prepares gVisor's command line for comparison, and measures the rows of the selected benchmarks.
func (s *suite) run(ctx context.Context, selected []func(*suite, context.Context) error) (err error) {
	unix.Umask(0o077)
	if err := makeHostAddress(); err != nil {
		return err
	}
	if s.daemon, err = startDaemon(ctx, s.Config, "main"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.daemon.stop()) }()
	// The donor is a sandbox of Caisson whose OCI spec, flags and root file system are used for all sandboxes of gVisor's runsc.
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

// maxLog is the maximum number of bytes of each daemon's log that are part of an error message.
const maxLog = 16 << 10

// logs returns the ends of all daemons' logs, for an error message.
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

// operation is one of the operations that a benchmark compares.
type operation struct {
	before func(context.Context) error // Called before do, without being timed; may be nil.
	do     func(context.Context) error // The operation, which is timed.
	after  func(context.Context) error // Called after do, without being timed; may be nil.
}

// compare measures each operation n times, in turns, after one uncounted time for each. It returns the samples of each operation.
// The operation that begins a turn changes with each turn.
func compare(ctx context.Context, n int, sides ...operation) ([]samples, error) {
	measures := make([]measure, len(sides))
	for i, s := range sides {
		measures[i] = s.measure()
	}
	return interleave(ctx, n, measures...)
}

// A measure takes one or several samples of an operation.
type measure func(context.Context) (samples, error)

// measure returns a measure that takes one sample of s, the duration of s.do.
func (s operation) measure() measure {
	return func(ctx context.Context) (samples, error) {
		ms, err := s.sample(ctx)
		return samples{ms}, err
	}
}

// interleave calls each of the measures n times, in turns, after one uncounted call of each. It returns the samples of each
// measure. The measure that begins a turn changes with each turn.
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

// sample calls before, do and after, and returns the duration of do in milliseconds.
func (s operation) sample(ctx context.Context) (ms float64, err error) {
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

// milliseconds returns d in milliseconds.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
