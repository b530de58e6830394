package sshproxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// A remote is the job's end of the channel to the daemon. It is safe for concurrent use.
type remote struct {
	conn    *Conn
	sending sync.Mutex // held while a new id is taken and sent: the daemon wants them in order

	mu      sync.Mutex
	next    uint32                 // the id of the next request; guarded by mu
	waiting map[uint32]chan answer // by id; guarded by mu
	err     error                  // why the channel has ended; guarded by mu
}

// answer is a reply with its descriptors.
type answer struct {
	Reply
	files []*os.File
}

var errChannel = errors.New("the daemon has gone")

func newRemote(c *Conn) *remote {
	r := &remote{conn: c, waiting: map[uint32]chan answer{}}
	go r.receive()
	return r
}

// receive passes replies on until the channel ends.
func (r *remote) receive() {
	for {
		var a answer
		var err error
		if a.files, err = r.conn.Receive(&a.Reply, maxFiles); err != nil {
			r.mu.Lock()
			r.err = errChannel
			for _, w := range r.waiting {
				close(w)
			}
			r.waiting = nil
			r.mu.Unlock()
			return
		}
		r.mu.Lock()
		select {
		case r.waiting[a.ID] <- a: // there is room for both replies that a request has
		default: // nobody waits
			CloseAll(a.files)
		}
		r.mu.Unlock()
	}
}

// open sends a request with a new id, and returns the first reply and the channel for the second.
func (r *remote) open(q Request) (answer, <-chan answer, error) {
	w := make(chan answer, 2)
	if err := r.send(&q, w); err != nil {
		return answer{}, nil, err
	}
	a, ok := <-w
	switch {
	case !ok:
		return answer{}, nil, errChannel
	case a.Error != nil:
		r.forget(q.ID)
		CloseAll(a.files)
		return answer{}, nil, caisson.Errorf(a.Error.Kind, "%s", a.Error.Message)
	}
	return a, w, nil
}

// send gives a request an id and sends it; w gets the replies.
func (r *remote) send(q *Request, w chan answer) error {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.mu.Lock()
	if r.err != nil {
		r.mu.Unlock()
		return r.err
	}
	r.next++
	q.ID = r.next
	r.waiting[q.ID] = w
	r.mu.Unlock()
	err := r.conn.Send(q)
	if err != nil {
		r.forget(q.ID)
	}
	return err
}

// ask sends a request that has one reply.
func (r *remote) ask(q Request) (answer, error) {
	a, _, err := r.open(q)
	if err == nil {
		r.forget(a.ID)
	}
	return a, err
}

// forget ends the wait for replies.
func (r *remote) forget(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.waiting[id]; w != nil {
		delete(r.waiting, id)
		close(w)
	}
}

// A process is a process in the sandbox, as the job has it.
type process struct {
	remote                *remote
	id                    uint32
	stdin, stdout, stderr *os.File
	exits                 <-chan answer
}

// start starts a process.
func (r *remote) start(s *Start) (*process, error) {
	a, exits, err := r.open(Request{Start: s})
	if err != nil {
		return nil, err
	}
	p := &process{remote: r, id: a.ID, exits: exits}
	if len(a.files) != 3 {
		CloseAll(a.files)
		p.send(Request{End: true})
		r.forget(a.ID)
		return nil, caisson.Errorf(caisson.Exhausted, "this connection has too many streams")
	}
	p.stdin, p.stdout, p.stderr = a.files[0], a.files[1], a.files[2]
	return p, nil
}

// send sends a request about the process. An error means that the channel has ended, which receive notices.
func (p *process) send(q Request) {
	q.ID = p.id
	_ = p.remote.conn.Send(q)
}

// wait waits until the process has exited, or is closed.
func (p *process) wait() caisson.ExitStatus {
	a, ok := <-p.exits
	if !ok || a.Exit == nil {
		return caisson.ExitStatus{Code: -1, Unknown: true}
	}
	return *a.Exit
}

// close ends the process and frees its descriptors.
func (p *process) close() {
	p.send(Request{End: true})
	p.remote.forget(p.id)
	CloseAll([]*os.File{p.stdin, p.stdout, p.stderr})
}

// dial connects to an address in the sandbox.
func (r *remote) dial(network, address string) (io.ReadWriteCloser, error) {
	a, err := r.ask(Request{Dial: &Dial{Network: network, Address: address}})
	if err != nil {
		return nil, err
	}
	end := func() { _ = r.conn.Send(Request{ID: a.ID, End: true}) } // fails when the channel has ended, and the stream with it
	if len(a.files) == 1 {                                          // a socket
		c, err := net.FileConn(a.files[0])
		a.files[0].Close()
		if err != nil {
			end()
			return nil, err
		}
		return &socket{c, end}, nil
	}
	if len(a.files) != 2 {
		CloseAll(a.files)
		end()
		return nil, caisson.Errorf(caisson.Exhausted, "this connection has too many streams")
	}
	p := &pipes{in: a.files[0], out: a.files[1], end: end}
	if err := p.confirm(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// A socket is a connection that the daemon has made.
type socket struct {
	net.Conn
	end func()
}

// CloseWrite passes the end of data on.
func (s *socket) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.Conn.Close()
}

// Close ends the connection.
func (s *socket) Close() error {
	defer s.end()
	return s.Conn.Close()
}

// pipes is a connection that a helper in the sandbox has made: the helper's standard input and output.
type pipes struct {
	in, out *os.File
	end     func()
}

// maxRefusal bounds what a sandbox says about a failed connection.
const maxRefusal = 200

// confirm waits until the connection is made; see the role "connect" of package guestd.
func (p *pipes) confirm() error {
	status := []byte{1}
	if _, err := io.ReadFull(p.out, status); err != nil {
		return caisson.Errorf(caisson.Unavailable, "the sandbox could not connect")
	}
	if status[0] == 0 {
		return nil
	}
	reason, err := io.ReadAll(io.LimitReader(p.out, maxRefusal))
	if err != nil {
		return caisson.Errorf(caisson.Unavailable, "the sandbox could not connect")
	}
	return caisson.Errorf(caisson.Unavailable, "%s", safetext.Escape(string(reason)))
}

func (p *pipes) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p *pipes) Write(b []byte) (int, error) { return p.in.Write(b) }

// CloseWrite passes the end of data on.
func (p *pipes) CloseWrite() error { return p.in.Close() }

// Close ends the connection.
func (p *pipes) Close() error {
	CloseAll([]*os.File{p.in, p.out})
	p.end()
	return nil
}

// login asks whether user may log in with key.
func (r *remote) login(user string, key ssh.PublicKey, signed bool) error {
	_, err := r.ask(Request{Login: &Login{User: user, Key: key.Marshal(), Signed: signed}})
	return err
}

// hostSigner signs with the host key, which the daemon has.
type hostSigner struct {
	remote *remote
	key    ssh.PublicKey
}

// PublicKey implements [ssh.Signer].
func (s hostSigner) PublicKey() ssh.PublicKey { return s.key }

// Sign implements [ssh.Signer].
func (s hostSigner) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	a, err := s.remote.ask(Request{Sign: data})
	if err != nil {
		return nil, err
	}
	return &ssh.Signature{Format: s.key.Type(), Blob: a.Signature}, nil
}
