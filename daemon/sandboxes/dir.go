package sandboxes

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/guesttree"
	"github.com/caisson-dev/caisson/internal/hostdir"
)

// Names of the files and directories in a sandbox's directory.
const (
	etcLayer   = "etc"         // topmost layer of the root file system, with the sandbox's own files of /etc, such as hostname
	outputFIFO = "output"      // FIFO for the output of the command
	mountsFile = "mounts.json" // list of the mounted host directories, see [mountRecord]
	filesTar   = "files.tar"   // archive of the changes to the root file system
	pauseDir   = "pause"       // directory of the checkpoint of a paused sandbox
	partSuffix = durable.Part  // suffix of a file or directory that is being written: it is never read, and Reconcile removes it
)

// dirs is the data directory with the path root. Its methods return the paths of the files of sandboxes and snapshots, and
// read and write these files.
type dirs struct{ root string }

// sandboxDir returns the path of the directory of a sandbox.
func (d dirs) sandboxDir(id caisson.ID) string {
	return filepath.Join(d.root, "sandboxes", string(id))
}

// removeSandboxDir removes a sandbox's directory. Its placeholder may contain untrusted files written by guests.
func (d dirs) removeSandboxDir(ctx context.Context, id caisson.ID) error {
	return guesttree.Remove(ctx, d.sandboxDir(id))
}

// snapshotDir returns the path of the directory of a snapshot or of a temporary capture.
func (d dirs) snapshotDir(id caisson.ID) string {
	return filepath.Join(d.root, "snapshots", string(id))
}

// sandboxPath returns the path of a file or directory in a sandbox's directory.
func (d dirs) sandboxPath(id caisson.ID, name string) string {
	return filepath.Join(d.sandboxDir(id), name)
}

// makeSandboxDir creates a sandbox's directory, with the FIFO for its output, and with its own files of /etc, such as hostname.
func (d dirs) makeSandboxDir(sb *caisson.Sandbox) error {
	dir := d.sandboxDir(sb.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := writeEtc(filepath.Join(dir, etcLayer), sb.ID); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return unix.Mkfifo(filepath.Join(dir, outputFIFO), 0o600)
}

// writeEtc creates the directory layer as the topmost layer of a sandbox's root file system. It contains the files of /etc that
// differ between sandboxes. A fork gets its own layer; files that its parent had overwritten hide the files of the layer.
func writeEtc(layer string, id caisson.ID) error {
	var machine [16]byte
	rand.Read(machine[:])
	files := map[string]string{
		"hostname":   string(id) + "\n",
		"hosts":      "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + string(id) + "\n",
		"machine-id": hex.EncodeToString(machine[:]) + "\n",
		// The name server is the gateway of the wire, which has the same address on every wire.
		"resolv.conf": "nameserver 10.87.0.1\noptions timeout:2 attempts:2\n",
	}
	for _, d := range []string{layer, filepath.Join(layer, "etc")} {
		if err := makeOwned(d, caisson.LayerUIDBase); err != nil {
			return err
		}
	}
	for name, content := range files {
		p := filepath.Join(layer, "etc", name)
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			return err
		}
		if err := setOwner(p, caisson.LayerUIDBase, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// makeOwned creates a directory that every user of a guest can enter. It belongs to the guest's root, whose uid and gid on the
// host are base.
func makeOwned(p string, base int) error {
	if err := os.Mkdir(p, 0o755); err != nil {
		return err
	}
	return setOwner(p, base, 0o755)
}

// setOwner makes the guest's root, whose uid and gid on the host are base, the owner of a file, and sets the file's mode
// regardless of the umask. If the daemon does not run as root, the owner remains unchanged.
func setOwner(p string, base int, mode os.FileMode) error {
	if os.Geteuid() == 0 {
		if err := os.Chown(p, base, base); err != nil {
			return err
		}
	}
	return os.Chmod(p, mode)
}

// mountRecord is the entry in mountsFile of a host directory that a sandbox was created with. Source is the path that the client
// named. When the sandbox starts, the daemon opens the directory by Path instead, and requires that it has the same device and
// inode as the directory that the client had opened.
type mountRecord struct {
	caisson.Mount
	Path   string // absolute path without symlinks
	Device uint64
	Inode  uint64
}

// dropSaved removes the files and directories of a sandbox's saved state that have the given names. Each one is renamed before
// its removal, so that a partly removed one never has its regular name.
func (d dirs) dropSaved(id caisson.ID, names ...string) error {
	var errs []error
	for _, name := range names {
		path := d.sandboxPath(id, name)
		if pathIfExists(path) == "" {
			continue
		}
		errs = append(errs, os.RemoveAll(path+partSuffix), os.Rename(path, path+partSuffix), os.RemoveAll(path+partSuffix))
	}
	return errors.Join(errs...)
}

// recordMounts stores the host directories of a request with their paths, devices and inodes in mountsFile.
func (d dirs) recordMounts(id caisson.ID, mounts []caisson.Mount, handles []caisson.Handle) error {
	if len(mounts) == 0 {
		return nil
	}
	records := make([]mountRecord, len(mounts))
	for i, m := range mounts {
		found, err := d.resolveHostDir(handles[i], m.Source, "mounts")
		if err != nil {
			return err
		}
		records[i] = mountRecord{Mount: m, Path: found.Path, Device: found.Device, Inode: found.Inode}
	}
	data, err := json.Marshal(records)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.sandboxDir(id), mountsFile), data, 0o600)
}

// resolveHostDir returns the path, device and inode of the host directory that a client has opened. Returns Invalid if it is not
// a directory or cannot be reached by its path, and Denied if it overlaps with the data directory. source is the path that the
// client named, and field the name of the request's field; both are for errors.
func (d dirs) resolveHostDir(dir caisson.Handle, source, field string) (found hostdir.Dir, err error) {
	found, err = hostdir.FromFD(dir.Fd())
	if errors.Is(err, hostdir.ErrNotDir) {
		return found, caisson.Invalidf(field, "%.100q is not a directory", source)
	}
	if err != nil {
		return found, caisson.Wrap(err, caisson.Invalid, "%.100q cannot be mounted", source)
	}
	if rel, err := filepath.Rel(found.Path, d.root); err == nil && filepath.IsLocal(rel) {
		return found, caisson.Errorf(caisson.Denied, "%.100q contains Caisson's own data and cannot be mounted", source)
	}
	if rel, err := filepath.Rel(d.root, found.Path); err == nil && filepath.IsLocal(rel) {
		return found, caisson.Errorf(caisson.Denied, "%.100q is in Caisson's own data and cannot be mounted", source)
	}
	// The data directory may be reachable under other paths: bind mounts can show a directory in several places.
	own, err := os.Open(d.root)
	if err != nil {
		return found, err
	}
	defer own.Close()
	overlap, err := hostdir.Overlap(own.Fd(), dir.Fd())
	if err == nil && overlap {
		err = caisson.Errorf(caisson.Denied, "%.100q contains Caisson's own data, or is in it, and cannot be mounted", source)
	}
	if err != nil {
		return found, err
	}
	// The directory must be reachable by its path, because each start of the sandbox opens it by the path, see openMounts.
	if err := found.CheckReachable(dir.Fd()); errors.Is(err, hostdir.ErrOtherNamespace) {
		return found, caisson.Wrap(err, caisson.Invalid, "the daemon cannot reach %.100q: %s", source, err)
	}
	return found, nil
}

// openMounts opens the mounted host directories of a sandbox for a start. The caller must close them with closeMounts.
func (d dirs) openMounts(id caisson.ID) (mounts []caisson.RuntimeMount, err error) {
	data, err := os.ReadFile(filepath.Join(d.sandboxDir(id), mountsFile))
	if os.IsNotExist(err) {
		return nil, nil
	}
	var records []mountRecord
	if err == nil {
		err = json.Unmarshal(data, &records)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeMounts(mounts)
		}
	}()
	for _, r := range records {
		f, err := hostdir.Dir{Path: r.Path, Device: r.Device, Inode: r.Inode}.Open(unix.O_PATH)
		switch {
		case errors.Is(err, hostdir.ErrReplaced):
			return mounts, caisson.Wrap(err, caisson.Conflict, "%.100q is no longer the directory that was mounted; make a new sandbox with the new one", r.Source)
		case err != nil:
			return mounts, caisson.Wrap(err, caisson.Conflict, "the mounted directory %.100q is gone", r.Source)
		}
		mounts = append(mounts, caisson.RuntimeMount{Source: f, Target: r.Target, Writable: r.Writable})
	}
	return mounts, nil
}

