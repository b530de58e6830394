package sandboxes

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// The log of a sandbox's command consists of two files. When the newer file has grown to logSize bytes, it replaces the older
// one, so that a command cannot fill the disk, and its latest output is always available.
const (
	logFile = "log"     // newer file of the log of a command
	oldLog  = "log.old" // older file of the log of a command
	logSize = 2 << 20   // size in bytes at which a new log file is begun
)

// logs writes and reads the logs of the commands of sandboxes.
type logs struct {
	dirs       dirs              // paths and files in the data directory
	states     states            // stored records of sandboxes
	background *background.Group // background goroutines of the core; when it stops, readers stop following logs
	log        *slog.Logger
}

// collect copies the output of a sandbox's command from its FIFO to the log until ctx ends. The sandbox keeps the FIFO open, so
// that writes do not fail while no daemon reads; the command blocks when the pipe is full.
func (l *logs) collect(ctx context.Context, id caisson.ID) {
	dir := l.dirs.sandboxDir(id)
	in, err := os.OpenFile(filepath.Join(dir, outputFIFO), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		l.log.WarnContext(ctx, "the log of a sandbox cannot be written", "sandbox", id, "err", err)
		return
	}
	defer in.Close()
	defer context.AfterFunc(ctx, func() { in.SetReadDeadline(time.Unix(1, 0)) })()
	out := &logWriter{dir: dir}
	defer out.close()
	if _, err := io.Copy(&rateLimitedWriter{ctx, out, rate.NewLimiter(logRate, logBurst)}, in); err != nil && ctx.Err() == nil {
		l.log.WarnContext(ctx, "the log of a sandbox is incomplete", "sandbox", id, "err", err)
	}
	if ctx.Err() != nil {
		drain(out, in)
	}
}

// drain copies the data that is in the pipe in to out, without waiting for more.
func drain(out io.Writer, in *os.File) {
	conn, err := in.SyscallConn()
	if err != nil || in.SetReadDeadline(time.Time{}) != nil {
		return
	}
	b := make([]byte, 64<<10)
	_ = conn.Read(func(fd uintptr) bool {
		for range (1 << 20) / len(b) { // 1 MiB is the maximum capacity of a pipe
			n, err := unix.Read(int(fd), b)
			if err != nil || n <= 0 {
				break
			}
			if _, err := out.Write(b[:n]); err != nil {
				break
			}
		}
		return true
	})
}

// logRate limits how fast the output of a command is copied to its log; a command that writes faster is blocked. The
// daemon writes the log, and the resources that this takes are not counted against the limits of any sandbox.
const (
	logRate  = 8 << 20 // bytes of output that are logged per second
	logBurst = 1 << 20 // bytes of output that may be logged at once
)

// rateLimitedWriter limits the rate of the writes to w.
type rateLimitedWriter struct {
	ctx   context.Context // the limit applies until ctx ends
	w     io.Writer       // writer to which the data is passed on
	limit *rate.Limiter   // limit of the rate in bytes per second
}

// Write implements [io.Writer].
func (s *rateLimitedWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		part := b[:min(len(b), logBurst)]
		// After ctx has ended, the limit no longer applies: data that has been read from the FIFO must be written.
		_ = s.limit.WaitN(s.ctx, len(part))
		var m int
		m, err = s.w.Write(part)
		n, b = n+m, b[m:]
	}
	return n, err
}

// logWriter appends to the log of a command and rotates it.
type logWriter struct {
	dir  string   // the sandbox's directory
	f    *os.File // the open logFile; nil before the first write
	size int64    // size of f in bytes
}

// Write implements [io.Writer].
func (w *logWriter) Write(b []byte) (int, error) {
	if w.f == nil || w.size >= logSize {
		if err := w.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := w.f.Write(b)
	w.size += int64(n)
	return n, err
}

// rotate opens the newer file of the log. If that file was open, rotate first makes it the older file.
func (w *logWriter) rotate() error {
	path := filepath.Join(w.dir, logFile)
	if w.f != nil {
		w.close()
		if err := os.Rename(path, filepath.Join(w.dir, oldLog)); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	w.f, w.size = f, info.Size()
	return nil
}

// close closes the newer file of the log. The next Write opens it again.
func (w *logWriter) close() {
	if w.f != nil {
		w.f.Close()
		w.f = nil
	}
}

// open returns a reader of the log of a sandbox's command. If follow is true, the reader waits for further output while the
// sandbox is live.
func (l *logs) open(ctx context.Context, sb *caisson.Sandbox, follow bool) (io.ReadCloser, error) {
	dir := l.dirs.sandboxDir(sb.ID)
	r := &logReader{ctx: ctx, logs: l, id: sb.ID, dir: dir, follow: follow && sb.State.Live()}
	for _, name := range []string{oldLog, logFile} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			r.Close()
			return nil, err
		}
		r.files = append(r.files, f)
	}
	return r, nil
}

// logReader reads the log of a command, and follows it through its rotations.
type logReader struct {
	ctx    context.Context // ends the wait for further output
	logs   *logs           // logs of commands
	id     caisson.ID      // id of the sandbox
	dir    string          // the sandbox's directory
	files  []*os.File      // files to read; the first one is being read
	follow bool            // whether Read waits for further output
}

// followInterval is the interval at which a reader that follows a log checks for more output. It is short enough for a human
// reader.
const followInterval = 50 * time.Millisecond

// Read implements [io.Reader].
func (r *logReader) Read(b []byte) (int, error) {
	for {
		if len(r.files) > 0 {
			n, err := r.files[0].Read(b)
			if n > 0 || (err != nil && !errors.Is(err, io.EOF)) {
				return n, err
			}
			if len(r.files) > 1 {
				r.files[0].Close()
				r.files = r.files[1:]
				continue
			}
		}
		if !r.follow {
			return 0, io.EOF
		}
		if err := r.waitForMore(); err != nil {
			return 0, err
		}
	}
}

// waitForMore waits for followInterval, and opens the new log file if the log has been rotated.
func (r *logReader) waitForMore() error {
	select {
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	case <-r.logs.background.Context().Done():
		return io.EOF
	case <-time.After(followInterval):
	}
	f, err := os.Open(filepath.Join(r.dir, logFile))
	if err == nil {
		now, err := f.Stat()
		if len(r.files) == 0 {
			r.files = append(r.files, f)
			return err
		}
		had, err2 := r.files[len(r.files)-1].Stat()
		if err == nil && err2 == nil && !os.SameFile(now, had) {
			r.files = append(r.files, f)
			return nil
		}
		f.Close()
	}
	sb, err := r.logs.states.get(r.ctx, r.id)
	if err != nil || !sb.State.Live() {
		r.follow = false // Read reads the files to their end once more, for output that was written before the sandbox ended.
	}
	return nil
}

// Close implements [io.Closer].
func (r *logReader) Close() error {
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
