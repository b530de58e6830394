package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// A sink is a function that is called for each entry of an archive. content is the content of a file, and empty for other
// entries. The sink need not read content to its end.
type sink func(e *entry, content io.Reader) error

// Verify reads an archive to its end. It returns an Invalid error unless the archive is complete and in the format of [Write],
// and Conflict if its format is that of a newer build.
func Verify(ctx context.Context, r io.Reader) (*Header, *Manifest, error) {
	return read(ctx, r, func(*entry, io.Reader) error { return nil })
}

// read reads an archive and calls put for each entry. The checksum is verified after the last call of put: the entries are
// unverified until read has returned without an error.
func read(ctx context.Context, r io.Reader, put sink) (*Header, *Manifest, error) {
	// Goroutines and memory are limited, because the archive may be hostile.
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20), zstd.WithDecoderMaxWindow(32<<20))
	if err != nil {
		return nil, nil, err
	}
	defer z.Close()
	in := &reader{ctx: ctx, tar: tar.NewReader(z), put: put, tally: newTally(), dirs: map[string]bool{dataDir: true, hostDir: true}, seen: map[string]bool{}}
	head, end, err := in.read()
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, nil, explain(err)
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(z, 1)); n > 0 || err != nil {
		return nil, nil, invalid("something follows the end of the archive")
	}
	return head, end, nil
}

// explain converts an error that occurred while an archive was read to an error with a message for users.
func explain(err error) error {
	_, known := errors.AsType[*caisson.Error](err)
	_, ofSystem := errors.AsType[unix.Errno](err)
	switch {
	case known, ofSystem:
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return invalid("the archive is not complete")
	}
	return invalid("it is no archive of caisson backup, or damaged: %v", err)
}

// reader is the state of one call of read.
type reader struct {
	ctx   context.Context
	tar   *tar.Reader
	put   sink            // function that is called for each entry
	tally *tally          // count and hash of the entries so far
	dirs  map[string]bool // dataDir, hostDir, and the names of the directories that were read so far
	seen  map[string]bool // names of all entries that were read so far
	names int             // total length of the names in seen, in bytes
}

// read reads and checks the header, all entries and the manifest, and calls r.put for each entry.
func (r *reader) read() (*Header, *Manifest, error) {
	var head Header
	if err := r.readHeader(&head); err != nil {
		return nil, nil, err
	}
	for {
		h, err := r.tar.Next()
		if err != nil {
			return nil, nil, err // also io.EOF, because the manifest must come before the end
		}
		if h.Name == manifestName {
			end, err := r.readManifest(&head, h)
			return &head, end, err
		}
		if err := r.readEntry(h); err != nil {
			return nil, nil, err
		}
	}
}

// readHeader reads the header of the archive.
func (r *reader) readHeader(head *Header) error {
	h, err := r.tar.Next()
	if err != nil {
		return err
	}
	if h.Name != headerName {
		return invalid("it is no archive of caisson backup")
	}
	var version struct {
		Format  int    `json:"format"`
		Version string `json:"version"`
	}
	data, err := r.readJSON(h, &version, false)
	switch {
	case err != nil:
		return err
	case version.Format > format:
		return caisson.Errorf(caisson.Conflict, "the backup was made by a newer Caisson (%.40q; format %d, this build knows %d); restore it with that one",
			version.Version, version.Format, format)
	case version.Format < 1:
		return invalid("it has the format %d", version.Format)
	}
	return decodeStrict(data, head)
}

// readManifest reads the manifest from the entry h and compares it with the tally of all entries before h. Returns an Invalid
// error if they differ, the archive has no store, or an entry follows h.
func (r *reader) readManifest(head *Header, h *tar.Header) (*Manifest, error) {
	var end Manifest
	if _, err := r.readJSON(h, &end, true); err != nil {
		return nil, err
	}
	got, err := r.tally.end(head)
	if err != nil {
		return nil, err
	}
	if got != end {
		return nil, invalid("its checksum is not that of its contents")
	}
	if !r.seen[dataDir+"/"+StoreName] {
		return nil, invalid("it has no store")
	}
	if _, err := r.tar.Next(); !errors.Is(err, io.EOF) {
		return nil, invalid("something follows the end of the archive")
	}
	return &end, nil
}

// readJSON reads an entry whose content is JSON, decodes the content into the value that into points to, and returns the
// content. If exactly is true, unknown fields are an error.
func (r *reader) readJSON(h *tar.Header, into any, exactly bool) ([]byte, error) {
	if h.Typeflag != tar.TypeReg || h.Size > maxJSON {
		return nil, invalid("the entry %.40q is not as it is in a backup", h.Name)
	}
	data, err := io.ReadAll(io.LimitReader(r.tar, maxJSON))
	if err != nil {
		return nil, err
	}
	if exactly {
		return data, decodeStrict(data, into)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return nil, invalid("its header is not JSON")
	}
	return data, nil
}

// decodeStrict decodes JSON. Unknown fields, and data after the JSON value, are errors.
func decodeStrict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || d.More() {
		return invalid("its header or manifest has another form")
	}
	return nil
}

// readEntry checks the entry with the tar header h, adds it to the tally, and passes it to r.put.
func (r *reader) readEntry(h *tar.Header) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	e := &entry{name: h.Name, mode: fs.FileMode(h.Mode) & fs.ModePerm, uid: h.Uid, gid: h.Gid, size: h.Size, target: h.Linkname}
	switch h.Typeflag {
	case tar.TypeReg:
		e.target = ""
	case tar.TypeDir:
		e.mode |= fs.ModeDir
		e.name, e.target = strings.TrimSuffix(e.name, "/"), ""
	case tar.TypeSymlink:
		e.mode |= fs.ModeSymlink
	default:
		return invalid("the entry %.200q is no file, directory or symlink", h.Name)
	}
	if h.Mode&^int64(fs.ModePerm) != 0 {
		return invalid("the entry %.200q has mode %o", e.name, h.Mode)
	}
	if err := e.check(); err != nil {
		return err
	}
	switch {
	case r.seen[e.name]:
		return invalid("the entry %.200q occurs twice", e.name)
	case !r.dirs[path.Dir(e.name)]:
		return invalid("the entry %.200q is in no directory of the archive", e.name)
	case len(r.seen) == maxEntries, r.names+len(e.name) > maxNames:
		return invalid("it has more entries than a backup can have")
	}
	r.seen[e.name] = true
	r.names += len(e.name)
	if e.mode.IsDir() {
		r.dirs[e.name] = true
	}
	r.tally.begin(e)
	content := io.TeeReader(r.tar, r.tally.hash)
	if err := r.put(e, content); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, content) // the hash must cover the part that put has not read
	return err
}
