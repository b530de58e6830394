package worker

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// A Mount is a directory that a job with programs can access in addition to its Root.
type Mount struct {
	Dir *os.File // mounted without the mounts below it
	// At is the mount point: "/" followed by a name of at most 32 lower-case letters, digits and "-" that begins with a letter.
	// It must be unique in a request, and must not be "/work" or a standard directory of Linux (/usr, /etc, /tmp, …).
	At string
	// Writable lets the job change the directory with the rights of the owner of Root; otherwise it is read-only. File modes
	// and owners apply in either case: for files of another uid than Root's, the job has the rights of "others".
	Writable bool
}

const maxMounts = 16 // maximum number of mounts of one request

// firstAccountUID is the first uid that an account can have. All users of the host have smaller uids.
const firstAccountUID = 0x50000000

var (
	// mountName matches the paths that Mount.At may have, apart from reservedPaths.
	mountName = regexp.MustCompile(`^/[a-z][a-z0-9-]{0,31}$`)
	// reservedPaths are paths that Mount.At must not have: they are in use, or have a standard meaning for programs.
	reservedPaths = []string{"/work", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/dev", "/tmp", "/proc",
		"/sys", "/run", "/var", "/root", "/home", "/nonexistent"}
)

// layout describes the root of a job with programs. The job gets the mounts as the descriptors after that of its root.
type layout struct {
	Mounts []mountPoint `json:"mounts"` // in the order of their descriptors
	Links  []link       `json:"links"`  // the symbolic links to create
	// Unix allows named unix sockets as well as socket pairs. It is false if a directory belongs to a user of the host: the
	// directory may contain sockets with listeners, and a read-only mount does not prevent connecting to them.
	Unix bool `json:"unix"`
}

// A mountPoint is the path of one mount in the root of a job.
type mountPoint struct {
	At   string `json:"at"`   // path of the mount in the root
	File bool   `json:"file"` // whether the mount is a file and not a directory
}

// link is a symbolic link in the root of a job.
type link struct {
	At string `json:"at"` // path of the link
	To string `json:"to"` // target of the link
}

// checkPrograms returns an error if Programs and Mounts are not valid in this request. All such errors are mistakes of the
// caller.
func (r *Request) checkPrograms() error {
	bad := func(format string, args ...any) error {
		return caisson.Errorf(caisson.Internal, "worker: %s %s", r.Job, fmt.Sprintf(format, args...))
	}
	switch {
	case !r.Programs && len(r.Mounts) > 0:
		return bad("has mounts but no programs")
	case !r.Programs:
		return nil
	case r.Network:
		return bad("requests both a network and programs")
	case r.Root == nil:
		return bad("has programs and no directory for them")
	case r.Access != ReadAsOwner && r.Access != WriteAsOwner:
		return bad("has programs, and they never have more rights than the owner of a directory")
	case len(r.Mounts) > maxMounts:
		return bad("has more than %d mounts", maxMounts)
	}
	for i, m := range r.Mounts {
		switch {
		case m.Dir == nil:
			return bad("has no directory at %q", m.At)
		case !mountName.MatchString(m.At) || slices.Contains(reservedPaths, m.At):
			return bad("cannot have a mount at %q", m.At)
		case slices.ContainsFunc(r.Mounts[:i], func(o Mount) bool { return o.At == m.At }):
			return bad("has two mounts at %q", m.At)
		}
	}
	return nil
}

// addMounts adds the mounts of a job with programs, except its Root.
func (p *process) addMounts(req Request, c *jobRequest) error {
	c.Programs = &layout{}
	for _, h := range hostMounts {
		if err := p.addHostMount(c.Programs, h); err != nil {
			return fmt.Errorf("%s: %w", h.at, err)
		}
	}
	shown := append([]Mount{{Dir: req.Root, At: workDir}}, req.Mounts...)
	c.Programs.Unix = true
	for i, m := range shown {
		owner, err := dirOwner(m.Dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.At, err)
		}
		c.Programs.Unix = c.Programs.Unix && owner >= firstAccountUID
		if i == 0 {
			continue // isolate has added the Root
		}
		mount, err := cloneMount(m.Dir, dataMountAttrs(!m.Writable))
		if err != nil {
			return fmt.Errorf("%s: %w", m.At, err)
		}
		p.addMount(c.Programs, m.At, mount, false)
		if p.idmapped != nil {
			p.idmapped = append(p.idmapped, mount)
		}
	}
	return nil
}

