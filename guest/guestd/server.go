package guestd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/errno"
	framing "github.com/caisson-dev/caisson/internal/frame"
	"github.com/caisson-dev/caisson/internal/tree"
)

// errAborted is the error of reading content that the client has aborted.
var errAborted = errors.New("aborted by the client")

// rootName is the name of the top directory in the archive of "/", which has no name of its own.
const rootName = "rootfs"

// A server executes the requests of a [Client] in the sandbox, one at a time.
type server struct {
	fs  *filesystem   // root directory of the sandbox
	in  *bufio.Reader // stream of frames from the client
	out *bufio.Writer // stream of frames to the client
}

// serveFiles implements "guestd files": it executes requests from standard input until the end of file.
func serveFiles(ctx context.Context, p *ProcessEnv) int {
	fs, err := openFilesystem(p.Root)
	if err != nil {
		printError(p.Err, err)
		return exitUsage
	}
	defer fs.close()
	s := &server{fs: fs, in: bufio.NewReaderSize(p.In, chunkSize), out: bufio.NewWriterSize(p.Out, chunkSize+frameHeaderSize)}
	for ctx.Err() == nil {
		if err := s.serveOne(ctx); err == io.EOF {
			break
		} else if err != nil {
			printError(p.Err, err)
			return exitFailure
		}
	}
	return 0
}

// serveOne reads and executes one request. It returns errors of the streams; an error of the operation is sent to the client.
func (s *server) serveOne(ctx context.Context) error {
	f, err := readFrame(s.in)
	if err != nil {
		return err
	}
	var req request
	if f.kind != frameRequest {
		return errProtocol
	}
	if err := decode(f.payload, &req); err != nil {
		return err
	}
	name := string(req.Path)
	switch req.Op {
	case opRead:
		return s.read(name, req.Offset, req.Limit)
	case opWrite:
		return s.write(name, req.Mode)
	case opList:
		return s.list(name)
	case opWatch:
		return s.watch(ctx, name, req.All)
	case opReadTree:
		return s.readTree(name)
	case opWriteTree:
		return s.writeTree(name)
	}
	e, err := s.executeWithoutContent(req, name)
	return s.answer(frameResult, e, err)
}

// executeWithoutContent executes an operation that transfers no content. name is the path of the file or directory.
func (s *server) executeWithoutContent(req request, name string) (*entry, error) {
	switch req.Op {
	case opStat:
		p, err := s.fs.locate(name)
		if err != nil {
			return nil, err
		}
		defer p.close()
		return p.stat()
	case opMkdir:
		if req.All {
			return nil, s.fs.mkdirAll(path.Clean(name))
		}
		p, err := s.fs.locate(name)
		if err != nil {
			return nil, err
		}
		defer p.close()
		return nil, p.wrapError("mkdir", unix.Mkdirat(p.fd(), p.name, 0o755))
	case opMove:
		return nil, s.fs.move(name, string(req.To))
	case opRemove:
		return nil, s.fs.remove(name, req.All)
	}
	return nil, caisson.Errorf(caisson.Invalid, "no operation %.40q", string(req.Op))
}

// answer sends the outcome of an operation, e or err, in a frame of the given kind: a result or an end frame.
func (s *server) answer(kind byte, e *entry, err error) error {
	r := result{Entry: e}
	if err != nil {
		err = errno.Wrap(err)
		r = result{Kind: caisson.KindOf(err), Message: message(err)}
	}
	return writeFrame(s.out, kind, r)
}

// message returns the text of err for the client. It is not redacted, because errors in the sandbox contain no secrets.
func message(err error) string {
	if e, ok := errors.AsType[*caisson.Error](err); ok {
		return strings.ToValidUTF8(e.Msg, "?")
	}
	return strings.ToValidUTF8(err.Error(), "?")
}

