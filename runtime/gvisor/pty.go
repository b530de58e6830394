package gvisor

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// openPTY returns both ends of a new pseudo-terminal of the host's. Size 0 is left as it is.
func openPTY(rows, cols uint16) (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlock terminal: %w", err)
	}
	// Opened through the master: no path in /dev/pts, which may be another instance's.
	n, err := unix.IoctlRetInt(fd, unix.TIOCGPTPEER)
	if err == nil {
		slave = os.NewFile(uintptr(n), "pts")
	} else {
		num, err2 := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err2 != nil {
			return nil, nil, fmt.Errorf("name terminal: %w", err2)
		}
		if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", num), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
			return nil, nil, err
		}
	}
	if rows > 0 && cols > 0 {
		err = setSize(master, rows, cols)
	}
	// Fd() made the master blocking; the poller is needed so that Close ends a Read.
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	master2 := os.NewFile(dup(fd), "ptmx")
	master.Close()
	return master2, slave, err
}

// dup duplicates fd with close-on-exec set.
func dup(fd int) uintptr {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return ^uintptr(0) // NewFile makes nil of it, whose methods fail
	}
	return uintptr(n)
}

func setSize(tty *os.File, rows, cols uint16) error {
	c, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	var ierr error
	err = c.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	return errors.Join(err, ierr)
}

// ttyOutput reads a terminal: when the last process has closed the other end, Linux reports EIO instead of end of file.
type ttyOutput struct{ f *os.File }

// Read implements [io.Reader].
func (t ttyOutput) Read(b []byte) (int, error) {
	n, err := t.f.Read(b)
	if errors.Is(err, unix.EIO) {
		err = io.EOF
	}
	return n, err
}

// ttyInput writes to a terminal; closing it types end-of-file (^D).
type ttyInput struct{ f *os.File }

// Write implements [io.Writer].
func (t ttyInput) Write(b []byte) (int, error) { return t.f.Write(b) }

// Close implements [io.Closer].
func (t ttyInput) Close() error {
	_, err := t.f.Write([]byte{4})
	return err
}
