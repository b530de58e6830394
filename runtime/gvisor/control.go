package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// maxControlReply is the maximum size of the reply to one call, in bytes. Replies are limited because they come from the process
// that runs untrusted code.
const maxControlReply = 1 << 20

// maxIdle limits the number of idle connections of a sandbox. Each call in progress needs a separate connection, because
// gVisor serves one call at a time on each; connecting costs about as much as a small call.
const maxIdle = 2

// controlClient is a client of a sandbox's sentry. It implements gVisor's control protocol (pkg/urpc): one JSON object in
// each direction over a stream socket, with descriptors sent along with the first byte. gVisor's client opens sockets without
// CLOEXEC and blocks a thread for each call; controlClient uses Go's poller, and its calls can be cancelled with a context.
type controlClient struct {
	socket string // path of the control socket

	mu     sync.Mutex
	idle   []*net.UnixConn // connections for later calls; guarded by mu
	closed bool            // close was called, and keepIdle closes connections instead of storing them; guarded by mu
}

// callTimeout limits most calls; saveTimeout limits those that write files and memory or wait until memory has been read. A
// compromised or stopped sentry may never reply, so all calls have a timeout except the wait for the exit of a process.
const (
	callTimeout = 20 * time.Second
	saveTimeout = 10 * time.Minute
)

// timeoutOf returns the timeout of a call. It returns 0, which means no limit, for the call that waits for a process to exit.
func timeoutOf(method string) time.Duration {
	switch method {
	case protocol.MethodWaitPID:
		return 0
	case protocol.MethodCheckpoint, protocol.MethodTarRootfs, protocol.MethodWaitRestore:
		return saveTimeout
	}
	return callTimeout
}

// errNoReply is the error of a call to which the sentry has not replied within the timeout.
var errNoReply = caisson.Errorf(caisson.Unavailable, "the sandbox does not answer; remove it if that does not change")

// call makes one call and decodes the reply into result, which may be nil. Errors that the sandbox reports are of type
// [remoteError]. Returns Conflict if the sandbox is not running, and Unavailable if it does not reply in time.
func (c *controlClient) call(ctx context.Context, method string, arg, result any, files ...*os.File) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if limit := timeoutOf(method); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errNoReply)
		defer cancel()
	}
	conn, err := c.connect(ctx)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
		err = exchange(conn, method, arg, result, files)
		var remote remoteError
		if answered := err == nil || errors.As(err, &remote); stop() && answered {
			c.keepIdle(conn)
		} else {
			conn.Close()
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case isDisconnect(err):
		return caisson.Wrap(err, caisson.Conflict, "the sandbox is not running")
	}
	return err
}

// isDisconnect reports whether err is one that occurs when the sandbox's sentry exits.
func isDisconnect(err error) bool {
	disconnects := []error{os.ErrNotExist, unix.ECONNREFUSED, unix.ECONNRESET, unix.EPIPE, io.EOF, io.ErrUnexpectedEOF}
	return slices.ContainsFunc(disconnects, func(e error) bool { return errors.Is(err, e) })
}

// connect returns an idle connection or a new one. gVisor's listen backlog is short, and connecting fails immediately with
// EAGAIN if it is full; connect then retries until ctx is done.
func (c *controlClient) connect(ctx context.Context) (*net.UnixConn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		conn, err := dial(ctx, c.socket)
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("connect to sandbox: %w", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// keepIdle stores an idle connection for later calls, or closes it if there are maxIdle already.
func (c *controlClient) keepIdle(conn *net.UnixConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= maxIdle {
		conn.Close()
		return
	}
	c.idle = append(c.idle, conn)
}

// close closes the idle connections. Connections in use are closed when their calls return.
func (c *controlClient) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.idle {
		conn.Close()
	}
	c.idle = nil
}

// dial connects to the unix socket at path. A path that is too long for a socket address is replaced by an equivalent path in
// /proc/self/fd.
func dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	if len(path) < maxSocketPath {
		return d.DialContext(ctx, "unix", path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}

// maxSocketPath is the size of sockaddr_un's sun_path in bytes, including the terminating NUL.
const maxSocketPath = 108

// exchange writes one request, with descriptors of files, and decodes the reply into result, which may be nil.
func exchange(conn *net.UnixConn, method string, arg, result any, files []*os.File) error {
	request, err := json.Marshal(struct {
		Method string `json:"method"`
		Arg    any    `json:"arg"`
	}{method, arg})
	if err != nil {
		return err
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	n, _, err := conn.WriteMsgUnix(request, oob, nil)
	if err == nil && n < len(request) {
		_, err = conn.Write(request[n:])
	}
	if err != nil {
		return fmt.Errorf("%s: write: %w", method, err)
	}
	var reply struct {
		Success bool            `json:"success"`
		Err     string          `json:"err"`
		Result  json.RawMessage `json:"result"`
	}
	if err := json.NewDecoder(io.LimitReader(conn, maxControlReply)).Decode(&reply); err != nil {
		return fmt.Errorf("%s: read: %w", method, err)
	}
	if !reply.Success {
		return remoteError{method, reply.Err}
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(reply.Result, result); err != nil {
		return fmt.Errorf("%s: decode: %w", method, err)
	}
	return nil
}

// remoteError is an error that the sandbox's sentry has returned.
type remoteError struct{ method, msg string } // the called method and the text of the error

func (e remoteError) Error() string { return fmt.Sprintf("%s: %.500s", e.method, e.msg) }
