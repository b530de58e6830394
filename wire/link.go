package wire

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds each answer of the wire process. Its longest work is stopping a stack.
const patience = 10 * time.Second

// A link is the engine's end of the control connection to one wire process. Once a call has failed, the two may be out of
// step or the process hostile: it is killed, and the link is of no further use.
type link struct {
	conn *net.UnixConn
	pid  int
	kill func()
	turn chan struct{} // holds one token; whoever has it may call
	seq  uint32        // guarded by turn
}

func newLink(conn *net.UnixConn, pid int, kill func()) *link {
	l := &link{conn: conn, pid: pid, kill: kill, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// hello waits for the wire process to say that it is confined.
func (l *link) hello() (Confinement, error) {
	if err := l.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return Confinement{}, err
	}
	r, err := l.receive(opHello, 0)
	return r.confinement, err
}

// call asks one question; file goes along unless it is nil. A ctx that ends before the call starts stops it, later ones
// do not. The reply's status is for the caller to look at.
func (l *link) call(ctx context.Context, req request, file *os.File) (reply, error) {
	select {
	case <-l.turn:
		defer func() { l.turn <- struct{}{} }()
	case <-ctx.Done():
		return reply{}, ctx.Err()
	}
	l.seq++
	req.seq = l.seq
	r, err := l.exchange(req, file)
	if err != nil {
		l.kill()
	}
	return r, err
}

func (l *link) exchange(req request, file *os.File) (reply, error) {
	if err := l.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return reply{}, err
	}
	var oob []byte
	if file != nil {
		oob = unix.UnixRights(int(file.Fd()))
	}
	if _, _, err := l.conn.WriteMsgUnix(req.encode(), oob, nil); err != nil {
		return reply{}, err
	}
	return l.receive(req.op, req.seq)
}

// receive reads a reply. It offers no room for descriptors, so the kernel drops any that come along.
func (l *link) receive(o op, seq uint32) (reply, error) {
	var buf [maxReply + 1]byte
	n, err := l.conn.Read(buf[:])
	if err != nil {
		return reply{}, err
	}
	r, err := decodeReply(buf[:n])
	if err == nil && (r.op != o || r.seq != seq) {
		err = fmt.Errorf("%w: reply to another request", errMessage)
	}
	return r, err
}
