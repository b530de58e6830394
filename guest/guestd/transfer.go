package guestd

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"path"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/tree"
)

// ReadFile returns a stream of the content of a regular file, from offset and at most limit bytes; 0 means no limit. The stream
// is closed when ctx ends.
func (c *Client) ReadFile(ctx context.Context, name string, offset, limit int64) (io.ReadCloser, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, caisson.Invalidf("offset", "must not be negative")
	}
	if limit < 0 {
		return nil, caisson.Invalidf("limit", "must not be negative")
	}
	t, err := c.call(ctx, request{Op: opRead, Path: []byte(name), Offset: offset, Limit: limit})
	if err != nil {
		return nil, err
	}
	return &reader{call: t, limit: limit}, nil
}

// A reader is a stream of content from the sandbox.
type reader struct {
	call  *call     // the call that receives the content
	limit int64     // maximum number of bytes that the sandbox may send; 0 means no limit
	total int64     // number of bytes received
	rest  []byte    // received content that was not read yet
	err   error     // error that Read returns after rest; io.EOF at the end
	once  sync.Once // makes sure that the call is ended once: at the end of the content or by Close
}

// Read implements [io.Reader].
func (r *reader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		r.err = r.next()
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// next receives the next part of the content into r.rest. It returns io.EOF at the end of the content.
func (r *reader) next() error {
	f, err := r.call.recv()
	if err != nil {
		return err
	}
	if f.kind == frameData {
		if r.total += int64(len(f.payload)); r.limit > 0 && r.total > r.limit {
			return r.call.closeWithError(errProtocol)
		}
		r.rest = f.payload
		return nil
	}
	res, err := r.call.parseResult(f, frameEnd)
	if err != nil {
		return err
	}
	r.once.Do(r.call.done)
	if err := res.err(); err != nil {
		return err
	}
	return io.EOF
}

// Close ends the stream. It may be called concurrently with Read.
func (r *reader) Close() error {
	r.once.Do(func() {
		r.call.stopClosing()
		r.call.close(io.ErrClosedPipe)
	})
	return nil
}

// WriteFile atomically replaces the content of a file by the data of r, and creates missing parents. mode 0 means the mode of the
// old file, or 0644 if there is none. If r returns an error, WriteFile returns the error and the file is unchanged.
func (c *Client) WriteFile(ctx context.Context, name string, mode uint32, r io.Reader) (*caisson.FileInfo, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return nil, err
	}
	if mode > 0o7777 {
		return nil, caisson.Invalidf("mode", "%o is not a mode; it has at most four octal digits", mode)
	}
	res, err := c.send(ctx, request{Op: opWrite, Path: []byte(name), Mode: mode}, r)
	if err != nil {
		return nil, err
	}
	return res.info(name)
}

// WriteTree unpacks the tar archive r below the directory at the path name, with the rights of guestd's user in the sandbox.
// It may contain files, directories and symlinks with clean relative names. After an error, a part of it may have been unpacked.
func (c *Client) WriteTree(ctx context.Context, name string, r io.Reader) error {
	name, err := cleanPath("path", name)
	if err != nil {
		return err
	}
	_, err = c.send(ctx, request{Op: opWriteTree, Path: []byte(name)}, r)
	return err
}

// send executes an operation whose content is the data of r, and returns its final result.
func (c *Client) send(ctx context.Context, req request, r io.Reader) (*result, error) {
	t, err := c.call(ctx, req)
	if err != nil {
		return nil, err
	}
	defer t.done()
	res, err := t.sendContent(r)
	if err != nil {
		return nil, err
	}
	return res, res.err()
}

// ReadTree returns a stream of the file, directory or symlink at the path name as a tar archive. The names in the archive are
// relative to the parent directory of name; "/" itself is called rootfs. The stream is closed when ctx ends.
func (c *Client) ReadTree(ctx context.Context, name string) (io.ReadCloser, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return nil, err
	}
	t, err := c.call(ctx, request{Op: opReadTree, Path: []byte(name)})
	if err != nil {
		return nil, err
	}
	base := path.Base(name)
	if base == "/" {
		base = rootName
	}
	in := &reader{call: t}
	r, w := io.Pipe()
	go func() { // this goroutine runs until the archive ends or Close is called
		err := tree.Copy(w, in, base)
		if caisson.KindOf(err) == caisson.Invalid && (in.err == nil || in.err == io.EOF) {
			// The sandbox has sent a malformed archive. To the caller that is not an invalid request, so the kind is changed.
			err = caisson.Wrap(err, caisson.Unavailable, "the sandbox's archive of %q makes no sense: %s", name, printable(caisson.MessageOf(err)))
		}
		in.Close()
		w.CloseWithError(err)
	}()
	return &treeReader{PipeReader: r, in: in}, nil
}

