package sentry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"

	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// endTimeout is how long the sentry waits, when it ends all connections into the sandbox, before it reports that some do not end.
const endTimeout = 10 * time.Second

// errRefused means that no server listens at the address.
var errRefused = errors.New("connection refused")

// connections contains the connections from the host to servers in this sandbox. They are not part of a checkpoint: the daemon
// ends them before it makes one.
type connections struct {
	kernel processKernel // gVisor's kernel of this process

	mu   sync.Mutex
	open map[*connection]bool // connections that are being made or in use; guarded by mu
}

// processConnections contains the connections of this process.
var processConnections connections

// install registers the sink with which the daemon starts and ends connections. It must run before gVisor starts a kernel.
func (c *connections) install() error {
	// Go's poller calls eventfd2 when it is used for the first time, which the sandbox's system call filter denies later.
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		return err
	}
	c.open = map[*connection]bool{}
	c.kernel.install()
	seccheck.RegisterSink(seccheck.SinkDesc{Name: protocol.ConnectionsSink, New: c.newSink})
	return nil
}

// newSink is the constructor of protocol.ConnectionsSink. It ends all connections, or starts a goroutine that connects the socket
// endpoint to a server, depending on config.
func (c *connections) newSink(config map[string]any, endpoint *fd.FD) (seccheck.Sink, error) {
	if end, _ := config["end"].(bool); end {
		return newNoopSink(protocol.ConnectionsSink), c.endAll()
	}
	if endpoint == nil {
		return nil, fmt.Errorf("%s requires a descriptor", protocol.ConnectionsSink)
	}
	host := os.NewFile(uintptr(endpoint.Release()), protocol.ConnectionsSink)
	network, _ := config["network"].(string)
	address, _ := config["address"].(string)
	conn, err := c.add(host)
	if err != nil {
		host.Write([]byte{protocol.DialTooMany})
		host.Close()
		return newNoopSink(protocol.ConnectionsSink), nil
	}
	go func() {
		defer c.remove(conn)
		conn.serve(func(ctx context.Context) (stream, error) { return c.dial(ctx, network, address) })
	}()
	return newNoopSink(protocol.ConnectionsSink), nil
}

// dial connects to a server in the sandbox.
func (c *connections) dial(ctx context.Context, network, address string) (stream, error) {
	k, err := c.kernel.wait(ctx)
	if err != nil {
		return nil, err
	}
	switch network {
	case "tcp":
		return dialTCP(ctx, k, address)
	case "unix":
		return dialUnix(ctx, k, address)
	}
	return nil, fmt.Errorf("network %q is unknown", network)
}

// add returns a new connection of host, one end of a pair of sockets with the daemon, or an error if there are too many.
func (c *connections) add(host *os.File) (*connection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= protocol.MaxConnections {
		return nil, errors.New("too many connections")
	}
	conn := newConnection(host)
	c.open[conn] = true
	return conn, nil
}

// remove removes a connection that no longer copies data, and closes conn.finished.
func (c *connections) remove(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
	close(conn.finished)
}

// endAll resets all connections, and waits up to endTimeout until the goroutines that serve them have ended. Then nothing that a
// checkpoint contains refers to the connections.
func (c *connections) endAll() error {
	c.mu.Lock()
	var all []*connection
	for conn := range c.open {
		all = append(all, conn)
	}
	c.mu.Unlock()
	for _, conn := range all {
		conn.reset()
	}
	timeout := time.NewTimer(endTimeout)
	defer timeout.Stop()
	for _, conn := range all {
		select {
		case <-conn.finished:
		case <-timeout.C:
			return errors.New("connections into the sandbox do not end")
		}
	}
	return nil
}

// A stream is the sandbox's end of a connection. No method blocks.
type stream interface {
	// writeTo writes received data to w. After a partial write, the next call continues with the rest. Returns the error of w if
	// nothing was written, errWait if no data has been received, and io.EOF at the end of the data.
	writeTo(w io.Writer) error
	// write sends p to the server. n is the number of bytes that were sent. Returns errWait if there was no room for all of p.
	write(p []byte) (n int, err error)
	writable() bool // whether write can send data without returning errWait
	closeWrite()    // closes the connection for sending: the server reads the end of file
	// notify registers a channel that receives a value when a method that has returned errWait should be called again.
	notify() (changed <-chan struct{}, unregister func())
	close() // closes the connection; the server can still read data that was sent
	reset() // closes the connection; data that the server has not received is lost, and with TCP, the server gets an error
}

// errWait means that a call would block.
var errWait = errors.New("not ready")

// A connection copies between a socket of the host and a server in the sandbox.
type connection struct {
	host     *os.File      // the sandbox's end of the pair of sockets with the daemon
	ended    chan struct{} // closed when the connection is to end
	once     sync.Once     // makes only the first call of end take effect
	finished chan struct{} // closed when serve has returned

	wasReset atomic.Bool // reset was called
}

// newConnection returns a connection of host, one end of a pair of sockets with the daemon. The caller must call serve.
func newConnection(host *os.File) *connection {
	return &connection{host: host, ended: make(chan struct{}), finished: make(chan struct{})}
}

// end closes the socket of the host and makes serve return.
func (c *connection) end() {
	c.once.Do(func() {
		close(c.ended)
		c.host.Close()
	})
}

// reset makes serve return and reset the connection to the server.
func (c *connection) reset() {
	c.wasReset.Store(true)
	c.end()
}

