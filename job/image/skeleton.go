package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// hostFiles are the files of the host's /etc that the host image contains if they exist and are readable for all users.
// Directories are copied with the files in them, but without subdirectories.
var hostFiles = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives",
	"ssl/certs/ca-certificates.crt", "ssl/cert.pem", "pki/tls/certs/ca-bundle.crt", "pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"os-release", "debian_version", "redhat-release", "alpine-release", "nsswitch.conf", "mime.types", "services", "protocols",
	"localtime", "timezone", "shells", "profile", "bash.bashrc", "inputrc", "host.conf", "gai.conf",
}

const (
	// maxHostFile is the maximum size of a file in bytes. Larger files are left out, because none of hostFiles should be that large.
	maxHostFile = 4 << 20
	guestUser   = 1000 // uid and gid of "user" in passwd
)

// passwd is the content of /etc/passwd in the host image.
const passwd = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
user:x:1000:1000:user:/home/user:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`

// group is the content of /etc/group in the host image.
const group = `root:x:0:
daemon:x:1:
tty:x:5:
user:x:1000:
nogroup:x:65534:
`

// skeleton builds the root directory of the host image. It reads the host's /etc, which is trusted because the host's root
// wrote it, and so needs no worker job.
type skeleton struct {
	host    *os.Root  // the host's root directory
	out     *os.Root  // the directory that becomes the layer
	sum     hash.Hash // SHA-256 of the entries so far, see hashEntry
	size    int64     // size of the files in bytes, each rounded up to blocks
	entries int64     // number of files, directories and symlinks
}

// newSkeleton returns a skeleton that builds in the directory dir. hostRoot is the root directory of the host.
func newSkeleton(hostRoot, dir string) (*skeleton, error) {
	host, err := os.OpenRoot(hostRoot)
	if err != nil {
		return nil, err
	}
	out, err := os.OpenRoot(dir)
	if err != nil {
		host.Close()
		return nil, err
	}
	return &skeleton{host: host, out: out, sum: sha256.New()}, nil
}

func (s *skeleton) close() {
	s.host.Close()
	s.out.Close()
}

// digest returns the digest of the entries so far.
func (s *skeleton) digest() string { return digestOf(s.sum) }

// fill creates all files and directories of the host image's root directory.
func (s *skeleton) fill() error {
	for _, d := range []struct {
		path string
		mode uint32
	}{
		{"dev", 0o755}, {"etc", 0o755}, {"home", 0o755}, {"media", 0o755}, {"mnt", 0o755}, {"opt", 0o755}, {"proc", 0o555},
		{"root", 0o700}, {"run", 0o755}, {"run/lock", 0o1777}, {"srv", 0o755}, {"sys", 0o555}, {"tmp", 0o1777}, {"usr", 0o755},
		{"var", 0o755}, {"var/cache", 0o755}, {"var/lib", 0o755}, {"var/log", 0o755}, {"var/tmp", 0o1777},
	} {
		if err := s.dir(d.path, d.mode, 0); err != nil {
			return err
		}
	}
	if err := errors.Join(
		s.dir("home/user", 0o755, guestUser),
		s.symlink("var/run", "/run"), s.symlink("var/lock", "/run/lock"),
		s.file("etc/passwd", []byte(passwd)), s.file("etc/group", []byte(group)),
	); err != nil {
		return err
	}
	for _, name := range systemDirs {
		if err := s.systemDir(name); err != nil {
			return err
		}
	}
	for _, name := range hostFiles {
		if err := s.copy(name, true); err != nil {
			return fmt.Errorf("/etc/%s: %w", name, err)
		}
	}
	return nil
}

// systemDir creates name, an element of systemDirs: as the same symlink if it is a symlink into /usr on the host, and as an
// empty directory, for a bind mount, if it is a directory on the host.
func (s *skeleton) systemDir(name string) error {
	fi, err := s.host.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.IsDir():
		return s.dir(name, 0o755, 0)
	case fi.Mode().Type() != fs.ModeSymlink:
		return nil
	}
	target, err := s.host.Readlink(name)
	if err != nil || !pointsIntoUsr(target) {
		return err
	}
	return s.symlink(name, target)
}

// copy copies /etc/name if all users can read it. A symlink is copied as a symlink if its target is in a directory that the
// sandbox shares with the host; otherwise the target's content is copied if it is in /etc, too. Directories are copied only
// if deep is set.
func (s *skeleton) copy(name string, deep bool) error {
	p := path.Join("etc", name)
	if !s.reachable(path.Dir(p)) {
		return nil
	}
	fi, err := s.host.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case fi.Mode().Type() == fs.ModeSymlink:
		return s.copyLink(name, p)
	case fi.IsDir() && deep:
		if fi.Mode().Perm()&0o005 != 0o005 {
			return nil
		}
		entries, err := fs.ReadDir(s.host.FS(), p)
		if err != nil {
			return err
		}
		if err := s.createParents(p); err != nil {
			return err
		}
		if err := s.dir(p, 0o755, 0); err != nil {
			return err
		}
		for _, e := range entries {
			if err := s.copy(path.Join(name, e.Name()), false); err != nil {
				return err
			}
		}
		return nil
	case fi.Mode().IsRegular():
		return s.copyFile(p, p)
	}
	return nil
}

// copyLink copies /etc/name, a symlink with the path p: as a symlink if its target is shared with the sandbox, else its content.
func (s *skeleton) copyLink(name, p string) error {
	target, err := s.host.Readlink(p)
	if err != nil {
		return err
	}
	// leads becomes the absolute path to which the symlink leads.
	leads := target
	if !path.IsAbs(leads) {
		leads = path.Join("/", path.Dir(p), leads)
	}
	leads = path.Clean(leads)
	if first, rest, _ := strings.Cut(leads[1:], "/"); slices.Contains(systemDirs, first) || first == "usr" && !strings.HasPrefix(rest+"/", "local/") {
		if err := s.createParents(p); err != nil {
			return err
		}
		return s.symlink(p, target)
	}
	if !strings.HasPrefix(leads, "/etc/") || strings.HasPrefix(leads, "/etc/ssl/private") || !s.reachable(path.Dir(leads[1:])) {
		return nil
	}
	if strings.HasPrefix(name, "alternatives/") {
		return nil
	}
	if fi, err := s.host.Lstat(leads[1:]); err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	return s.copyFile(leads[1:], p)
}

// reachable reports whether all users have search permission for dir and its parent directories on the host.
func (s *skeleton) reachable(dir string) bool {
	for p := dir; p != "."; p = path.Dir(p) {
		if fi, err := s.host.Lstat(p); err != nil || !fi.IsDir() || fi.Mode().Perm()&0o001 == 0 {
			return false
		}
	}
	return true
}

// copyFile copies the content of the host's file from to the path to, if all users can read from.
func (s *skeleton) copyFile(from, to string) error {
	f, err := s.host.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o004 == 0 || fi.Size() > maxHostFile {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, maxHostFile))
	if err != nil {
		return err
	}
	if err := s.createParents(to); err != nil {
		return err
	}
	return s.file(to, data)
}

// createParents creates the missing parent directories of p.
func (s *skeleton) createParents(p string) error {
	dir := path.Dir(p)
	if dir == "." {
		return nil
	}
	if err := s.createParents(dir); err != nil {
		return err
	}
	if _, err := s.out.Lstat(dir); err == nil {
		return nil
	}
	return s.dir(dir, 0o755, 0)
}

// dir creates the directory p. owner is its uid and gid in the sandbox.
func (s *skeleton) dir(p string, mode uint32, owner int) error {
	if err := s.out.Mkdir(p, 0o700); err != nil {
		return err
	}
	s.hashEntry("directory", p, fmt.Sprintf("%o %d", mode, owner))
	f, err := s.out.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.setOwnerAndMode(f, mode, owner)
}

// file creates the file p, which belongs to the guest's root, with the content data.
func (s *skeleton) file(p string, data []byte) error {
	f, err := s.out.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	s.hashEntry("file", p, string(data))
	if _, err := f.Write(data); err != nil {
		return err
	}
	return s.setOwnerAndMode(f, 0o644, 0)
}

// setOwnerAndMode sets the mode of f, and owner as its uid and gid in the sandbox.
func (s *skeleton) setOwnerAndMode(f *os.File, mode uint32, owner int) error {
	if err := f.Chown(caisson.LayerUIDBase+owner, caisson.LayerUIDBase+owner); err != nil {
		return err
	}
	return os.NewSyscallError("fchmod", unix.Fchmod(int(f.Fd()), mode))
}

// symlink creates the symlink p, which belongs to the guest's root.
func (s *skeleton) symlink(p, target string) error {
	if err := s.out.Symlink(target, p); err != nil {
		return err
	}
	s.hashEntry("symlink", p, target)
	return s.out.Lchown(p, caisson.LayerUIDBase, caisson.LayerUIDBase)
}

// hashEntry adds an entry to the digest, to the total size and to the number of entries.
func (s *skeleton) hashEntry(kind, p, content string) {
	s.entries++
	s.size += int64(len(content)+block-1) / block * block
	hashParts(s.sum, kind, p, content)
}
