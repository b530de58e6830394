package sentry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	sentrycontext "gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fdnotifier"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket/control"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/sentry/socket/unix/transport"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/syserr"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// changeEvents are the events after which a method of a stream that has returned errWait is called again.
const changeEvents = waiter.ReadableEvents | waiter.WritableEvents | waiter.EventHUp | waiter.EventRdHUp | waiter.EventErr

// A tcpStream is a stream over the sandbox's network stack.
type tcpStream struct {
	endpoint tcpip.Endpoint // the end of the connection that is not the server's
	queue    *waiter.Queue  // notifies waiters of changes of endpoint
}

// dialTCP connects to a port on the first address on which a server listens: 127.0.0.1, ::1, and those of the sandbox's wire.
func dialTCP(ctx context.Context, k *kernel.Kernel, port string) (stream, error) {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, fmt.Errorf("%q is not a port", port)
	}
	s, ok := k.RootNetworkNamespace().Stack().(*netstack.Stack)
	if !ok {
		return nil, errors.New("the sandbox has no network stack")
	}
	failed := errRefused
	for _, address := range serverAddresses(s.Stack) {
		conn, err := connectTCP(ctx, s.Stack, tcpip.FullAddress{Addr: address, Port: uint16(number)})
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.Is(err, errRefused):
			failed = err
		}
	}
	return nil, failed
}

// serverAddresses returns the addresses at which servers in the sandbox can listen: the loopback addresses, and those of the
// wire.
func serverAddresses(s *stack.Stack) []tcpip.Address {
	all := []tcpip.Address{tcpip.AddrFrom4([4]byte{127, 0, 0, 1}), header.IPv6Loopback}
	for _, nic := range s.NICInfo() {
		if nic.Flags.Loopback {
			continue
		}
		for _, a := range nic.ProtocolAddresses {
			if address := a.AddressWithPrefix.Address; !header.IsV6LinkLocalUnicastAddress(address) {
				all = append(all, address)
			}
		}
	}
	return all
}

// connectTCP connects to an address of the sandbox. Returns errRefused if no server listens there.
func connectTCP(ctx context.Context, s *stack.Stack, to tcpip.FullAddress) (*tcpStream, error) {
	protocol := ipv4.ProtocolNumber
	if to.Addr.BitLen() == header.IPv6AddressSizeBits {
		protocol = ipv6.ProtocolNumber
	}
	queue := &waiter.Queue{}
	endpoint, err := s.NewEndpoint(tcp.ProtocolNumber, protocol, queue)
	if err != nil {
		return nil, errRefused // the address family is disabled in the sandbox
	}
	conn := &tcpStream{endpoint, queue}
	endpoint.SocketOptions().SetDelayOption(false)
	changed, unregister := conn.notify()
	defer unregister()
	err = endpoint.Connect(to)
	if _, started := err.(*tcpip.ErrConnectStarted); started {
		select {
		case <-changed:
			err = endpoint.LastError()
		case <-ctx.Done():
			conn.reset()
			return nil, ctx.Err()
		}
	}
	switch err.(type) {
	case nil:
		return conn, nil
	case *tcpip.ErrConnectionRefused, *tcpip.ErrHostUnreachable, *tcpip.ErrNetworkUnreachable: // no server, or no such address
		conn.close()
		return nil, errRefused
	}
	conn.close()
	return nil, errors.New(err.String())
}

func (s *tcpStream) writeTo(w io.Writer) error {
	kept := &errorWriter{w: w}
	_, err := s.endpoint.Read(kept, tcpip.ReadOptions{})
	switch err.(type) {
	case nil:
		return nil
	case *tcpip.ErrWouldBlock:
		return errWait
	case *tcpip.ErrClosedForReceive:
		return io.EOF
	case *tcpip.ErrBadBuffer: // nothing was written
		return kept.err
	}
	return errors.New(err.String())
}

// An errorWriter writes to w and keeps the error of the last write, because gVisor's Read does not return the writer's error.
type errorWriter struct {
	w   io.Writer
	err error // result of the last write to w
}

// Write writes p to e.w and keeps the error in e.err.
func (e *errorWriter) Write(p []byte) (n int, err error) {
	n, e.err = e.w.Write(p)
	return n, e.err
}

func (s *tcpStream) write(p []byte) (int, error) {
	n, err := s.endpoint.Write(bytes.NewReader(p), tcpip.WriteOptions{})
	switch err.(type) {
	case nil:
		return int(n), nil
	case *tcpip.ErrWouldBlock:
		return int(n), errWait
	}
	return int(n), errors.New(err.String())
}

func (s *tcpStream) writable() bool {
	return s.endpoint.Readiness(waiter.WritableEvents|waiter.EventErr|waiter.EventHUp) != 0
}
func (s *tcpStream) closeWrite() { s.endpoint.Shutdown(tcpip.ShutdownWrite) }
func (s *tcpStream) close()      { s.endpoint.Close() }
func (s *tcpStream) reset()      { s.endpoint.Abort() }

// notify returns a channel that receives a value when s can be read or written or was closed, and a function that unregisters it.
func (s *tcpStream) notify() (<-chan struct{}, func()) {
	entry, changed := waiter.NewChannelEntry(changeEvents)
	s.queue.EventRegister(&entry)
	return changed, func() { s.queue.EventUnregister(&entry) }
}

// A unixStream is a stream over a unix socket.
type unixStream struct {
	ctx      sentrycontext.Context // context of the kernel, for the methods of endpoint
	endpoint transport.Endpoint    // the end of the connection that is not the server's

	// The following fields are used only by the goroutine that calls writeTo.
	buf     *copyBuffer // contains pending; nil while pending is empty
	pending []byte      // data that was received and has not been written yet
}