// serve connects to the server with dial, writes the status to the host's socket, and copies until the connection has ended.
func (c *connection) serve(dial func(context.Context) (stream, error)) {
	defer c.end()
	guest, err := c.connect(dial)
	status := byte(protocol.DialConnected)
	switch {
	case errors.Is(err, errRefused):
		status = protocol.DialRefused
	case err != nil:
		status = protocol.DialFailed
	}
	if guest != nil {
		defer c.release(guest)
	}
	if _, writeErr := c.host.Write([]byte{status}); err != nil || writeErr != nil {
		return
	}
	c.copy(guest)
}

// release resets the connection to the server if c was reset, and otherwise closes it.
func (c *connection) release(guest stream) {
	if c.wasReset.Load() {
		guest.reset()
	} else {
		guest.close()
	}
}

// connect calls dial with a context that is cancelled when the daemon closes its end of the pair of sockets, or when c is ended.
func (c *connection) connect(dial func(context.Context) (stream, error)) (stream, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if c.waitHangup() == nil {
			cancel()
		}
		select {
		case <-c.ended:
			cancel()
		default:
		}
	}()
	guest, err := dial(ctx)
	c.host.SetReadDeadline(time.Unix(1, 0)) // makes waitHangup return
	<-watched
	c.host.SetReadDeadline(time.Time{})
	return guest, err
}

// waitHangup waits until the other end of host has been closed completely, not only for writing. It returns an error if this
// process closes host, or at the read deadline of host.
func (c *connection) waitHangup() error {
	raw, err := c.host.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return hungUp(int32(fd)) })
}

// copy copies data in both directions until both directions have ended, one of them has failed, or c is ended.
func (c *connection) copy(guest stream) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.end()
	results := make(chan error, 2)
	wg.Go(func() {
		err := c.toGuest(guest)
		results <- err
		// The daemon's end may be closed only for writing, or completely. If it is closed completely, the server's answer is not
		// needed.
		if err == nil && c.waitHangup() == nil {
			c.end()
		}
	})
	wg.Go(func() { results <- c.fromGuest(guest) })
	if <-results == nil {
		<-results
	}
}

// fromGuest copies from the server until its end of file, and passes the end of file on to host.
func (c *connection) fromGuest(guest stream) error {
	changed, unregister := guest.notify()
	defer unregister()
	raw, err := c.host.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var err error
		if rawErr := raw.Write(func(fd uintptr) bool {
			err = guest.writeTo(hostWriter(fd))
			return !errors.Is(err, unix.EAGAIN)
		}); rawErr != nil {
			return rawErr
		}
		switch {
		case errors.Is(err, io.EOF):
			return shutdownWrite(raw)
		case errors.Is(err, errWait):
			if err := c.wait(changed); err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
}

// toGuest copies to the server until the end of file of host, and passes the end of file on to the server. It uses a buffer only
// while there is data to copy and the server accepts it.
func (c *connection) toGuest(guest stream) error {
	changed, unregister := guest.notify()
	defer unregister()
	raw, err := c.host.SyscallConn()
	if err != nil {
		return err
	}
	for {
		for !guest.writable() {
			if err := c.wait(changed); err != nil {
				return err
			}
		}
		var buf *copyBuffer
		var n int
		var err error
		rawErr := raw.Read(func(fd uintptr) bool {
			buf = copyBuffers.Get().(*copyBuffer)
			if n, err = ignoreEINTR(unix.Read, int(fd), buf[:]); errors.Is(err, unix.EAGAIN) {
				copyBuffers.Put(buf)
				return false
			}
			return true
		})
		switch {
		case rawErr != nil:
			return rawErr
		case err == nil && n > 0:
			err = c.send(guest, buf[:n], changed)
		case err == nil:
			guest.closeWrite()
			err = io.EOF
		}
		copyBuffers.Put(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// send sends all of p to the server.
func (c *connection) send(guest stream, p []byte, changed <-chan struct{}) error {
	for len(p) > 0 {
		n, err := guest.write(p)
		p = p[n:]
		switch {
		case errors.Is(err, errWait):
			if err := c.wait(changed); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("send to the sandbox: %w", err) // wrapped, so that toGuest does not take it for the end of the data
		}
	}
	return nil
}

// wait waits for a value from changed, the channel of stream.notify. It returns an error if c is ended.
func (c *connection) wait(changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-c.ended:
		return os.ErrClosed
	}
}

// copyBuffers contains the buffers, of type *copyBuffer, that are not in use.
var copyBuffers = sync.Pool{New: func() any { return new(copyBuffer) }}

// A copyBuffer is a buffer for data of a connection.
type copyBuffer [128 << 10]byte

// A processKernel holds gVisor's kernel of this process. Its kernel is not known until set is called.
type processKernel struct {
	once   sync.Once      // makes only the first call of set take effect
	kernel *kernel.Kernel // the kernel; set before known is closed
	known  chan struct{}  // closed by set
}

// install wraps some system calls, so that the first of them sets the kernel. The first process of a sandbox makes one of these
// calls when it starts. After a restore, [stillClock] sets the kernel.
func (k *processKernel) install() {
	k.known = make(chan struct{})
	for _, sysno := range []uintptr{sysRtSigaction, sysFork, sysClone} {
		wrapSyscall(sysno, func(original kernel.SyscallFn) kernel.SyscallFn {
			return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
				k.set(t.Kernel())
				return original(t, sysno, args)
			}
		})
	}
}

// set sets the kernel, unless it is set already.
func (k *processKernel) set(loaded *kernel.Kernel) {
	k.once.Do(func() {
		k.kernel = loaded
		close(k.known)
	})
}

// wait waits until the kernel has been set, and returns it.
func (k *processKernel) wait(ctx context.Context) (*kernel.Kernel, error) {
	select {
	case <-k.known:
		return k.kernel, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