// addMount adds a mount to a layout. The descriptor is closed after the job has exited.
func (p *process) addMount(l *layout, at string, mount *os.File, file bool) {
	p.heldFiles = append(p.heldFiles, mount)
	p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, mount)
	l.Mounts = append(l.Mounts, mountPoint{At: at, File: file})
}

// hostMount is a path of the host that is mounted read-only for jobs with programs.
type hostMount struct {
	at       string // path, both on the host and in the job
	kind     uint32 // file type, as in st_mode
	device   uint64 // device number, of a character device
	attr     uint64 // mount attributes in addition to read-only
	optional bool   // may be missing on the host
	asLink   bool   // may be a symbolic link, which is then created in the job as well
}

// programMountAttrs are the mount attributes of directories with the host's programs.
const programMountAttrs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// hostMounts are the paths of the host that jobs with programs have.
var hostMounts = []hostMount{
	{at: "/usr", kind: unix.S_IFDIR, attr: programMountAttrs},
	{at: "/bin", kind: unix.S_IFDIR, attr: programMountAttrs, optional: true, asLink: true},
	{at: "/sbin", kind: unix.S_IFDIR, attr: programMountAttrs, optional: true, asLink: true},
	{at: "/lib", kind: unix.S_IFDIR, attr: programMountAttrs, optional: true, asLink: true},
	{at: "/lib32", kind: unix.S_IFDIR, attr: programMountAttrs, optional: true, asLink: true},
	{at: "/lib64", kind: unix.S_IFDIR, attr: programMountAttrs, optional: true, asLink: true},
	{at: "/etc/ld.so.cache", kind: unix.S_IFREG, attr: programMountAttrs | unix.MOUNT_ATTR_NOEXEC, optional: true},
	{at: "/etc/alternatives", kind: unix.S_IFDIR, attr: programMountAttrs | unix.MOUNT_ATTR_NOEXEC, optional: true},
	// Devices work on a read-only mount; only their modes and times cannot be changed.
	{at: "/dev/null", kind: unix.S_IFCHR, device: unix.Mkdev(1, 3), attr: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC},
	{at: "/dev/zero", kind: unix.S_IFCHR, device: unix.Mkdev(1, 5), attr: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC},
	{at: "/dev/urandom", kind: unix.S_IFCHR, device: unix.Mkdev(1, 9), attr: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC},
}

// addHostMount adds a path of the host to a layout.
func (p *process) addHostMount(l *layout, h hostMount) error {
	fd, err := unix.Open(h.at, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) && h.optional {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	f := os.NewFile(uintptr(fd), h.at)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK && h.asLink:
		to, err := os.Readlink(h.at)
		if err != nil {
			return err
		}
		l.Links = append(l.Links, link{At: h.at, To: to})
		return nil
	case kind != h.kind || kind == unix.S_IFCHR && st.Rdev != h.device:
		return errors.New("has an unexpected file type or device number")
	}
	mount, err := cloneMount(f, h.attr|unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	p.addMount(l, h.at, mount, h.kind != unix.S_IFDIR)
	return nil
}

// dirOwner returns the uid of a directory's owner, or an error if dir is not a directory.
func dirOwner(dir *os.File) (uint32, error) {
	defer runtime.KeepAlive(dir)
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, unix.ENOTDIR
	}
	return st.Uid, nil
}

// configureStarted sets the OOM score of the started job and idmaps its mounts. It must run before the job attaches its mounts.
func (p *process) configureStarted() error {
	proc := fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)
	// The total memory of all programs has no limit. When the host runs out of memory, this score makes the kernel kill the
	// programs first, and not the daemon's sandboxes.
	if err := os.WriteFile(proc+"/oom_score_adj", []byte("1000"), 0); err != nil {
		return err
	}
	return p.idmap(proc + "/ns/user")
}

// idmap idmaps the mounts of directories owned by root, so that the files belong to the job's unprivileged user. The job must
// not run as root: the kernel does not limit the number of root's processes, and root can read every file in /usr.
func (p *process) idmap(namespace string) error {
	if p.idmapped == nil {
		return nil
	}
	users, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer users.Close()
	for _, m := range p.idmapped {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
		err := unix.MountSetattr(int(m.Fd()), "", unix.AT_EMPTY_PATH, &attr)
		if errors.Is(err, unix.EINVAL) {
			return caisson.Wrap(err, caisson.Invalid, "a directory belongs to root and its file system cannot show it to others; let another user own it")
		}
		if err != nil {
			return os.NewSyscallError("mount_setattr", err)
		}
	}
	return nil
}
