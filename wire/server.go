package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	caisson "github.com/caisson-dev/caisson"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// maxWires bounds how many wires one process holds; each is a descriptor, about four goroutines and a stack's memory.
const maxWires = 4000

// A server is the wire process's end of the control connection.
type server struct {
	conn  *net.UnixConn
	wires map[caisson.ID]*served // touched by serve only
	bufs  *sync.Pool             // read buffers
}

// A served wire is one sandbox's TAP and stack.
type served struct {
	tap   *tap
	stack *stack.Stack
}

func newServer(conn *net.UnixConn) *server {
	return &server{
		conn:  conn,
		wires: map[caisson.ID]*served{},
		bufs:  &sync.Pool{New: func() any { return new([maxFrame]byte) }},
	}
}

// serve answers requests until the engine closes the connection, which is no error, and then stops all wires.
func (s *server) serve(c Confinement) error {
	defer func() {
		for _, w := range s.wires {
			stopStack(w.stack)
		}
	}()
	if _, err := s.conn.Write(reply{op: opHello, confinement: c}.encode()); err != nil {
		return err
	}
	for {
		req, file, err := s.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r := s.handle(req, file)
		r.op, r.seq = req.op, req.seq
		if _, err := s.conn.Write(r.encode()); err != nil {
			return err
		}
	}
}

// receive returns the next request and its descriptor, nil if it has none. The engine is trusted, but a message that makes
// no sense is the end: the two are out of step.
func (s *server) receive() (request, *os.File, error) {
	var buf [requestSize + 1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, flags, _, err := s.conn.ReadMsgUnix(buf[:], oob)
	if err != nil {
		return request{}, nil, err
	}
	var fds []int
	if oobn > 0 {
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(msgs) != 1 {
			return request{}, nil, fmt.Errorf("%w: control data", errMessage)
		}
		if fds, err = unix.ParseUnixRights(&msgs[0]); err != nil {
			return request{}, nil, fmt.Errorf("%w: control data", errMessage)
		}
	}
	req, err := decodeRequest(buf[:n])
	if err == nil && (flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || (req.op == opAttach) != (len(fds) == 1)) {
		err = fmt.Errorf("%w: descriptors", errMessage)
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return request{}, nil, err
	}
	if req.op != opAttach {
		return req, nil, nil
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return request{}, nil, err
	}
	return req, os.NewFile(uintptr(fds[0]), "tap"), nil
}

func (s *server) handle(req request, file *os.File) reply {
	w := s.wires[req.id]
	switch req.op {
	case opAttach:
		return s.attach(req.id, file)
	case opDetach:
		if w == nil {
			return reply{status: statusUnknown}
		}
		delete(s.wires, req.id)
		stopStack(w.stack)
		return reply{}
	default:
		if w == nil {
			return reply{status: statusUnknown}
		}
		return reply{stats: w.tap.stats()}
	}
}

func (s *server) attach(id caisson.ID, file *os.File) reply {
	if s.wires[id] != nil {
		file.Close()
		return reply{status: statusExists}
	}
	if len(s.wires) >= maxWires {
		file.Close()
		return reply{status: statusFull}
	}
	t, err := newTap(file, s.bufs)
	if err != nil {
		file.Close()
		return reply{status: statusFailed, text: err.Error()}
	}
	st, err := newStack(t)
	if err != nil {
		file.Close()
		return reply{status: statusFailed, text: err.Error()}
	}
	s.wires[id] = &served{tap: t, stack: st}
	return reply{}
}
