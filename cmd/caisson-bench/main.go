// Command caisson-bench measures Caisson, compares it with gVisor's own command line, and prints a table of the results.
// "make bench" builds the required programs and runs it. It needs root.
//
// It works in separate pid, mount and network namespaces, so no process, mount or interface remains after it, even after a crash.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/bench"
)

// The roles of this binary's processes, selected by argv[0].
const (
	initRole    = "caisson-bench-init"    // process 1 of the new namespaces, which starts the process that measures
	measureRole = "caisson-bench-measure" // child of process 1 that takes the measurements and prints the table
)

// networkFD is the descriptor of the network namespace that the program was started in. The benchmark's own namespace has no
// network, so the daemon that installs agents is started in the namespace of this descriptor, from which package registries can
// be reached.
const networkFD = 3

// options are the values of the program's flags.
type options struct {
	// bin is the directory with the programs that make bench builds. rows is a prefix of the names of the rows to measure, which
	// are the lines of the table of results. out is the file to which the rows are also written as JSON; "" for none. dir is the
	// directory for the files of the measurements; "" for the system's temporary directory.
	bin, rows, out, dir string
	n                   int // number of samples for most quick rows; very quick rows have a multiple of it, slow rows a fraction
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory with the programs that make bench builds")
	flag.StringVar(&o.rows, "rows", "", "measure only rows whose name has this prefix")
	flag.StringVar(&o.out, "out", "", "also write the rows to this file, as JSON")
	flag.StringVar(&o.dir, "dir", "", "working directory; the default is a temporary directory")
	flag.IntVar(&o.n, "n", 20, "number of samples of each quick row")
	flag.Parse()
	var err error
	switch os.Args[0] {
	case initRole:
		os.Exit(reap())
	case measureRole:
		err = measure(o)
	default:
		err = isolate(o)
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			os.Exit(max(exit.ExitCode(), 1)) // The process in the new namespaces has reported the error.
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "caisson-bench:", err)
		os.Exit(1)
	}
}

// isolate runs this binary again in new namespaces. Afterwards it removes the files and cgroups that the benchmark has left,
// because these do not end with the namespaces.
func isolate(o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("this needs root: sandboxes are made")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp(o.dir, "caisson-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeCgroups(dir), os.RemoveAll(dir)) }()
	network, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return err
	}
	defer network.Close()
	runtime.LockOSThread() // Pdeathsig kills the child when this thread ends.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-bin", o.bin, "-rows", o.rows, "-out", o.out, "-dir", dir, fmt.Sprintf("-n=%d", o.n))
	cmd.Args[0] = initRole
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{network}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
	}
	return cmd.Run()
}

// removeCgroups removes the empty cgroups that the benchmark has left: of the daemons whose data directories are in dir, and of
// gVisor's own command line, whose cgroups are in a cgroup with the last element of dir as its name.
func removeCgroups(dir string) error {
	names := []string{filepath.Base(dir)}
	instances, err := filepath.Glob(filepath.Join(dir, "*", "instance"))
	for _, file := range instances {
		if id, err := os.ReadFile(file); err == nil && len(id) > 0 {
			names = append(names, filepath.Join("caisson", string(id)))
		}
	}
	for _, name := range names {
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			groups, _ := filepath.Glob(filepath.Join(root, name, "*/")) // The error is ignored: the pattern is well-formed.
			own, _ := filepath.Glob(filepath.Join(root, name))
			for _, group := range append(groups, own...) {
				if e := unix.Rmdir(group); e != nil && e != unix.ENOENT && e != unix.ENOTDIR && e != unix.EPERM {
					err = errors.Join(err, fmt.Errorf("remove cgroup %s: %w", group, e))
				}
			}
		}
	}
	return err
}

// reap prepares the namespaces, runs the measurements and reaps orphaned processes until the measurements have ended.
func reap() int {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fail(err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fail(err)
	}
	pid, err := syscall.ForkExec("/proc/self/exe", append([]string{measureRole}, os.Args[1:]...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2, networkFD},
	})
	if err != nil {
		return fail(err)
	}
	for {
		var status syscall.WaitStatus
		switch got, err := syscall.Wait4(-1, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil:
			return fail(err)
		case got == pid && status.Exited():
			return status.ExitStatus()
		case got == pid:
			return 1
		}
	}
}

// fail prints err and returns the exit code.
func fail(err error) int {
	fmt.Fprintln(os.Stderr, "caisson-bench:", err)
	return 1
}

// measure takes the measurements, prints the results as a table, and also writes them to the file of -out if it was given.
func measure(o options) error {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	network := os.NewFile(networkFD, "network namespace")
	defer network.Close()
	unix.CloseOnExec(networkFD)
	rows, err := bench.Run(context.Background(), bench.Config{Bin: bin, Dir: o.dir, Rows: o.rows, N: o.n, Net: network, Log: os.Stderr})
	if len(rows) > 0 {
		err = errors.Join(err, bench.WriteTable(os.Stdout, rows))
	}
	if err != nil || o.out == "" {
		return err
	}
	data, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(o.out, append(data, '\n'), 0o644)
}
