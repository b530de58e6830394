package gvisor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/sentry"
)

// Where Caisson's own programs are inside every sandbox.
const (
	toolsDir    = "/.caisson"
	guestInit   = toolsDir + "/init"
	guestInside = toolsDir + "/inside"
	guestAgent  = toolsDir + "/agent"
)

// fsDir, in the runtime's part of a sandbox's directory, is where gVisor makes the file with what is written to the root file system.
const fsDir = "fs"

// pidsBackstop is how many times the guest's limit of processes the host's cgroup allows: gVisor runs each guest thread in a
// host thread of its own and needs some itself, and panics where it cannot have one. The guest's own limit is
// RLIMIT_NPROC, so this is reached only if that fails.
const pidsBackstop = 8

const minHostPIDs = 512

// capabilities are what root has inside: Docker's set. SYS_ADMIN and SYS_RESOURCE are never among them: they lift
// RLIMIT_NPROC and allow unmounting.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// ociSpec translates a RuntimeSpec. Paths on the host (root, sources of binds, network namespace) are the launcher's.
func ociSpec(s caisson.RuntimeSpec, cgroup string) *specs.Spec {
	res := s.Resources
	args := []string{guestInit}
	if len(s.Command) > 0 {
		args = append(args, guestInside)
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
		spec.Annotations = map[string]string{specutils.AnnotationRootfsUpperTar: s.Files}
	}
	return spec
}

// revive makes gVisor's process deal with the random state and the clock of what it restores.
func revive(spec *specs.Spec, s *caisson.RuntimeSpec) error {
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	switch s.Randomness {
	case "", "kernel":
		spec.Annotations[sentry.ReseedAnnotation] = sentry.ReseedKeep
	case "openssl":
		spec.Annotations[sentry.ReseedAnnotation] = sentry.ReseedOpenSSL
	default:
		return caisson.Errorf(caisson.Invalid, "unknown randomness %q; use kernel or openssl", s.Randomness)
	}
	if s.StillClock {
		spec.Annotations[sentry.ClockAnnotation] = sentry.ClockStill
	}
	return nil
}

// runArgs are the arguments with which the inside program resolves a user's name, changes to a directory and becomes
// the command.
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

func rlimit(name string, n int) specs.POSIXRlimit {
	return specs.POSIXRlimit{Type: name, Soft: uint64(n), Hard: uint64(n)}
}

// systemMounts are the file systems that gVisor itself provides. Those in memory have a size: their pages count as the
// sandbox's memory, but a limit of their own ends a runaway writer with ENOSPC instead of an OOM kill. gVisor's /dev takes no
// limit: the guest's root, who alone can write there, can use up the sandbox's own memory with it.
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

func cgroupLimits(res caisson.Resources) *specs.LinuxResources {
	memory := int64(res.Memory)
	period := uint64(100_000)
	quota := int64(res.CPUs * float64(period))
	pids := int64(max(res.PIDs*pidsBackstop, minHostPIDs))
	return &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		Pids:   &specs.LinuxPids{Limit: pids},
	}
}

// defaultPath is what a process finds programs in whose environment has no PATH.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func withPath(env []string) []string {
	if slices.ContainsFunc(env, func(kv string) bool { return len(kv) >= 5 && kv[:5] == "PATH=" }) {
		return env
	}
	return append(slices.Clone(env), defaultPath)
}

// flags is gVisor's configuration for one sandbox.
func (l *launcher) flags(dir string, res caisson.Resources, network bool) []string {
	mode := "none"
	if network {
		mode = "sandbox"
	}
	return []string{
		"--platform=" + l.platform,
		"--network=" + mode,
		"--tx-checksum-offload", // the wire's end does not look at them; package wire says why
		fmt.Sprintf("--overlay2=root:dir=%s,size=%d", filepath.Join(dir, fsDir), int64(res.Disk)),
		"--allow-rootfs-tar-annotation",
		"--cpu-num-from-quota",
		"--host-settings=ignore",           // the daemon's host is its administrator's business; doctor advises
		"--restore-spec-validation=ignore", // snapshots say what they depend on (caisson.Dependencies)
	}
}
