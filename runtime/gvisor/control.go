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
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// maxControlReply bounds what a sandbox may answer to one call: the answer comes from the process that runs hostile code.
const maxControlReply = 8 << 20

// call makes one call of gVisor's control protocol (pkg/urpc) to the sandbox's main process: a JSON object each way over a
// stream socket, files along with its first byte. gVisor's own client opens sockets without CLOEXEC and blocks a thread
// for each call under way; this one uses Go's poller and obeys ctx.
//
// result may be nil. Errors that the sandbox reports are of type [remoteError].
func call(ctx context.Context, socket, method string, arg, result any, files ...*os.File) error {
	c, err := dial(ctx, socket)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
			return caisson.Wrap(err, caisson.Conflict, "the sandbox is not running")
		}
		return fmt.Errorf("connect to sandbox: %w", err)
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	err = exchange(conn, method, arg, result, files)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// dial connects to a socket whose path may be longer than an address can be: it is then named through its directory.
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

// maxSocketPath is the size of sockaddr_un's sun_path, with its terminator.
const maxSocketPath = 108

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

// remoteError is what the sandbox's main process answered.
type remoteError struct{ method, msg string }

func (e remoteError) Error() string { return fmt.Sprintf("%s: %.500s", e.method, e.msg) }
