package fake

import (
	"context"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// An output is one process's reference to a destination that it writes to.
type output interface {
	// write writes b, and blocks until the destination has accepted it or ctx is cancelled.
	write(ctx context.Context, b []byte) (int, error)
	// share returns a reference to the same destination for another process.
	share() (output, error)
	// release ends the use of this reference. It must be called once.
	release()
}

// A pipeOutput is the standard output or standard error of an exec session without a terminal.
type pipeOutput struct{ *pipe }

// share implements [output]: it adds a writer to the pipe.
func (o pipeOutput) share() (output, error) {
	o.addWriter()
	return o, nil
}

// A ttyOutput is the terminal of an exec session.
type ttyOutput struct{ *tty }

// share implements [output]: it adds a writer to the pipe with the terminal's output.
func (o ttyOutput) share() (output, error) {
	o.out.addWriter()
	return o, nil
}

func (o ttyOutput) release() { o.out.release() } // removes one writer of the pipe with the terminal's output

// A noOutput discards the output.
type noOutput struct{}

func (noOutput) write(_ context.Context, b []byte) (int, error) { return len(b), nil }
func (o noOutput) share() (output, error)                       { return o, nil } // references are not counted
func (noOutput) release()                                       {}                // there is nothing to close

// A fileOutput is a file that the caller has passed. Each process has a separate open file, so that terminating one process
// interrupts only its own write to a full FIFO.
type fileOutput struct{ f *os.File } // f is the open file of one process

// newOutput returns an output to f that stays valid when f is closed. nil discards the output.
func newOutput(f *os.File) (output, error) {
	if f == nil {
		return noOutput{}, nil
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeNamedPipe != 0 {
		own, err := os.OpenFile(fdPath(f), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		return fileOutput{own}, nil
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return fileOutput{os.NewFile(uintptr(fd), f.Name())}, nil
}

func (o fileOutput) write(ctx context.Context, b []byte) (int, error) {
	stop := context.AfterFunc(ctx, func() { _ = o.f.SetWriteDeadline(time.Now()) })
	defer stop()
	return o.f.Write(b)
}

func (o fileOutput) share() (output, error) { return newOutput(o.f) }
func (o fileOutput) release()               { o.f.Close() }

// A logOutput appends the standard output and standard error of p, and of children that share it, to p's log file in the sandbox.
type logOutput struct{ p *Proc } // p is the process that was started with the log file

func (o logOutput) write(_ context.Context, b []byte) (int, error) {
	return o.p.sandbox.tree.writeFile(o.p.log, b, true, 0o600, o.p.user)
}

func (o logOutput) share() (output, error) { return o, nil } // references are not counted
func (logOutput) release()                 {}                // the log file is closed after each write
