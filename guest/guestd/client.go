package guestd

import (
	"context"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// A StartFunc starts guestd in a sandbox. args are the arguments after the program's name; stdin requests a standard input. ctx
// applies only to the start: the process continues after ctx has ended.
type StartFunc func(ctx context.Context, args []string, stdin bool) (caisson.Process, error)

// idleTime is how long an idle process of guestd is kept for the next call, which then need not start a process. After it the
// process is killed, to free its memory in the sandbox.
const idleTime = 5 * time.Second

// A Client accesses the files of one sandbox through processes of guestd in the sandbox. Its methods are those of [caisson.Files]
// without the argument that names a sandbox. Paths must be absolute; "." and ".." in them are resolved lexically.
//
// Answers of the sandbox cannot make a call block after its ctx has ended, or use more memory than a listing of 100,000 names.
// The error is Unavailable if an answer is malformed. All methods are safe for concurrent use.
type Client struct {
	start StartFunc // starts processes of guestd

	mu     sync.Mutex  // guards the fields below
	idle   *conn       // process that is kept for the next call; nil if none
	expire *time.Timer // kills the process in idle when idleTime has passed
	closed bool        // Close was called
}

// NewClient returns a client that starts processes of guestd with start.
func NewClient(start StartFunc) *Client { return &Client{start: start} }

// Close kills the idle process of guestd, if there is one. Calls in progress continue, and their processes are not kept.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.closeIdle()
	return nil
}

// closeIdle kills the process of guestd that is kept for the next call, if there is one. The caller must hold mu.
func (c *Client) closeIdle() {
	if c.idle != nil {
		c.expire.Stop()
		c.idle.close(io.ErrClosedPipe)
		c.idle = nil
	}
}

// takeIdle takes the process of guestd that is kept for the next call out of c; it returns nil if there is none that can be used.
func (c *Client) takeIdle() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle != nil && c.idle.dead() {
		c.closeIdle()
	}
	if c.idle == nil {
		return nil
	}
	k := c.idle
	c.expire.Stop()
	c.idle = nil
	return k
}

// putIdle keeps the process of k for the next call of the client, or kills it if c is closed or has another idle process.
func (c *Client) putIdle(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.idle != nil || k.dead() {
		k.close(io.ErrClosedPipe)
		return
	}
	c.idle = k
	c.expire = time.AfterFunc(idleTime, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.idle == k {
			c.closeIdle()
		}
	})
}

// A call is one operation in progress in a process of guestd.
type call struct {
	*conn
	client      *Client     // the client that made the call
	stopClosing func() bool // keeps the end of ctx from closing conn; returns false if ctx has ended already
	result      *result     // the first answer to the request; content may follow
}

// done ends the call. Its process is kept for the next call, unless the end of ctx has killed it.
func (c *call) done() {
	if c.stopClosing() {
		c.client.putIdle(c.conn)
	}
}

// call sends a request to a process of guestd, and waits for the first result. If the request is refused, it ends the call and
// returns the error.
func (c *Client) call(ctx context.Context, req request) (*call, error) {
	if k := c.takeIdle(); k != nil {
		call, err := c.exchange(ctx, k, req)
		if err == nil || ctx.Err() != nil || caisson.KindOf(err) != caisson.Unavailable || !repeatable(req.Op) {
			return call, err
		}
		// The idle process may have exited, for example when the sandbox was paused, so the request is repeated with a new one.
	}
	proc, err := c.start(ctx, []string{"files"}, true)
	if err != nil {
		return nil, err
	}
	k, err := newConn(proc)
	if err != nil {
		return nil, err
	}
	return c.exchange(ctx, k, req)
}

// repeatable reports whether a request with the operation o may be sent again if no result has arrived. Operations that change
// files before they send a result must not be repeated.
func repeatable(o op) bool { return o != opMkdir && o != opMove && o != opRemove }

// exchange sends a request to the process of k and waits for the first result. If it returns an error, the call has ended.
func (c *Client) exchange(ctx context.Context, k *conn, req request) (*call, error) {
	t := &call{conn: k, client: c, stopClosing: k.closeAfter(ctx)}
	err := k.request(req)
	if err == nil {
		t.result, err = k.recvResult(frameResult)
	}
	if err != nil {
		t.stopClosing()
		return nil, err
	}
	if err := t.result.err(); err != nil {
		t.done()
		return nil, err
	}
	return t, nil
}

// callWithoutContent executes an operation that transfers no content of a file or directory, and returns its result.
func (c *Client) callWithoutContent(ctx context.Context, req request) (*result, error) {
	t, err := c.call(ctx, req)
	if err != nil {
		return nil, err
	}
	t.done()
	return t.result, nil
}

// cleanPath validates a path from a user, the value of the field with this name, and cleans it lexically.
func cleanPath(field, p string) (string, error) {
	switch {
	case !strings.HasPrefix(p, "/"):
		return "", caisson.Invalidf(field, "%.80q is not an absolute path", p)
	case len(p) >= maxPath:
		return "", caisson.Invalidf(field, "%.80q… is longer than %d bytes", p, maxPath-1)
	case strings.ContainsRune(p, 0):
		return "", caisson.Invalidf(field, "%.80q has a NUL in it", p)
	}
	return path.Clean(p), nil
}

// StatFile returns information about a file. It does not follow a symlink.
func (c *Client) StatFile(ctx context.Context, name string) (*caisson.FileInfo, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return nil, err
	}
	r, err := c.callWithoutContent(ctx, request{Op: opStat, Path: []byte(name)})
	if err != nil {
		return nil, err
	}
	return r.info(name)
}

// info returns the information in r about the file at the path name. Returns Unavailable if it is missing or invalid.
func (r *result) info(name string) (*caisson.FileInfo, error) {
	err := errProtocol
	if r.Entry != nil && len(r.Entry.Name) == 0 {
		var info *caisson.FileInfo
		if info, err = r.Entry.info(name, path.Base(name)); err == nil {
			return info, nil
		}
	}
	return nil, caisson.Wrap(err, caisson.Unavailable, "the sandbox's description of %q makes no sense", name)
}

// MakeDir creates a directory. With parents it also creates missing parents, and the directory may exist already.
func (c *Client) MakeDir(ctx context.Context, name string, parents bool) error {
	name, err := cleanPath("path", name)
	if err != nil {
		return err
	}
	_, err = c.callWithoutContent(ctx, request{Op: opMkdir, Path: []byte(name), All: parents})
	return err
}

// MoveFile renames a file or directory. Returns Conflict if to exists or is on another file system.
func (c *Client) MoveFile(ctx context.Context, from, to string) error {
	from, err := cleanPath("from", from)
	if err != nil {
		return err
	}
	to, err = cleanPath("to", to)
	if err != nil {
		return err
	}
	_, err = c.callWithoutContent(ctx, request{Op: opMove, Path: []byte(from), To: []byte(to)})
	return err
}

// RemoveFile removes a file or an empty directory; with recursive also a directory that is not empty.
func (c *Client) RemoveFile(ctx context.Context, name string, recursive bool) error {
	name, err := cleanPath("path", name)
	if err != nil {
		return err
	}
	_, err = c.callWithoutContent(ctx, request{Op: opRemove, Path: []byte(name), All: recursive})
	return err
}