// backlogWait is the time after which a connection to a server whose backlog is full is tried again.
const backlogWait = 10 * time.Millisecond

// dialUnix connects to a path in the root file system of the sandbox.
func dialUnix(ctx context.Context, k *kernel.Kernel, path string) (stream, error) {
	server, err := boundEndpoint(k, path)
	if err != nil {
		return nil, errors.Join(errRefused, err)
	}
	supervisor := k.SupervisorContext()
	defer server.Release(supervisor)
	endpoint := transport.NewConnectioned(supervisor, linux.SOCK_STREAM, k)
	if first := k.GlobalInit(); first != nil && first.Leader() != nil {
		endpoint.SetPeerCreds(control.MakeCreds(first.Leader())) // the server sees process 1, which runs as root, as its peer
	}
	for {
		switch err := endpoint.Connect(supervisor, server); err {
		case nil:
			return &unixStream{ctx: supervisor, endpoint: endpoint}, nil
		case syserr.ErrTryAgain:
			select {
			case <-time.After(backlogWait):
				continue
			case <-ctx.Done():
				endpoint.Close(supervisor)
				return nil, ctx.Err()
			}
		default:
			endpoint.Close(supervisor)
			return nil, errors.Join(errRefused, err.ToError())
		}
	}
}

// boundEndpoint returns the listening unix socket at a path in the root file system of the sandbox's first process.
func boundEndpoint(k *kernel.Kernel, path string) (transport.BoundEndpoint, error) {
	ctx := k.SupervisorContext()
	first := k.GlobalInit()
	if first == nil || first.Leader() == nil {
		return nil, linuxerr.ESRCH
	}
	mounts := first.Leader().MountNamespace()
	if mounts == nil || !mounts.TryIncRef() {
		return nil, linuxerr.ESRCH
	}
	defer mounts.DecRef(ctx)
	root := mounts.Root(ctx)
	defer root.DecRef(ctx)
	return k.VFS().BoundEndpointAt(ctx, auth.NewRootCredentials(k.RootUserNamespace()), &vfs.PathOperation{
		Root: root, Start: root, Path: fspath.Parse(path), FollowFinalSymlink: true,
	}, &vfs.BoundEndpointOptions{Addr: path})
}

func (s *unixStream) writeTo(w io.Writer) error {
	if len(s.pending) == 0 {
		s.buf = copyBuffers.Get().(*copyBuffer)
		out, notify, err := s.endpoint.RecvMsg(s.ctx, [][]byte{s.buf[:]}, transport.RecvArgs{})
		if notify != nil {
			notify()
		}
		out.Control.Release(s.ctx) // closes descriptors that the server has sent
		s.pending = s.buf[:out.RecvLen]
		switch {
		case err == syserr.ErrWouldBlock:
			s.freeBuffer()
			return errWait
		case err == syserr.ErrClosedForReceive, err == nil && out.RecvLen == 0:
			s.freeBuffer()
			return io.EOF
		case err != nil:
			s.freeBuffer()
			return err.ToError()
		}
	}
	n, err := w.Write(s.pending)
	s.pending = s.pending[n:]
	if len(s.pending) == 0 {
		s.freeBuffer()
	}
	if n > 0 {
		return nil
	}
	return err
}

// freeBuffer puts s.buf back into copyBuffers.
func (s *unixStream) freeBuffer() {
	if s.buf != nil {
		copyBuffers.Put(s.buf)
		s.buf, s.pending = nil, nil
	}
}

func (s *unixStream) write(p []byte) (int, error) {
	n, notify, err := s.endpoint.SendMsg(s.ctx, [][]byte{p}, transport.ControlMessages{}, nil)
	if notify != nil {
		notify()
	}
	switch err {
	case nil:
		return int(n), nil
	case syserr.ErrWouldBlock:
		return int(n), errWait
	}
	return int(n), err.ToError()
}

func (s *unixStream) writable() bool {
	return s.endpoint.Readiness(waiter.WritableEvents|waiter.EventErr|waiter.EventHUp) != 0
}
func (s *unixStream) closeWrite() { s.endpoint.Shutdown(tcpip.ShutdownWrite) }
func (s *unixStream) close()      { s.endpoint.Close(s.ctx) }
func (s *unixStream) reset()      { s.endpoint.Close(s.ctx) }

// notify returns a channel that receives a value when s can be read or written or was closed, and a function that unregisters it.
func (s *unixStream) notify() (<-chan struct{}, func()) {
	entry, changed := waiter.NewChannelEntry(changeEvents)
	s.endpoint.EventRegister(&entry)
	return changed, func() { s.endpoint.EventUnregister(&entry) }
}

// A hostWriter writes to a socket of the host without blocking. Write is short, with EAGAIN, if the socket is full.
type hostWriter int

func (w hostWriter) Write(p []byte) (n int, err error) {
	for n < len(p) {
		m, err := ignoreEINTR(unix.Write, int(w), p[n:])
		if err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

// ignoreEINTR calls f, a read or write, until its error is not EINTR. The returned number of bytes is not negative.
func ignoreEINTR(f func(fd int, p []byte) (int, error), fd int, p []byte) (int, error) {
	for {
		n, err := f(fd, p)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// hungUp reports whether the other end of a socket has been closed completely.
func hungUp(fd int32) bool {
	return fdnotifier.NonBlockingPoll(fd, waiter.EventHUp)&waiter.EventHUp != 0
}

// shutdownWrite closes a socket for writing, so that the other end reads an end of file.
func shutdownWrite(raw syscall.RawConn) (err error) {
	rawErr := raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) })
	return errors.Join(rawErr, err)
}
