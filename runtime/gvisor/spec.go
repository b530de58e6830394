package gvisor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// Paths of Caisson's programs inside every sandbox.
const (
	toolsDir   = "/.caisson"        // the directory with the programs
	initPath   = toolsDir + "/init" // process 1
	guestdPath = toolsDir + "/inside"
	coderPath  = toolsDir + "/agent" // the built-in coding agent
)

// fsDir is the directory, in the runtime's subdirectory of a sandbox, in which gVisor stores changes to the root file system.
const fsDir = "fs"

// hostPIDsFactor is the ratio of the PID limit of the host's cgroup to the guest's limit of processes. gVisor runs each guest
// thread in a separate host thread, needs some threads itself, and panics if it cannot create one. The guest's limit is
// enforced with RLIMIT_NPROC; the cgroup's limit is reached only if that fails.
const hostPIDsFactor = 8

// minHostPIDs is the minimum PID limit of a sandbox's cgroup, because gVisor needs threads of its own.
const minHostPIDs = 512

// capabilities are the capabilities of the guest's root: the same set as Docker's. They must not include SYS_ADMIN and
// SYS_RESOURCE: SYS_ADMIN allows unmounting, and SYS_RESOURCE exempts from RLIMIT_NPROC.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// ociSpec translates a RuntimeSpec to an OCI specification. The launcher sets the paths on the host (root, sources of binds,
// network namespace).
func ociSpec(s caisson.RuntimeSpec, cgroup string) *specs.Spec {
	res := s.Resources
	args := []string{initPath}
	if len(s.Command) > 0 {
		args = append(args, guestdPath)
		args = append(args, runArgs(s.User, s.Workdir, s.Command)...)
	}
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: s.UIDBase, Size: caisson.UIDRange}}
	spec := &specs.Spec{
		Version:  "1.2.0",
		Hostname: s.Hostname,
		Root:     &specs.Root{},
		Process: &specs.Process{
			Args: args, Env: withPath(s.Env), Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
			Rlimits: []specs.POSIXRlimit{
				rlimit("RLIMIT_NPROC", res.PIDs), rlimit("RLIMIT_NOFILE", res.OpenFiles), rlimit("RLIMIT_CORE", 0),
			},
		},
		Mounts: systemMounts(res),
		Linux: &specs.Linux{
			CgroupsPath: cgroup,
			UIDMappings: ids, GIDMappings: slices.Clone(ids),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
			},
			Resources: cgroupLimits(res),
		},
	}
	if s.Files != "" {
		spec.Annotations = map[string]string{protocol.RootfsTarAnnotation: s.Files}
	}
	return spec
}

// setRestoreAnnotations sets the annotations for the handling of random state and of the monotonic clock at a restore. Returns
// Invalid for an unknown s.Randomness.
func setRestoreAnnotations(spec *specs.Spec, s *caisson.RuntimeSpec) error {
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	switch s.Randomness {
	case "", "kernel":
		spec.Annotations[protocol.ReseedAnnotation] = protocol.ReseedKeep
	case "openssl":
		spec.Annotations[protocol.ReseedAnnotation] = protocol.ReseedOpenSSL
	default:
		return caisson.Errorf(caisson.Invalid, "unknown randomness %q; use kernel or openssl", s.Randomness)
	}
	if s.ContinueClock {
		spec.Annotations[protocol.ClockAnnotation] = protocol.ClockStill
	}
	return nil
}

// runArgs returns the arguments with which guestd resolves the user's name, changes to dir and executes the command.
func runArgs(user, dir string, command []string) []string {
	args := []string{"run"}
	if user != "" {
		args = append(args, "--user", user)
	}
	if dir != "" {
		args = append(args, "--cwd", dir)
	}
	return append(append(args, "--"), command...)
}

// rlimit returns a resource limit with n as its soft and hard limit.
func rlimit(name string, n int) specs.POSIXRlimit {
	return specs.POSIXRlimit{Type: name, Soft: uint64(n), Hard: uint64(n)}
}

// systemMounts returns the mounts of file systems that gVisor implements. File systems in memory have a size limit: their pages
// count as the sandbox's memory, but with the size limit, writes fail with ENOSPC instead of causing an out-of-memory kill.
// gVisor's /dev supports no size limit, so the guest's root, the only user who can write there, can use up the sandbox's memory.
func systemMounts(res caisson.Resources) []specs.Mount {
	size := func(s caisson.Size) string { return "size=" + strconv.FormatInt(int64(s), 10) }
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"mode=1777", size(res.Memory / 4)}},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmp", Options: []string{"mode=1777", size(min(res.Memory/2, res.Disk))}},
	}
}

// cgroupLimits translates the resources of a sandbox to limits of its cgroup.
func cgroupLimits(res caisson.Resources) *specs.LinuxResources {
	memory := int64(res.Memory)
	period := uint64(100_000)
	quota := int64(res.CPUs * float64(period))
	pids := int64(max(res.PIDs*hostPIDsFactor, minHostPIDs))
	return &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		Pids:   &specs.LinuxPids{Limit: pids},
	}
}

// defaultPath is the variable PATH of processes whose environment has no PATH.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// withPath returns env with defaultPath if it contains no PATH.
func withPath(env []string) []string {
	if slices.ContainsFunc(env, func(kv string) bool { return len(kv) >= 5 && kv[:5] == "PATH=" }) {
		return env
	}
	return append(slices.Clone(env), defaultPath)
}

// flags returns gVisor's flags for one sandbox with the runtime's directory dir. network tells whether it has a wire.
func (l *launcher) flags(dir string, res caisson.Resources, network bool) []string {
	mode := "none"
	if network {
		mode = "sandbox"
	}
	return []string{
		"--platform=" + l.platform,
		"--network=" + mode,
		"--tx-checksum-offload", // the wire process does not verify checksums
		fmt.Sprintf("--overlay2=root:dir=%s,size=%d", filepath.Join(dir, fsDir), int64(res.Disk)),
		"--allow-rootfs-tar-annotation",
		"--cpu-num-from-quota",
		"--host-settings=ignore",           // the administrator configures the host; "caisson doctor" recommends settings
		"--restore-spec-validation=ignore", // the daemon itself checks that a snapshot fits the host
	}
}