// closeMounts closes the files of mounts.
func closeMounts(mounts []caisson.RuntimeMount) {
	for _, m := range mounts {
		files := []*os.File{m.Source}
		if o := m.Overlay; o != nil {
			files = append(files, o.Upper, o.Work, o.Mask)
		}
		for _, f := range files {
			if f != nil {
				f.Close()
			}
		}
	}
}

// writeFile writes the file path with save and syncs it to disk. Returns an Exhausted error if the disk is full.
func writeFile(path string, save func(*os.File) error) error {
	return diskFull(durable.Write(path, save))
}

// writeDir creates the directory path with the contents that fill writes to the temporary directory dir. Afterwards path exists
// either completely or not at all.
func writeDir(path string, fill func(dir string) error) (err error) {
	defer func() { err = diskFull(err) }()
	part := path + partSuffix
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.Mkdir(part, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(part)
		}
	}()
	if err := fill(part); err != nil {
		return err
	}
	entries, err := os.ReadDir(part)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := durable.Sync(filepath.Join(part, e.Name())); err != nil {
			return err
		}
	}
	if err := durable.Sync(part); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(path))
}

// diskFull returns an Exhausted error if err was caused by a full disk, and err otherwise. It also checks the text of
// err, because a sandbox's processes report errors to the daemon as text.
func diskFull(err error) error {
	if err == nil || caisson.KindOf(err) != caisson.Internal {
		return err
	}
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
		if errors.Is(err, full) || strings.Contains(err.Error(), full.Error()) {
			return caisson.Wrap(err, caisson.Exhausted, "the disk is full; free some space in the data directory")
		}
	}
	return err
}

// linkFile creates the file to as a hard link to the file from, or as a copy if the file system does not support the link.
func linkFile(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return writeFile(to, func(f *os.File) error {
		_, err := io.Copy(f, src)
		return err
	})
}

// diskUse returns the disk space in bytes of the files below dir.
func diskUse(dir string) caisson.Size {
	var n int64
	filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(p, &st) == nil {
			n += st.Blocks * 512
		}
		return nil
	})
	return caisson.Size(n)
}
