// Command testrun runs the tests of this module for "make test" and "make test-all" and stores their times for "make
// test-times". It must be started in the root of the module, after "make build".
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// module is the path of this module.
const module = "github.com/caisson-dev/caisson"

// timesFile is the file with the durations of the packages and tests of the last run.
const timesFile = "bin/test-times.json"

// withoutRace are packages that "make test" runs without the race detector; their subpackages are not included.
// docs/testing.md gives the reason for each.
var withoutRace = []string{
	"", "daemon/agent", "guest/drive", "guest/coder", "daemon/agent/openclaw", "guest/openclaw/driver", "guest/openclaw/install", "guest/task", "bench", "bench/load",
	"cmd/caisson", "cmd/caisson-bench", "daemon/engine", "job/forge", "job/gate/apply", "job/gate/baseline", "job/gate/check", "job/gate/compare", "job/gate/overlay", "job/gate/jobs",
	"guest/guestd", "internal/house", "job/relay/commit", "job/relay/git", "job/relay/transport", "job/relay/prepare", "job/relay/push", "job/relay/quarantine", "job/relay/receive",
	"job/relay/remote", "job/relay/serve", "daemon/repos",
	"runtime/gvisor", "test", "job/worker",
}

// longPackages are packages whose tests start sandboxes and agents and take longest. They start first and run in parallel with
// the others.
var longPackages = []string{"test", "cmd/caisson", "daemon/agent", "daemon/engine", "runtime/gvisor"}

// shm is the directory for files of tests if it has shmMinFree bytes free: most tests otherwise wait for the disk, and
// their files need not be durable. It is not used for tests with real sandboxes, because the memory limits of those
// would include files written to a root file system there.
const (
	shm        = "/dev/shm"
	shmMinFree = 6 << 30
)

func main() {
	all := flag.Bool("all", false, "run everything: all steps, floods and agents, and the race detector wherever it can be had")
	times := flag.Bool("times", false, "print the times of the last run instead")
	count := flag.Int("count", 0, "run each test that often; 0 takes results of unchanged packages from the cache")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *times {
		err = printTimes(os.Stdout, timesFile)
	} else {
		err = run(ctx, *all, *count)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
}

// An invocation is one call of "go test".
type invocation struct {
	race     bool          // run the tests with the race detector
	packages []string      // import paths of the packages to test
	env      []string      // the environment of the tests
	test     string        // name of the only test to run; "" means all
	count    int           // value of the flag -count of "go test"
	timeout  time.Duration // time limit of each test binary
}

// run runs all tests: longPackages in one sequence of invocations, and the other packages in another one at the same time.
// With all, as in "make test-all", no test skips cases, and the race detector is used more. count is the flag of "go test".
func run(ctx context.Context, all bool, count int) error {
	env, inMemory, clean, err := environment(ctx, all)
	if err != nil {
		return err
	}
	defer clean()
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	var long, race, plain []string
	for _, p := range strings.Fields(string(out)) {
		name := strings.TrimPrefix(strings.TrimPrefix(p, module), "/")
		switch {
		case slices.Contains(longPackages, name):
			long = append(long, p)
		case slices.Contains(withoutRace, name):
			plain = append(plain, p)
		default:
			race = append(race, p)
		}
	}
	timeout := 40 * time.Minute // package test takes a fourth of this time on two idle cores
	if all {
		timeout = time.Hour
	}
	slices.Reverse(long) // go list sorts by name, so package test, which takes longest, is last; it is to start first.
	first := []invocation{{packages: long, env: env, count: count, timeout: timeout}}
	if all { // The race detector does not help in package test, which starts a binary that is built without it.
		first = []invocation{{packages: long[:1], env: env, count: count, timeout: timeout}, {packages: long[1:], race: true, env: env, count: count, timeout: timeout}}
	}
	lanes := [][]invocation{
		first,
		{{packages: race, race: true, env: inMemory, count: count, timeout: timeout}, {packages: plain, race: all, env: inMemory, count: count, timeout: timeout}},
	}
	began := time.Now()
	r := &report{out: os.Stdout, timesFile: timesFile}
	var wait sync.WaitGroup
	for _, lane := range lanes {
		wait.Go(func() {
			for _, i := range lane {
				if err := i.run(ctx, r); err != nil {
					r.fail(err)
				}
			}
		})
	}
	wait.Wait()
	for _, f := range r.repeatable() {
		for _, i := range slices.Concat(lanes...) {
			if !slices.Contains(i.packages, f.Package) {
				continue
			}
			again := i
			again.packages, again.test, again.count = []string{f.Package}, f.Test, 1 // an empty Test repeats the whole package
			if err := again.run(ctx, r); err != nil {
				r.fail(err)
			}
		}
	}
	return r.close(time.Since(began))
}

// environment returns the environment of tests: env is for tests that start real sandboxes, inMemory for others. clean removes
// their files. all means that no test skips cases; then no files are in memory.
func environment(ctx context.Context, all bool) (env, inMemory []string, clean func(), err error) {
	bin, err := filepath.Abs("bin")
	if err != nil {
		return nil, nil, nil, err
	}
	// Without a git repository, commit is empty and the sample of steps is always the same.
	commit, _ := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	env = append(os.Environ(), "CAISSON_TEST_BIN="+bin, "CAISSON_TEST_SAMPLE="+strings.TrimSpace(string(commit)))
	if all {
		env = append(env, "CAISSON_TEST_ALL=1")
		return env, env, func() {}, nil
	}
	var fs unix.Statfs_t
	if unix.Statfs(shm, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || fs.Bavail*uint64(fs.Bsize) < shmMinFree || unix.Access(shm, unix.W_OK) != nil {
		return env, env, func() {}, nil
	}
	// The directory is the same for each run of a checkout, because it is part of the key of cached results. Its name
	// is short, because tests create sockets below it, whose paths have at most 107 bytes.
	dir := filepath.Join(shm, fmt.Sprintf("ct-%.4x", sha256.Sum256([]byte(bin))))
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return nil, nil, nil, err
	}
	// Programs that run as another user need access to the directory, as they have to /tmp.
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		return nil, nil, nil, err
	}
	return env, append(slices.Clone(env), "TMPDIR="+dir), func() { os.RemoveAll(dir) }, nil
}

// run runs the tests and reports them. It returns an error if "go test" failed but has reported no failed test or package.
func (i invocation) run(ctx context.Context, r *report) error {
	// "make lint" runs all of vet.
	args := []string{"test", "-json", "-vet=off", "-p", "2", "-parallel", "4", "-timeout", i.timeout.String()}
	env := slices.Clone(i.env)
	if i.race {
		// The generated code of SQLite has no data races of this module and is ten times slower with the detector.
		args = append(args, "-race", "-gcflags=modernc.org/...=-race=false")
	} else {
		// Use the settings of "make build", so that dependencies are compiled once.
		args, env = append(args, "-trimpath"), append(env, "CGO_ENABLED=0")
	}
	if i.test != "" {
		args = append(args, "-run=^"+i.test+"$")
	}
	if i.count > 0 {
		args = append(args, fmt.Sprintf("-count=%d", i.count))
	}
	cmd := exec.CommandContext(ctx, "go", append(args, i.packages...)...)
	cmd.Env = env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var errs bytes.Buffer
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := r.read(pipe)
	_, _ = io.Copy(io.Discard, pipe) // Read the output after an error, so that the program can end.
	if err := cmd.Wait(); err != nil && readErr == nil && !r.failed(i.packages) {
		readErr = fmt.Errorf("go test: %w\n%s", err, errs.String())
	}
	return readErr
}
