package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// replyTimeout bounds the wait for each answer of the wire process. The longest requests stop a stack and wait for the ledger.
const replyTimeout = 15 * time.Second

// A link is the engine's end of the control connection to one wire process. After a failed call the engine and the process may
// disagree about which reply is next, or the process may be hostile: the process is killed, and the link cannot be used any more.
type link struct {
	conn     *net.UnixConn // the control connection
	pid      int           // id of the wire process
	kill     func()        // kills the process
	journals journals      // journals to which the process writes
	lock     chan struct{} // a mutex for one request and its reply; it is locked while the channel is empty
	seq      uint32        // number of the latest request; guarded by lock
	buf      []byte        // buffer for replies; guarded by lock, except for the first message, which hello receives
}

func newLink(conn *net.UnixConn, pid int, kill func()) *link {
	l := &link{conn: conn, pid: pid, kill: kill, lock: make(chan struct{}, 1)}
	l.lock <- struct{}{}
	return l
}

// hello waits for the wire process's first message, which reports its confinement.
func (l *link) hello() (Confinement, error) {
	if err := l.conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return Confinement{}, err
	}
	r, err := l.receive(opHello, 0)
	if err != nil {
		return Confinement{}, err
	}
	var c Confinement
	err = unmarshal(r.body, &c)
	return c, err
}

// call sends one request, with files attached, and returns the reply; the caller checks its status. The call is cancelled if
// ctx ends before the request is sent, not later. body may be nil; otherwise it is sent as JSON. If the exchange fails, call
// kills the process and returns the error.
func (l *link) call(ctx context.Context, req request, body any, files ...*os.File) (reply, error) {
	if body != nil {
		var err error
		if req.body, err = json.Marshal(body); err != nil {
			return reply{}, err
		}
	}
	if _, err := req.encode(); err != nil {
		return reply{}, err // the request is too large; nothing was sent, so the process need not be killed
	}
	select {
	case <-l.lock:
		defer func() { l.lock <- struct{}{} }()
	case <-ctx.Done():
		return reply{}, ctx.Err()
	}
	l.seq++
	req.seq = l.seq
	r, err := l.exchange(req, files)
	if err != nil {
		l.kill()
	}
	return r, err
}

// exchange sends a request and receives its reply. The caller must hold l.lock, so that no other request is sent meanwhile.
func (l *link) exchange(req request, files []*os.File) (reply, error) {
	if err := l.conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return reply{}, err
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	b, err := req.encode()
	if err != nil {
		return reply{}, err
	}
	if _, _, err := l.conn.WriteMsgUnix(b, oob, nil); err != nil {
		return reply{}, err
	}
	return l.receive(req.op, req.seq)
}

// receive reads a reply. It provides no buffer for control messages, so the kernel drops any descriptors.
func (l *link) receive(o op, seq uint32) (reply, error) {
	if l.buf == nil {
		l.buf = make([]byte, maxReply+1)
	}
	n, err := l.conn.Read(l.buf)
	if err != nil {
		return reply{}, err
	}
	r, err := decodeReply(l.buf[:n])
	if err == nil && (r.op != o || r.seq != seq) {
		err = fmt.Errorf("%w: reply to another request", errMessage)
	}
	r.body = append([]byte(nil), r.body...) // the next call reuses the buffer
	return r, err
}
