package gvisor

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// Dial implements [caisson.Dialer]. The sandbox's sentry, which is unprivileged and has the network stack and the file
// systems, connects to the server and copies data between the server and the returned socket.
func (r *Runtime) Dial(ctx context.Context, id caisson.ID, network, address string) (*os.File, error) {
	s, err := r.getRunning(id)
	if err != nil {
		return nil, err
	}
	if err := caisson.CheckDialAddress(network, address); err != nil {
		return nil, err
	}
	ours, theirs, err := streamPair()
	if err != nil {
		return nil, err
	}
	err = startDial(ctx, s, network, address, theirs)
	theirs.Close()
	if err == nil {
		err = readDialStatus(ctx, s, ours, address)
	}
	if err != nil {
		ours.Close() // makes the sentry stop connecting
		return nil, err
	}
	return ours, nil
}

// startDial tells the sandbox's sentry to connect to address and to copy data between the server and the socket theirs.
// Meanwhile it holds the lock of s.freezer, so that a checkpoint that comes later finds the connection and ends it. It returns
// before the sentry has connected, so that it holds the lock only briefly.
func startDial(ctx context.Context, s *sandbox, network, address string, theirs *os.File) error {
	frozen, unlock, err := s.lockFrozen(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if frozen {
		return caisson.Errorf(caisson.Conflict, "sandbox %s is frozen", s.id)
	}
	return callSink(ctx, s, protocol.ConnectionsSink, map[string]any{"network": network, "address": address}, theirs)
}

// readDialStatus waits until the sentry has connected to address, and returns an error if it could not connect. conn is the
// daemon's end of the socket pair.
func readDialStatus(ctx context.Context, s *sandbox, conn *os.File, address string) error {
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	var status [1]byte
	_, err := conn.Read(status[:])
	if !stop() && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return caisson.Wrap(err, caisson.Conflict, "sandbox %s is no longer running, or was captured", s.id)
	}
	switch status[0] {
	case protocol.DialConnected:
		return nil
	case protocol.DialTooMany:
		return caisson.Errorf(caisson.Exhausted, "sandbox %s has %d connections; close some of them", s.id, protocol.MaxConnections)
	case protocol.DialRefused:
		return caisson.Errorf(caisson.Unavailable, "no server listens at %.200s in the sandbox", address)
	}
	return caisson.Errorf(caisson.Unavailable, "cannot connect to %.200s in the sandbox", address)
}

// endConnections ends all connections to servers in the sandbox, because a checkpoint cannot contain the sentry's ends of them.
func endConnections(ctx context.Context, s *sandbox) error {
	if err := callSink(ctx, s, protocol.ConnectionsSink, map[string]any{"end": true}); err != nil {
		return fmt.Errorf("end the connections into the sandbox: %w", err)
	}
	return nil
}

// streamPair returns the two ends of a pair of stream sockets in non-blocking mode.
func streamPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a pair of sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "connection"), os.NewFile(uintptr(fds[1]), "connection"), nil
}
