package backup

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/caisson-dev/caisson"
)

// A Source contains the inputs of an archive.
type Source struct {
	Header Header   // header of the archive; [Write] sets Format, CreatedAt and CredentialKey
	Data   *os.Root // the data directory
	Store  *os.File // a consistent copy of the store
	Config string   // path of the configuration file; "" for none
	Agents string   // path of the directory with the administrator's files of agents; "" for none
}

// Write writes an archive to w. The daemon may use the data directory in the meantime: files that it adds during the call may be
// in the archive or not, and files that it removes before they are read are not. After an error the written data is not a valid
// archive.
func Write(ctx context.Context, w io.Writer, s Source) error {
	s.Header.Format, s.Header.CreatedAt = format, time.Now().UTC().Truncate(time.Second)
	_, err := s.Data.Lstat("credential.key")
	s.Header.CredentialKey = err == nil
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	out := &writer{ctx: ctx, tar: tar.NewWriter(z), tally: newTally()}
	err = out.write(&s)
	if err == nil {
		err = errors.Join(out.tar.Close(), z.Close())
	} else {
		_ = z.Close() // only frees resources: the written data is not a valid archive in any case
	}
	return err
}

// writer is the state of one call of Write.
type writer struct {
	ctx   context.Context
	tar   *tar.Writer
	tally *tally // count and hash of the entries so far
}

// write writes all entries of the archive.
func (w *writer) write(s *Source) error {
	if err := w.writeJSON(headerName, s.Header); err != nil {
		return err
	}
	for _, p := range parts {
		var err error
		switch p.path {
		case dataDir + "/" + StoreName:
			err = w.writeFile(p.path, s.Store, p.foreign)
		case hostDir + "/" + ConfigName:
			err = w.addHostFile(s.Config, p.path)
		case hostDir + "/" + AgentsName:
			err = w.addHostFile(s.Agents, p.path)
		default:
			err = w.add(s.Data, strings.TrimPrefix(p.path, dataDir+"/"), p.path)
		}
		if err != nil {
			return err
		}
	}
	end, err := w.tally.end(&s.Header)
	if err != nil {
		return err
	}
	return w.writeJSON(manifestName, end)
}

// writeJSON writes v as JSON to an entry with this name. It is used for the header and the manifest, which the tally does not
// count.
func (w *writer) writeJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data)), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = w.tar.Write(data)
	return err
}

// addHostFile writes the file or directory at the path file of the host to the archive, under the name as. A directory is written
// recursively. Symlinks in the path are followed. It does nothing if file is "" or does not exist.
func (w *writer) addHostFile(file, as string) error {
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK: opening a FIFO must not block
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case info.Mode().IsRegular():
		return w.writeFile(as, f, false)
	case !info.IsDir():
		return caisson.Errorf(caisson.Conflict, "cannot back up %s: it is neither a file nor a directory", file)
	}
	root, err := os.OpenRoot(file)
	if err != nil {
		return err
	}
	defer root.Close()
	return w.add(root, ".", as)
}

// add writes the file, directory or symlink called name in root to the archive, under the name as. A directory is written
// recursively. Files that are in none of the [parts] of an archive are left out.
func (w *writer) add(root *os.Root, name, as string) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	p, mayLink, known := findPart(as)
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !known:
		return nil
	case err != nil:
		return err
	case info.Mode().Type() == fs.ModeSymlink && mayLink:
		target, err := root.Readlink(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		e := newEntry(as, info, p.foreign)
		e.target = target
		return w.header(e)
	case !info.Mode().IsRegular() && !info.IsDir():
		return nil
	}
	// The flags prevent blocking on a FIFO, and following a symlink, that has replaced the file since Lstat.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	now, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !os.SameFile(info, now):
		return caisson.Errorf(caisson.Conflict, "%s was replaced while it was read; try again", as)
	case now.Mode().IsRegular():
		return w.writeFile(as, f, p.foreign)
	}
	if err := w.header(newEntry(as, now, p.foreign)); err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	// Names are written in descending order, so that the refs of a git repository precede its objects: all objects that the
	// written refs point to already exist when the objects are written.
	slices.Sort(names)
	for _, n := range slices.Backward(names) {
		if err := w.add(root, path.Join(name, n), as+"/"+n); err != nil {
			return err
		}
	}
	return nil
}

// newEntry returns the entry for a file, with the name as. Its owner is that of the file if foreign is true, and otherwise root.
func newEntry(as string, info fs.FileInfo, foreign bool) *entry {
	e := &entry{name: as, mode: info.Mode() & (fs.ModeType | fs.ModePerm)}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && foreign {
		e.uid, e.gid = int(st.Uid), int(st.Gid)
	}
	if info.Mode().IsRegular() {
		e.size = info.Size()
	}
	return e
}

// writeFile writes a regular file to the archive, under the name as; its owner in the archive is that of the file if foreign is
// true, and otherwise root. If the file grows during the call, only its size at the beginning of the call is written. Returns
// Conflict if the file becomes shorter.
func (w *writer) writeFile(as string, f *os.File, foreign bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	e := newEntry(as, info, foreign)
	if err := w.header(e); err != nil {
		return err
	}
	_, err = io.CopyN(io.MultiWriter(w.tar, w.tally.hash), f, e.size)
	if errors.Is(err, io.EOF) {
		return caisson.Errorf(caisson.Conflict, "%s became shorter while it was read; try again", as)
	}
	return err
}

// header writes the tar header of an entry, and adds the entry to the tally.
func (w *writer) header(e *entry) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	if err := e.check(); err != nil {
		return caisson.Errorf(caisson.Conflict, "cannot back up the data directory: %s", caisson.MessageOf(err))
	}
	h := &tar.Header{Name: e.name, Linkname: e.target, Mode: int64(e.mode.Perm()), Uid: e.uid, Gid: e.gid, Size: e.size, Format: tar.FormatPAX}
	switch e.mode.Type() {
	case fs.ModeDir:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
	default:
		h.Typeflag = tar.TypeReg
	}
	w.tally.begin(e)
	return w.tar.WriteHeader(h)
}
