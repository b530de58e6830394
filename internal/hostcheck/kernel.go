package hostcheck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/meminfo"
)

// kernelVersion is the major and minor version of a kernel.
type kernelVersion struct{ major, minor int }

// parseKernel parses the start of a release such as "6.1.0-18-amd64".
func parseKernel(release string) (kernelVersion, error) {
	var v kernelVersion
	if _, err := fmt.Sscanf(release, "%d.%d", &v.major, &v.minor); err != nil {
		return v, fmt.Errorf("%.80q is not a kernel release", release)
	}
	return v, nil
}

// atLeast reports whether v is major.minor or a later version.
func (v kernelVersion) atLeast(major, minor int) bool {
	return v.major > major || (v.major == major && v.minor >= minor)
}

// kernel checks the version of the kernel.
func kernel() caisson.Check {
	const name, remedy = "kernel", "install a kernel of 5.19 or newer; Debian 12 has 6.1"
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return failed(name, remedy, "cannot read the kernel version: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	v, err := parseKernel(release)
	switch {
	case err != nil:
		return warning(name, remedy, "%v", err)
	case !v.atLeast(5, 12):
		return failed(name, remedy, "%s has no idmapped mounts", release)
	case !v.atLeast(5, 19):
		return failed(name, remedy, "%s does not support overlays of idmapped layers", release)
	}
	return ok(name, "%s", release)
}

// requiredControllers are the cgroup controllers that enforce the limits of sandboxes.
var requiredControllers = []string{"cpu", "memory", "pids"}

// cgroups checks that the cgroup controllers in requiredControllers are available.
func cgroups() caisson.Check {
	const name = "cgroups"
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return failed(name, "mount /proc", "cannot read the mounts: %v", err)
	}
	version, have := cgroupControllers(string(mounts), func(file string) string {
		b, _ := os.ReadFile(file) // A file that cannot be read lists no controllers.
		return string(b)
	})
	missing := slices.DeleteFunc(slices.Clone(requiredControllers), func(c string) bool { return slices.Contains(have, c) })
	switch {
	case version == 0:
		return failed(name, "mount cgroup2 on /sys/fs/cgroup", "no cgroup hierarchy is mounted")
	case len(missing) > 0:
		remedy := "boot with cgroup_enable=" + strings.Join(missing, " cgroup_enable=") + ", or mount these controllers"
		if version == 2 {
			remedy = "have them delegated to the daemon's service (Delegate=yes) or container, or boot with cgroup_enable=" + strings.Join(missing, " cgroup_enable=")
		}
		return failed(name, remedy, "version %d lacks the controllers %s", version, strings.Join(missing, ", "))
	}
	return ok(name, "version %d with %s", version, strings.Join(requiredControllers, ", "))
}

// cgroupControllers returns the usable controllers in a table of mounts. A machine on which both cgroup versions are mounted
// counts as version 1, and have contains the controllers of both: the kernel attaches each controller to only one of the two
// versions.
func cgroupControllers(mounts string, read func(file string) string) (version int, have []string) {
	var v2 []string
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		switch f[2] {
		case "cgroup":
			version = 1
			for o := range strings.SplitSeq(f[3], ",") {
				if slices.Contains(requiredControllers, o) {
					have = append(have, o)
				}
			}
		case "cgroup2":
			v2 = append(v2, strings.Fields(read(f[1]+"/cgroup.controllers"))...)
			if version == 0 {
				version = 2
			}
		}
	}
	if version == 2 {
		return 2, v2
	}
	return version, append(have, v2...)
}

// tun checks that /dev/net/tun, with which TAPs are created, can be opened.
func tun() caisson.Check {
	const name = "tun"
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failed(name, "modprobe tun; in a container pass --device /dev/net/tun", "there is no /dev/net/tun")
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return failed(name, "modprobe tun", "/dev/net/tun has no driver")
	case err != nil:
		return failed(name, "run it as root; in a container allow the device", "cannot open /dev/net/tun: %v", err)
	}
	f.Close()
	return ok(name, "/dev/net/tun can be opened")
}

