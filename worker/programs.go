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

// A Mount is a directory that a job with programs sees besides its Root.
type Mount struct {
	Dir *os.File // shown without the mounts below it
	// At is where it is: "/" and a name of lower-case letters, digits and "-" that begins with a letter. Neither two of one
	// request nor those of Linux (usr, etc, tmp, …) and "/work" may be the same.
	At string
	// Writable is whether the job may change it as the owner of Root may; else it is read-only. Its mode and its owner hold in
	// either case: what belongs to another uid than Root is what others may do there.
	Writable bool
}

const maxMounts = 16

// firstAccountUID is the first uid that can be an account's, and no user of the host has.
const firstAccountUID = 0x50000000

var (
	mountName = regexp.MustCompile(`^/[a-z][a-z0-9-]{0,31}$`)
	// taken are the names that the programs have, or that a program could take for what it is elsewhere.
	taken = []string{"/work", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/dev", "/tmp", "/proc",
		"/sys", "/run", "/var", "/root", "/home", "/nonexistent"}
)

// layout is what the root of a job with programs is made of. Its mounts are descriptors that follow that of the request's Root.
type layout struct {
	Mounts []place `json:"mounts"`
	Links  []link  `json:"links"`
	// Unix is whether the job may have unix sockets besides pairs: a directory of a user of the host can have sockets in it that
	// somebody listens on, and a read-only mount keeps nobody from connecting.
	Unix bool `json:"unix"`
}

type place struct {
	At   string `json:"at"`
	File bool   `json:"file"` // no directory
}

type link struct {
	At string `json:"at"`
	To string `json:"to"`
}

// checkPrograms says what is wrong with a request that has or lacks Programs. All of it is the caller's mistake.
func (r *Request) checkPrograms() error {
	bad := func(format string, args ...any) error {
		return caisson.Errorf(caisson.Internal, "worker: %s %s", r.Job, fmt.Sprintf(format, args...))
	}
	switch {
	case !r.Programs && len(r.Mounts) > 0:
		return bad("has mounts and no programs")
	case !r.Programs:
		return nil
	case r.Network:
		return bad("asks for a network and programs")
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
		case !mountName.MatchString(m.At) || slices.Contains(taken, m.At):
			return bad("cannot have a mount at %q", m.At)
		case slices.ContainsFunc(r.Mounts[:i], func(o Mount) bool { return o.At == m.At }):
			return bad("has two mounts at %q", m.At)
		}
	}
	return nil
}

// furnish gives a job with programs what it sees besides its Root.
func (p *process) furnish(req Request, c *call) error {
	c.Programs = &layout{}
	for _, h := range hostPlaces {
		if err := p.showHost(c.Programs, h); err != nil {
			return fmt.Errorf("%s: %w", h.at, err)
		}
	}
	shown := append([]Mount{{Dir: req.Root, At: work}}, req.Mounts...)
	c.Programs.Unix = true
	for i, m := range shown {
		owner, err := ownerOf(m.Dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.At, err)
		}
		c.Programs.Unix = c.Programs.Unix && owner >= firstAccountUID
		if i == 0 {
			continue // seal has it
		}
		mount, err := detach(m.Dir, kept(!m.Writable))
		if err != nil {
			return fmt.Errorf("%s: %w", m.At, err)
		}
		p.show(c.Programs, m.At, mount, false)
		if p.lent != nil {
			p.lent = append(p.lent, mount)
		}
	}
	return nil
}

// show adds a mount to a layout. The descriptor is closed at the end.
func (p *process) show(l *layout, at string, mount *os.File, file bool) {
	p.mine = append(p.mine, mount)
	p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, mount)
	l.Mounts = append(l.Mounts, place{At: at, File: file})
}

// hostPlace is a place of the host that jobs with programs see read-only.
type hostPlace struct {
	at       string
	kind     uint32 // type as in a mode
	device   uint64 // of a character device
	attr     uint64 // besides read-only
	optional bool
	asLink   bool // may be a symbolic link, and then is one in the job, too
}

const programs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

var hostPlaces = []hostPlace{
	{at: "/usr", kind: unix.S_IFDIR, attr: programs},
	{at: "/bin", kind: unix.S_IFDIR, attr: programs, optional: true, asLink: true},
	{at: "/sbin", kind: unix.S_IFDIR, attr: programs, optional: true, asLink: true},
	{at: "/lib", kind: unix.S_IFDIR, attr: programs, optional: true, asLink: true},
	{at: "/lib32", kind: unix.S_IFDIR, attr: programs, optional: true, asLink: true},
	{at: "/lib64", kind: unix.S_IFDIR, attr: programs, optional: true, asLink: true},
	{at: "/etc/ld.so.cache", kind: unix.S_IFREG, attr: programs | unix.MOUNT_ATTR_NOEXEC, optional: true},
	{at: "/etc/alternatives", kind: unix.S_IFDIR, attr: programs | unix.MOUNT_ATTR_NOEXEC, optional: true},
	// Devices work on a read-only mount; only their modes and times cannot be changed.
	{at: "/dev/null", kind: unix.S_IFCHR, device: unix.Mkdev(1, 3), attr: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC},
	{at: "/dev/zero", kind: unix.S_IFCHR, device: unix.Mkdev(1, 5), attr: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC},
	{at: "/dev/urandom", kind: unix.S_IFCHR, device: unix.Mkdev(1, 9), attr: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC},
}

// showHost adds a place of the host to a layout.
func (p *process) showHost(l *layout, h hostPlace) error {
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
		return errors.New("is not what it is on every Linux host")
	}
	mount, err := detach(f, h.attr|unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	p.show(l, h.at, mount, h.kind != unix.S_IFDIR)
	return nil
}

// ownerOf returns the uid of a directory, or an error for anything else.
func ownerOf(dir *os.File) (uint32, error) {
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

// settle does what needs the job's process, and must be done before the job attaches its mounts.
func (p *process) settle() error {
	proc := fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)
	// Nothing bounds the memory of all programs together. When there is none left, it is they who go, not the daemon's sandboxes.
	if err := os.WriteFile(proc+"/oom_score_adj", []byte("1000"), 0); err != nil {
		return err
	}
	return p.lend(proc + "/ns/user")
}

// lend makes what belongs to root in the mounts of the request belong to the job, which is a user without rights: of root's processes
// the kernel does not limit the number, and root can read what nobody else can in /usr.
func (p *process) lend(namespace string) error {
	if p.lent == nil {
		return nil
	}
	users, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer users.Close()
	for _, m := range p.lent {
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