// Write sends content to the client in data frames.
func (s *server) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n := min(len(b)-done, chunkSize)
		if err := s.send(frameData, b[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return len(b), nil
}

// send writes a frame without flushing the buffer: the end frame that follows the content flushes it.
func (s *server) send(kind byte, payload []byte) error {
	var head [frameHeaderSize]byte
	framing.PutHeader(head[:], kind, len(payload))
	if _, err := s.out.Write(head[:]); err != nil {
		return err
	}
	_, err := s.out.Write(payload)
	return err
}

// read executes opRead: it sends the content of the file at the path name, from offset and at most limit bytes; 0 means no limit.
func (s *server) read(name string, offset, limit int64) error {
	f, err := s.openRegular(name)
	if err == nil {
		defer f.Close()
		if offset < 0 || limit < 0 {
			err = caisson.Errorf(caisson.Invalid, "offset and limit must not be negative")
		} else if offset > 0 {
			_, err = f.Seek(offset, io.SeekStart)
		}
	}
	if ackErr := s.answer(frameResult, nil, err); err != nil || ackErr != nil {
		return ackErr
	}
	var r io.Reader = struct{ io.Reader }{f}
	if limit > 0 {
		r = io.LimitReader(r, limit)
	}
	return s.stream(func(w io.Writer) error {
		_, err := io.CopyBuffer(w, r, make([]byte, chunkSize))
		return err
	})
}

// openRegular opens a regular file. Anything else is an error. It opens with O_NONBLOCK, because otherwise opening a FIFO would
// wait for a writer.
func (s *server) openRegular(name string) (*os.File, error) {
	f, err := s.fs.open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil, caisson.Errorf(caisson.Conflict, "%s is not a regular file", name)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = caisson.Errorf(caisson.Conflict, "%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// stream sends the data that produce writes, and an end frame. It returns errors of the streams; an error of produce is sent in
// the end frame.
func (s *server) stream(produce func(io.Writer) error) error {
	w := &errorTrackingWriter{w: s}
	err := produce(w)
	if w.err != nil {
		return w.err
	}
	return s.answer(frameEnd, nil, err)
}

// errorTrackingWriter is a writer that passes data on to w and keeps the error of a failed write in err.
type errorTrackingWriter struct {
	w   io.Writer // the writer to which data is passed on
	err error     // error of the last write that failed
}

// Write implements [io.Writer].
func (t *errorTrackingWriter) Write(b []byte) (int, error) {
	n, err := t.w.Write(b)
	if err != nil {
		t.err = err
	}
	return n, err
}

// list executes opList: it sends the entries of the directory at the path name.
func (s *server) list(name string) error {
	b := batch{s: s}
	if err := s.fs.list(name, b.add); b.failed != nil {
		return b.failed
	} else if err != nil {
		if b.started {
			return s.answer(frameEnd, nil, err)
		}
		return s.answer(frameResult, nil, err)
	}
	if err := b.begin(); err != nil {
		return err
	}
	if err := b.flush(); err != nil {
		return err
	}
	return s.answer(frameEnd, nil, nil)
}

// A batch collects items, entries of a listing or changes of a watch, and sends them in frames.
type batch struct {
	s       *server // the server that sends the frames
	buf     []byte  // collected items, as JSON
	n       int     // number of collected items
	started bool    // the result frame that precedes the first items has been sent
	failed  error   // error of the stream to the client; nil if there was none
}

// begin sends the result frame that precedes the first items, if it has not been sent yet.
func (b *batch) begin() error {
	if b.started || b.failed != nil {
		return b.failed
	}
	b.started = true
	b.failed = b.s.answer(frameResult, nil, nil)
	return b.failed
}

// add adds an entry of a listing to the batch.
func (b *batch) add(e *entry) error {
	if err := b.begin(); err != nil {
		return err
	}
	return b.item(e)
}

// item adds v as JSON to the items. If their frame would become too large, it sends them first.
func (b *batch) item(v any) error {
	item, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if b.n > 0 && (b.n == maxBatch || len(b.buf)+len(item)+2 > itemsSize) {
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.buf = append(append(b.buf, ','), item...)
	b.n++
	return nil
}

// flush sends the collected items, if there are any.
func (b *batch) flush() error {
	if b.n > 0 && b.failed == nil {
		b.buf[0] = '['
		b.failed = b.s.send(frameItems, append(b.buf, ']'))
	}
	b.buf, b.n = b.buf[:0], 0
	return b.failed
}

// readTree executes opReadTree: it sends the file or directory at the path name as a tar archive.
func (s *server) readTree(name string) error {
	name = path.Clean(name)
	as := ""
	if name == "/" {
		as = rootName
	}
	root, err := s.fs.subtree(path.Dir(name))
	if err == nil {
		defer root.Close()
		_, err = root.Lstat(base(name))
	}
	if ackErr := s.answer(frameResult, nil, err); err != nil || ackErr != nil {
		return ackErr
	}
	return s.stream(func(w io.Writer) error { return tree.Pack(root, base(name), as, w) })
}

// base returns the last element of the path name, and "." for "/".
func base(name string) string {
	if name == "/" {
		return "."
	}
	return path.Base(name)
}

// write executes opWrite: it replaces the file at the path name by the content that the client sends. mode 0 means the mode of
// the old file, or 0644 if there is none.
func (s *server) write(name string, mode uint32) error {
	d, err := s.fs.createPending(name, mode)
	if ackErr := s.answer(frameResult, nil, err); err != nil {
		return ackErr
	} else if ackErr != nil {
		d.discard()
		return ackErr
	}
	c := &contentReader{r: s.in}
	_, err = io.CopyBuffer(struct{ io.Writer }{d.File}, c, make([]byte, chunkSize))
	var e *entry
	if err != nil || c.broken() {
		d.discard()
	} else {
		e, err = d.commit()
	}
	return s.finish(c, e, err)
}

// writeTree executes opWriteTree: it receives a tar archive and unpacks it below the directory at the path name.
func (s *server) writeTree(name string) error {
	root, err := s.fs.subtree(name)
	if ackErr := s.answer(frameResult, nil, err); err != nil || ackErr != nil {
		return ackErr
	}
	defer root.Close()
	c := &contentReader{r: s.in}
	err = tree.Unpack(c, root, tree.Options{KeepLinks: true, FollowLinks: true})
	return s.finish(c, nil, err)
}

// finish sends the outcome of an upload in an end frame, and discards the content that was not read.
func (s *server) finish(c *contentReader, e *entry, err error) error {
	if c.broken() {
		return c.err
	}
	if err := s.answer(frameEnd, e, err); err != nil {
		return err
	}
	io.Copy(io.Discard, c)
	if c.broken() {
		return c.err
	}
	return nil
}

// contentReader reads the content that the client uploads: the payload of data frames, until the end frame.
type contentReader struct {
	r    io.Reader // stream of frames from the client
	rest []byte    // content of the last data frame that was not read yet
	err  error     // io.EOF after the content, errAborted, or an error of the stream
}

// broken reports whether the stream from the client cannot be used any more.
func (c *contentReader) broken() bool { return c.err != nil && c.err != io.EOF && c.err != errAborted }

// Read implements [io.Reader].
func (c *contentReader) Read(b []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		f, err := readFrame(c.r)
		switch {
		case err != nil:
			c.err = unexpectedEOF(err)
		case f.kind == frameData:
			c.rest = f.payload
		case f.kind == frameEnd:
			c.err = io.EOF
		case f.kind == frameAbort:
			c.err = errAborted
		default:
			c.err = errProtocol
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
