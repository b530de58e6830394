package client

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// errHostPath returns the error for a request with a path on the host to a daemon that is not reached over the unix socket. The
// daemon would return an equal error.
func errHostPath() error {
	return caisson.Errorf(caisson.Denied, "host paths are accepted only over the unix socket")
}

// openMounts opens the source directories of mounts, with the rights of this process. The caller must close the returned handles.
func (c *requester) openMounts(mounts []caisson.Mount) ([]caisson.Handle, error) {
	if len(mounts) > 0 && c.socket == "" {
		return nil, errHostPath()
	}
	var opened []caisson.Handle
	for _, m := range mounts {
		f, err := os.OpenFile(m.Source, os.O_RDONLY|syscall.O_DIRECTORY, 0)
		if err != nil {
			closeHandles(opened)
			return nil, caisson.Wrap(err, caisson.Invalid, "mounts: cannot open the directory %s", m.Source)
		}
		opened = append(opened, f)
	}
	return opened, nil
}

// passHandles sends open files to the daemon as descriptors, and adds their ids to h, the headers of the request that uses them.
// It always closes handles.
func (c *requester) passHandles(ctx context.Context, handles []caisson.Handle, h http.Header) error {
	defer closeHandles(handles)
	if len(handles) == 0 {
		return nil
	}
	if c.socket == "" {
		return errHostPath()
	}
	if len(handles) > protocol.MaxHandles {
		return caisson.Errorf(caisson.Invalid, "at most %d directories can be passed", protocol.MaxHandles)
	}
	ids, err := c.sendHandles(ctx, handles)
	if err != nil {
		return err
	}
	h.Set(protocol.HandlesHeader, strings.Join(ids, ","))
	return nil
}

// sendHandles sends open files as descriptors over an upgraded connection, and returns the ids that the daemon has given them.
func (c *requester) sendHandles(ctx context.Context, handles []caisson.Handle) ([]string, error) {
	up, err := c.upgrade(ctx, []string{"handles"}, protocol.HandlesUpgrade, nil)
	if err != nil {
		return nil, err
	}
	defer up.Close()
	defer context.AfterFunc(ctx, func() { up.Close() })()
	conn, ok := up.Conn.(*net.UnixConn)
	if !ok {
		return nil, caisson.Errorf(caisson.Internal, "%s is not a unix socket", c.socket)
	}
	// The descriptors are sent after the response to the upgrade has arrived. From then on the server reads with recvmsg; before
	// that its HTTP parser reads with read(2), which would discard them.
	fds := make([]int, len(handles))
	for i, h := range handles {
		fds[i] = int(h.Fd())
	}
	if _, _, err := conn.WriteMsgUnix([]byte{byte(len(fds))}, syscall.UnixRights(fds...), nil); err != nil {
		return nil, c.unreachable(ctx, err)
	}
	var answer protocol.Handles
	if err := json.NewDecoder(io.LimitReader(up, maxProblem)).Decode(&answer); err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if answer.Problem != nil {
		return nil, answer.Problem.Err()
	}
	if len(answer.Handles) != len(handles) {
		return nil, caisson.Errorf(caisson.Internal, "the daemon received %d of %d descriptors", len(answer.Handles), len(handles))
	}
	return answer.Handles, nil
}

// closeHandles closes all handles.
func closeHandles(handles []caisson.Handle) {
	for _, h := range handles {
		h.Close()
	}
}
