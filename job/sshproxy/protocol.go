package sshproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/worker"
)

// Limits of a connection, which both ends enforce.
const (
	MaxStreams = 40       // processes and connections at once; a browser opens 32 through ssh -D
	MaxCommand = 64 << 10 // bytes of a command
	maxMessage = 96 << 10 // bytes of a message between the job and the daemon
	maxFiles   = 3        // descriptors of a message
	// MaxSigned is the largest number of bytes that the host key signs: the hash of a key exchange.
	MaxSigned = 64
)

// ErrMessage is the cause of errors about messages that the other end must not send.
var ErrMessage = errors.New("invalid message")

// A Request is a message from the job to the daemon. Exactly one of the fields below ID is set.
type Request struct {
	// ID is a new number, greater than all before, for Start, Dial, Login and Sign. In other requests it is the ID of the Start
	// or Dial that opened the process or connection.
	ID     uint32 `json:"id"`
	Start  *Start `json:"start,omitempty"`  // start a process
	Dial   *Dial  `json:"dial,omitempty"`   // connect to a port or socket
	Resize *Size  `json:"resize,omitempty"` // new size of the terminal of the process
	Signal int    `json:"signal,omitempty"` // number of a signal for the process and its descendants
	End    bool   `json:"end,omitempty"`    // end the connection, or kill the process and its descendants if it still runs
	Login  *Login `json:"login,omitempty"`  // ask whether a user may log in with a key, or log the user in
	Sign   []byte `json:"sign,omitempty"`   // data to sign with the host key
}

// Kinds of processes.
const (
	KindShell = "shell" // the user's shell, as a login shell
	KindExec  = "exec"  // Start.Command, run by the user's shell
	KindSFTP  = "sftp"  // the server of the subsystem sftp
)

// Start requests a process. The reply has its process id, and as descriptors its standard input, output and error.
type Start struct {
	Kind    string            `json:"kind"`              // KindShell, KindExec or KindSFTP
	Command string            `json:"command,omitempty"` // the command to run; only with KindExec
	Env     map[string]string `json:"env,omitempty"`     // environment variables that the client sets for the process
	TTY     bool              `json:"tty,omitempty"`     // whether the process gets a terminal
	Size    Size              `json:"size,omitzero"`     // size of the terminal
}

// Dial requests a connection. The reply has one descriptor, a socket, or two: the standard input and output of a helper in the
// sandbox, "guestd connect", that has made the connection.
type Dial struct {
	Network string `json:"network"` // "tcp", or "unix" for the path of a socket in the sandbox
	Address string `json:"address"` // host:port for "tcp", or the path of the socket for "unix"
}

// A Size is the size of a terminal in rows and columns of characters.
type Size struct {
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}

// Login requests that a user be logged in with a public key. If Signed is false, it only checks whether the key may be used; if
// it is true, the client has proved that it has the private key. Only for connections of the TCP listener.
type Login struct {
	User   string `json:"user"`             // SSH user name
	Key    []byte `json:"key"`              // in SSH's wire format
	Signed bool   `json:"signed,omitempty"` // whether the client has proved that it has the private key
}

// A Reply is a message from the daemon to the job. The replies to Start and Dial have descriptors.
type Reply struct {
	ID        uint32              `json:"id"`                  // ID of the request
	PID       int                 `json:"pid,omitempty"`       // process id in the sandbox of the process that was started
	Exit      *caisson.ExitStatus `json:"exit,omitempty"`      // exit status of a process, in a second reply to its Start
	Error     *Failure            `json:"error,omitempty"`     // why the request has failed; nil if it has not
	Signature []byte              `json:"signature,omitempty"` // the reply to Sign
}

// A Failure is the error of a request.
type Failure struct {
	Kind    caisson.Kind `json:"kind"`
	Message string       `json:"message"`
}

// FailureOf returns a Failure with the kind and the message of err.
func FailureOf(err error) *Failure {
	return &Failure{Kind: caisson.KindOf(err), Message: caisson.MessageOf(err)}
}

// A Conn is one end of the channel between the job and the daemon: a socket that keeps the boundaries of messages. One goroutine
// may receive while others send.
type Conn struct{ c *net.UnixConn }

// NewConn returns the end of a channel that has the socket f, and closes f.
func NewConn(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("the channel is not a unix socket")
	}
	return &Conn{u}, nil
}

// Pair returns the two ends of a channel; far is for the job.
func Pair() (near *Conn, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	far = os.NewFile(uintptr(fds[1]), "channel")
	if near, err = NewConn(os.NewFile(uintptr(fds[0]), "channel")); err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// Close closes the channel.
func (c *Conn) Close() error { return c.c.Close() }

// Send sends a message with descriptors, which the caller keeps.
func (c *Conn) Send(m any, files ...*os.File) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return caisson.Errorf(caisson.Invalid, "the request has more than %s", caisson.Size(maxMessage))
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			raw, err := f.SyscallConn() // unlike Fd, it leaves the file in non-blocking mode
			if err != nil {
				return err
			}
			if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
				return err
			}
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err = c.c.WriteMsgUnix(b, oob, nil)
	return err
}

// Receive receives a message into m, and returns the descriptors that came with it. It returns an ErrMessage error if there are
// more than want descriptors, or if the message does not decode strictly into m.
func (c *Conn) Receive(m any, want int) (files []*os.File, err error) {
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.c.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			CloseAll(files)
			files = nil
		}
	}()
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	for _, x := range msgs {
		fds, err := unix.ParseUnixRights(&x)
		if err != nil {
			continue // no descriptors, so there is nothing to close
		}
		for _, fd := range fds {
			if err := unix.SetNonblock(fd, true); err != nil {
				unix.Close(fd)
				continue
			}
			files = append(files, os.NewFile(uintptr(fd), "stream"))
		}
	}
	switch {
	case n == 0:
		return files, net.ErrClosed
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(files) > want:
		return files, fmt.Errorf("%w: size or descriptors", ErrMessage)
	}
	if err := worker.Unmarshal(buf[:n], m); err != nil {
		return files, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return files, nil
}

// CloseAll closes files.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