// treeReader is the stream that ReadTree returns. Closing it also ends the call in the sandbox.
type treeReader struct {
	*io.PipeReader
	in *reader // stream of the archive from the sandbox
}

// Close implements [io.Closer]: it ends the stream and the call.
func (r *treeReader) Close() error {
	r.in.Close()
	return r.PipeReader.Close()
}

// ListFiles lists a directory, sorted by name. Returns Exhausted if it has more than 100,000 entries.
func (c *Client) ListFiles(ctx context.Context, name string) ([]caisson.FileInfo, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return nil, err
	}
	t, err := c.call(ctx, request{Op: opList, Path: []byte(name)})
	if err != nil {
		return nil, err
	}
	infos, err := t.recvEntries(name)
	if err != nil {
		t.stopClosing()
		t.close(err)
		return nil, err
	}
	t.done()
	slices.SortFunc(infos, func(a, b caisson.FileInfo) int { return cmp.Compare(a.Name, b.Name) })
	return infos, nil
}

// recvEntries receives the entries of the directory dir, which the process sends in several frames, and validates them.
func (c *conn) recvEntries(dir string) ([]caisson.FileInfo, error) {
	infos := []caisson.FileInfo{}
	size := 0
	for {
		f, err := c.recv()
		if err != nil {
			return nil, err
		}
		if f.kind != frameItems {
			res, err := c.parseResult(f, frameEnd)
			if err == nil {
				err = res.err()
			}
			return infos, err
		}
		var batch []entry
		if err := decodeItems(f.payload, &batch); err != nil {
			return nil, c.closeWithError(err)
		}
		if len(infos)+len(batch) > maxList {
			return nil, caisson.Errorf(caisson.Exhausted, "%q has more than %d entries", dir, maxList)
		}
		for i := range batch {
			info, err := batch[i].listInfo(dir)
			if err != nil {
				return nil, c.closeWithError(err)
			}
			if size += len(info.Name) + len(info.Path) + len(info.Target); size > maxListBytes {
				return nil, caisson.Errorf(caisson.Exhausted, "the names in %q are too long to be listed", dir)
			}
			infos = append(infos, *info)
		}
	}
}

// maxListBytes is the maximum size of all names, paths and link targets of a listing together, in bytes.
const maxListBytes = 16 << 20

// listInfo validates e, an entry in a listing of dir, and returns it as information about a file.
func (e *entry) listInfo(dir string) (*caisson.FileInfo, error) {
	if !validName(e.Name) {
		return nil, errProtocol
	}
	return e.info(path.Join(dir, string(e.Name)), string(e.Name))
}

// decodeItems decodes the payload of an items frame, and checks the number of items.
func decodeItems[T any](payload []byte, items *[]T) error {
	if bytes.Count(payload, []byte{'{'}) > maxBatch { // checked first, because a decoded item takes more memory than "{}"
		return errProtocol
	}
	if err := decode(payload, items); err != nil {
		return err
	}
	if len(*items) == 0 || len(*items) > maxBatch {
		return errProtocol
	}
	return nil
}

// WatchFiles reports changes to the file or directory name and to the directory's entries; if recursive is set, also in
// directories below. It returns when the watch is set up. The channel is closed when ctx ends, the watched path is removed or the
// sandbox stops. Files may be created in a new directory before it is watched: they are reported as created, some of them twice.
// If events are not received fast enough, some are lost and an overflow event is sent.
func (c *Client) WatchFiles(ctx context.Context, name string, recursive bool) (<-chan caisson.FileEvent, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return nil, err
	}
	t, err := c.call(ctx, request{Op: opWatch, Path: []byte(name), All: recursive})
	if err != nil {
		return nil, err
	}
	events := make(chan caisson.FileEvent, 16)
	go func() {
		defer close(events)
		defer t.close(io.ErrClosedPipe)
		defer t.stopClosing()
		for t.recvChanges(name, events) {
		}
	}()
	return events, nil
}

// recvChanges receives a frame with changes and sends them to events. It returns false at the watch's end and for a malformed
// frame.
func (c *conn) recvChanges(root string, events chan<- caisson.FileEvent) bool {
	f, err := c.recv()
	if err != nil || f.kind != frameItems {
		return false
	}
	var batch []change
	if decodeItems(f.payload, &batch) != nil {
		return false
	}
	for _, ch := range batch {
		switch ch.Op {
		case changeCreate, changeWrite, changeRemove, changeRename, changeChmod, changeOverflow:
		default:
			return false
		}
		if !validRelPath(ch.Path) {
			return false
		}
		select {
		case events <- caisson.FileEvent{Op: ch.Op, Path: path.Join(root, string(ch.Path))}:
		case <-c.stop:
			return false
		}
	}
	return true
}