// confinement checks for Landlock, which confines Caisson's helper processes. Without it they are less confined.
func confinement() caisson.Check {
	const name = "confinement"
	const remedy = "use a kernel with CONFIG_SECURITY_LANDLOCK, and landlock in lsm= on its command line"
	const landlockVersion = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, landlockVersion)
	if errno != 0 {
		return warning(name, remedy, "no Landlock (%v): helper processes are confined by user, capabilities and seccomp only", errno)
	}
	return ok(name, "Landlock, version %d", abi)
}

// Limits of checks: a value below the minimum (min) makes the check fail, and a value below the recommended one makes it a
// warning.
const (
	minDisk, recommendedDisk     = caisson.Size(1 << 30), caisson.Size(10 << 30)
	minMemory, recommendedMemory = caisson.Size(512 << 20), caisson.Size(2 << 30)
	recommendedPIDs              = 32768 // processes and threads together
	recommendedNamespaces        = 1000  // user namespaces, and network namespaces
)

// disk checks the free space on the file system of dir.
func disk(dir string) caisson.Check {
	const name = "disk"
	remedy := "free some space, or choose another directory with --data"
	dir = nearestExisting(dir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return failed(name, remedy, "cannot read the free space of %s: %v", dir, err)
	}
	free := caisson.Size(st.Bavail) * caisson.Size(st.Bsize)
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		return failed(name, remedy, "the file system of %s is read-only", dir)
	case free < minDisk:
		return failed(name, remedy, "%s free at %s", free, dir)
	case free < recommendedDisk:
		return warning(name, remedy, "%s free at %s", free, dir)
	}
	return ok(name, "%s free at %s", free, dir)
}

// memory checks the available memory.
func memory() caisson.Check {
	const name, remedy = "memory", "end something, or add memory; a sandbox may use 2GiB unless told otherwise"
	free, err := meminfo.Available()
	switch {
	case err != nil:
		return warning(name, remedy, "%v", err)
	case free < minMemory:
		return failed(name, remedy, "%s available", free)
	case free < recommendedMemory:
		return warning(name, remedy, "%s available", free)
	}
	return ok(name, "%s available", free)
}

// pids checks the kernel's limits on processes and threads.
func pids() caisson.Check {
	const name = "pids"
	limit := int64(1 << 62)
	for _, f := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		n, err := readInt(f)
		if err != nil {
			return warning(name, "mount /proc", "cannot read %s: %v", f, err)
		}
		limit = min(limit, n)
	}
	if limit < recommendedPIDs {
		return warning(name, "sysctl -w kernel.pid_max=4194304 kernel.threads-max=1000000", "at most %d threads on this machine", limit)
	}
	return ok(name, "up to %d threads", limit)
}

// namespaces checks the kernel's limits on namespaces.
func namespaces() caisson.Check {
	const name, remedy = "namespaces", "sysctl -w user.max_user_namespaces=100000 user.max_net_namespaces=100000"
	limit := int64(1 << 62)
	for _, f := range []string{"/proc/sys/user/max_user_namespaces", "/proc/sys/user/max_net_namespaces"} {
		n, err := readInt(f)
		if errors.Is(err, fs.ErrNotExist) {
			return failed(name, "use a kernel with CONFIG_USER_NS and CONFIG_NET_NS", "the kernel has no %s", f)
		}
		if err != nil {
			return warning(name, "mount /proc", "cannot read %s: %v", f, err)
		}
		limit = min(limit, n)
	}
	switch {
	case limit == 0:
		return failed(name, remedy, "user or network namespaces are disabled")
	case limit < recommendedNamespaces:
		return warning(name, remedy, "at most %d user or network namespaces, which also limits the number of sandboxes", limit)
	}
	return ok(name, "up to %d", limit)
}

// readInt returns the decimal number in a file.
func readInt(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}
