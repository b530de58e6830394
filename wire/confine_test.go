package wire

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testneed"
)

const probeName = "caisson-wire-probe"

// probe confines itself as the wire process does and then tries operations that must be denied.
func probe() int {
	// The wire process has connections before this, and so a runtime poller, which cannot be created later.
	r, w, err := os.Pipe()
	if err != nil {
		fmt.Println("pipe:", err)
		return 1
	}
	r.Close()
	w.Close()
	c, err := confineSelf(DefaultUID)
	if err != nil {
		fmt.Println("confine:", err)
		return 1
	}
	raw := func(nr, a, b uintptr) error {
		if _, _, errno := unix.RawSyscall(nr, a, b, 0); errno != 0 {
			return errno
		}
		return nil
	}
	socket := func(family, kind int) error {
		_, err := unix.Socket(family, kind, 0)
		return err
	}
	protocol := func(kind, protocol int) func() error {
		return func() error { _, err := unix.Socket(unix.AF_INET, kind, protocol); return err }
	}
	option := func(level, name int) func() error {
		return func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.SetsockoptString(fd, level, name, "tls\x00")
		}
	}
	tries := map[string]func() error{
		"open":    func() error { _, err := unix.Open("/", unix.O_RDONLY, 0); return err },
		"exec":    func() error { return unix.Exec("/bin/true", nil, nil) },
		"fork":    func() error { return raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0) },
		"raw":     func() error { return socket(unix.AF_INET, unix.SOCK_RAW) },
		"raw6":    func() error { return socket(unix.AF_INET6, unix.SOCK_RAW) },
		"netlink": func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW) },
		"vsock":   func() error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM) },
		"listen":  func() error { return raw(unix.SYS_LISTEN, 0, 1) },
		"unix":    func() error { return socket(unix.AF_UNIX, unix.SOCK_STREAM) },
		"packet":  func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW) },
		"mptcp":   protocol(unix.SOCK_STREAM, unix.IPPROTO_MPTCP),
		"smc":     protocol(unix.SOCK_STREAM, 256),
		"sctp":    protocol(unix.SOCK_STREAM, unix.IPPROTO_SCTP),
		"udplite": protocol(unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE),
		"ping":    protocol(unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
		"l2tp":    protocol(unix.SOCK_DGRAM, unix.IPPROTO_L2TP),
		"ulp":     option(unix.IPPROTO_TCP, unix.TCP_ULP),
		"filter":  option(unix.SOL_SOCKET, unix.SO_ATTACH_FILTER),
		"ebpf":    option(unix.SOL_SOCKET, unix.SO_ATTACH_BPF),
		"device":  option(unix.SOL_SOCKET, unix.SO_BINDTODEVICE),
		"options": option(unix.IPPROTO_IP, unix.IP_OPTIONS),
		"ptrace":  func() error { return unix.PtraceAttach(os.Getppid()) },
		"mount":   func() error { return unix.Mount("", "/", "tmpfs", 0, "") },
		"bpf":     func() error { return raw(unix.SYS_BPF, 0, 0) },
		"ioctl":   func() error { return unix.IoctlSetInt(0, unix.TUNSETPERSIST, 1) },
		"kill":    func() error { return unix.Kill(os.Getppid(), 0) },
		"setuid":  func() error { return raw(unix.SYS_SETUID, 0, 0) },
		"unshare": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"code": func() error {
			_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
			return err
		},
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			if err := socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK); err != nil {
				fmt.Printf("socket %d %d: %v\n", family, kind, err)
				return 1
			}
		}
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP)
	if err != nil {
		fmt.Println("socket:", err)
		return 1
	}
	for _, o := range allowedOptions() {
		if o.name == unix.SO_LINGER {
			continue // its value has a different type
		}
		if err := unix.SetsockoptInt(fd, int(o.level), int(o.name), 1); err != nil {
			fmt.Printf("option %d of level %d: %v\n", o.name, o.level, err)
			return 1
		}
	}
	for name, try := range tries {
		if err := try(); !errors.Is(err, unix.EPERM) {
			fmt.Printf("%s: %v\n", name, err)
			return 1
		}
	}
	// A Go program must still work.
	done := make(chan []byte)
	for range 100 {
		go func() { done <- make([]byte, 1<<16) }()
	}
	for range 100 {
		<-done
	}
	fmt.Printf("confined: landlock %t, seccomp %t\n", c.Landlock > 0, c.Seccomp)
	return 0
}

func TestConfine(t *testing.T) {
	t.Parallel()
	needWire(t)
	cmd := &exec.Cmd{Path: helper, Args: []string{probeName}, Env: []string{}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.TrimSpace(string(out)); got != "confined: landlock true, seccomp true" {
		testneed.Skip(t, "seccomp", "this kernel confines less: "+got)
	}
}

func TestConfineRefusesRoot(t *testing.T) {
	t.Parallel()
	if err := dropPrivileges(0); err == nil {
		t.Fatal("stayed root")
	}
}
