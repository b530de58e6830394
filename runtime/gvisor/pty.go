package gvisor

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// openPTY returns both ends of a new pseudo-terminal of the host. If rows or cols is 0, the size is not set.
func openPTY(rows, cols uint16) (master, slave *os.File, err error) {
	// The file must stay in non-blocking mode and in Go's poller, so that Close interrupts a Read. Therefore Fd, which would
	// change that, is never called.
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	err = onDescriptor(master, func(fd int) (err error) {
		slave, err = openSlave(fd)
		return err
	})
	if err == nil && rows > 0 && cols > 0 {
		err = setSize(master, rows, cols)
	}
	if err != nil {
		if slave != nil {
			slave.Close()
		}
		master.Close()
		return nil, nil, fmt.Errorf("create a terminal: %w", err)
	}
	return master, slave, nil
}

// openSlave opens the slave of a pseudo-terminal through the descriptor of the master, not by a path in /dev/pts, because that
// directory may belong to a different devpts instance.
func openSlave(master int) (*os.File, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno != 0 {
		return nil, errno
	}
	return os.NewFile(fd, "pts"), nil
}

// onDescriptor calls do with f's descriptor without changing it to blocking mode, as Fd would.
func onDescriptor(f *os.File, do func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	err = c.Control(func(fd uintptr) { doErr = do(int(fd)) })
	return errors.Join(err, doErr)
}

// setSize sets the size of a terminal.
func setSize(tty *os.File, rows, cols uint16) error {
	return onDescriptor(tty, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// ttyOutput reads from the master of a pseudo-terminal and converts EIO to EOF: Linux returns EIO when the last process has
// closed the slave.
type ttyOutput struct{ f *os.File }

// Read implements [io.Reader].
func (t ttyOutput) Read(b []byte) (int, error) {
	n, err := t.f.Read(b)
	if errors.Is(err, unix.EIO) {
		err = io.EOF
	}
	return n, err
}

// ttyInput writes to the master of a pseudo-terminal. Its Close sends end-of-file (^D).
//
// The host's line discipline consumes the characters that send signals, but no process on the host has this terminal as its
// controlling terminal: the foreground process group is in the guest. So ttyInput sends the signals to it.
type ttyInput struct {
	f      *os.File          // master of the pseudo-terminal
	signal func(unix.Signal) // sends a signal to the foreground process group
	quoted bool              // the next byte is literal, because the last one was ^V
}

// Write implements [io.Writer].
func (t *ttyInput) Write(b []byte) (int, error) {
	signals := t.signals(b)
	n, err := t.f.Write(b)
	for _, s := range signals {
		t.signal(s)
	}
	return n, err
}

// signals returns the signals that the terminal, with its current settings, sends to its foreground process group for the
// input b.
func (t *ttyInput) signals(b []byte) (signals []unix.Signal) {
	var tio *unix.Termios
	err := onDescriptor(t.f, func(fd int) (err error) {
		tio, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	if err != nil || tio.Lflag&unix.ISIG == 0 {
		t.quoted = false
		return nil
	}
	keys := map[byte]unix.Signal{
		tio.Cc[unix.VINTR]: unix.SIGINT, tio.Cc[unix.VQUIT]: unix.SIGQUIT, tio.Cc[unix.VSUSP]: unix.SIGTSTP,
	}
	delete(keys, 0) // the value 0 means that no character sends the signal
	quote := tio.Lflag&(unix.ICANON|unix.IEXTEN) == unix.ICANON|unix.IEXTEN
	for _, c := range b {
		if t.quoted {
			t.quoted = false
		} else if s, ok := keys[c]; ok {
			signals = append(signals, s)
		} else {
			t.quoted = quote && c == tio.Cc[unix.VLNEXT]
		}
	}
	return signals
}

// Close implements [io.Closer].
func (t *ttyInput) Close() error {
	_, err := t.f.Write([]byte{4})
	return err
}
