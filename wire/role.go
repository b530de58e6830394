package wire

import (
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// processName is the wire process's argv[0], which selects the role of the binary.
const processName = "caisson-wire"

// controlFD and feedFD are the wire process's descriptors of the control connection and of the feed, after the standard streams.
const (
	controlFD = 3
	feedFD    = 4
)

// IsWire reports whether this process was started as the wire process.
func IsWire() bool { return os.Args[0] == processName }

// Main runs the wire process. It returns the exit status when the engine has closed the connection, or after an error, which it
// writes to standard error. The binary must be static: with cgo, a Go program cannot drop privileges on all its threads.
func Main(p Process) int {
	err := errors.New("start it through wire.Manager")
	switch {
	case len(os.Args) == 2:
		err = reexec()
	case len(os.Args) == 3 && os.Args[2] == "sealed":
		err = run(os.Args[1], p)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", processName, err)
		return 1
	}
	return 0
}

// reexec executes the binary again to drop the descriptors that the engine's libraries opened without close-on-exec. They cannot
// be closed here, because some of those above feedFD belong to the Go runtime.
func reexec() error {
	if err := unix.CloseRange(feedFD+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range (needs Linux 5.11): %w", err)
	}
	// GOMAXPROCS is limited because the number of goroutines of a stack is proportional to it. GODEBUG makes the runtime ignore
	// the CPU limit of the cgroup, for which it would keep files open.
	env := []string{
		"GOMAXPROCS=" + strconv.Itoa(min(runtime.NumCPU(), 4)),
		"GODEBUG=containermaxprocs=0,updatemaxprocs=0",
	}
	return fmt.Errorf("exec: %w", unix.Exec("/proc/self/exe", append(os.Args, "sealed"), env))
}

// run runs the wire process as the user whose id is arg.
func run(arg string, p Process) error {
	uid, err := strconv.ParseUint(arg, 10, 31)
	if err != nil {
		return fmt.Errorf("uid: %w", err)
	}
	conn, err := inherited(controlFD)
	if err != nil {
		return fmt.Errorf("control connection: %w", err)
	}
	defer conn.Close()
	feed, err := inherited(feedFD)
	if err != nil {
		return fmt.Errorf("feed: %w", err)
	}
	defer feed.Close()
	// The certificate authorities are loaded now, because their files cannot be read after confinement.
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // connections to providers over TLS then fail with an error that names the cause
	}
	most, err := descriptorLimit()
	if err != nil {
		return err
	}
	// All input above came from the engine. Input from sandboxes is read only after confineSelf has succeeded.
	confinement, err := confineSelf(int(uid))
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	debug.SetMemoryLimit(maxMemory / 4)
	s, err := newServer(conn, feed, p, Env{Roots: roots}, most)
	if err != nil {
		return err
	}
	return s.serve(confinement)
}

// inherited returns the unix socket of a descriptor that the engine passed.
func inherited(fd uintptr) (*net.UnixConn, error) {
	file := os.NewFile(fd, "inherited")
	defer file.Close() // net.FileConn duplicates the descriptor
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a unix socket")
	}
	return conn, nil
}
