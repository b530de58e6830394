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

// A remote is the SSH job's end of the channel to the daemon, to which the job sends requests. It is safe for concurrent use.
type remote struct {
	conn    *Conn      // the job's end of the channel
	sending sync.Mutex // held while a new id is chosen and its request is sent, because the daemon requires ascending ids

	mu      sync.Mutex
	last    uint32                 // id of the last request; guarded by mu
	waiting map[uint32]chan answer // receivers of replies, by id of the request; guarded by mu
	err     error                  // why the channel has ended; nil if it has not; guarded by mu
}

// An answer is a reply with the descriptors that came with it.
type answer struct {
	Reply
	files []*os.File // the descriptors that came with the reply
}

// errChannel is the error of requests when the channel to the daemon has ended.
var errChannel = errors.New("the daemon has gone")

// newRemote returns a remote, the SSH job's end of c, the channel to the daemon, and begins to receive replies of the daemon.
func newRemote(c *Conn) *remote {
	r := &remote{conn: c, waiting: map[uint32]chan answer{}}
	go r.receive()
	return r
}

// receive receives replies and passes each to the call that waits for it, until the channel ends.
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
		case r.waiting[a.ID] <- a: // each receiver has room for the two replies that a request can have
		default: // no call waits for the reply
			CloseAll(a.files)
		}
		r.mu.Unlock()
	}
}

// open sends a request with a new id. It returns the first reply, or its error, and the channel that gets the second reply.
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

// send gives a request a new id and sends it. The replies are sent to w.
func (r *remote) send(q *Request, w chan answer) error {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.mu.Lock()
	if r.err != nil {
		r.mu.Unlock()
		return r.err
	}
	r.last++
	q.ID = r.last
	r.waiting[q.ID] = w
	r.mu.Unlock()
	err := r.conn.Send(q)
	if err != nil {
		r.forget(q.ID)
	}
	return err
}

// call sends a request that has one reply, and returns the reply.
func (r *remote) call(q Request) (answer, error) {
	a, _, err := r.open(q)
	if err == nil {
		r.forget(a.ID)
	}
	return a, err
}

// forget ends the wait for replies to the request with the given id.
func (r *remote) forget(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.waiting[id]; w != nil {
		delete(r.waiting, id)
		close(w)
	}
}

// A process is a process in the sandbox that the daemon has started for the job.
type process struct {
	remote                *remote       // sends requests about the process
	id                    uint32        // ID of the request that has started the process
	stdin, stdout, stderr *os.File      // the standard input, output and error of the process
	exits                 <-chan answer // gets the reply with the exit status
}

// start starts a process in the sandbox.
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

// send sends a request about the process. An error is ignored: it means that the channel has ended, which receive detects.
func (p *process) send(q Request) {
	q.ID = p.id
	_ = p.remote.conn.Send(q)
}

// wait waits until the process has exited, and returns its exit status. If close is called or the channel ends first, the exit
// status is Unknown.
func (p *process) wait() caisson.ExitStatus {
	a, ok := <-p.exits
	if !ok || a.Exit == nil {
		return caisson.ExitStatus{Code: -1, Unknown: true}
	}
	return *a.Exit
}

// close kills the process if it still runs, and closes its descriptors.
func (p *process) close() {
	p.send(Request{End: true})
	p.remote.forget(p.id)
	CloseAll([]*os.File{p.stdin, p.stdout, p.stderr})
}

// dial connects to an address as a program in the sandbox would: to a server in the sandbox, or over its wire to another one.
func (r *remote) dial(network, address string) (io.ReadWriteCloser, error) {
	a, err := r.call(Request{Dial: &Dial{Network: network, Address: address}})
	if err != nil {
		return nil, err
	}
	end := func() { _ = r.conn.Send(Request{ID: a.ID, End: true}) } // fails when the channel has ended, and the stream with it
	if len(a.files) == 1 {                                          // the socket of a connection
		c, err := net.FileConn(a.files[0])
		a.files[0].Close()
		if err != nil {
			end()
			return nil, err
		}
		return &socketConn{c, end}, nil
	}
	if len(a.files) != 2 {
		CloseAll(a.files)
		end()
		return nil, caisson.Errorf(caisson.Exhausted, "this connection has too many streams")
	}
	p := &helperConn{in: a.files[0], out: a.files[1], end: end}
	if err := p.confirm(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// A socketConn is a connection to a server in the sandbox, over a socket that the daemon has connected.
type socketConn struct {
	net.Conn
	end func() // notifies the daemon that the connection has ended
}

// CloseWrite signals to the server that no more data follows.
func (s *socketConn) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.Conn.Close()
}

// Close ends the connection.
func (s *socketConn) Close() error {
	defer s.end()
	return s.Conn.Close()
}

// A helperConn is a connection to a server that a helper in the sandbox, the program "guestd connect", has made.
type helperConn struct {
	in, out *os.File // standard input and output of the helper
	end     func()   // notifies the daemon that the connection has ended
}

// maxRefusal is the maximum length, in bytes, of the reason that "guestd connect" gives when it cannot connect to a server.
const maxRefusal = 200

// confirm waits until the helper has connected to the server, and returns an error with the helper's reason if it could not.
func (p *helperConn) confirm() error {
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

func (p *helperConn) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p *helperConn) Write(b []byte) (int, error) { return p.in.Write(b) }

// CloseWrite signals to the server that no more data follows.
func (p *helperConn) CloseWrite() error { return p.in.Close() }

// Close ends the connection.
func (p *helperConn) Close() error {
	CloseAll([]*os.File{p.in, p.out})
	p.end()
	return nil
}

// login requests that user be logged in with key. If signed is false, it only asks whether user may log in with key.
func (r *remote) login(user string, key ssh.PublicKey, signed bool) error {
	_, err := r.call(Request{Login: &Login{User: user, Key: key.Marshal(), Signed: signed}})
	return err
}

// A hostSigner signs with the host key, which only the daemon has.
type hostSigner struct {
	remote *remote       // sends requests to the daemon
	key    ssh.PublicKey // the public host key
}

// PublicKey implements [ssh.Signer].
func (s hostSigner) PublicKey() ssh.PublicKey { return s.key }

// Sign implements [ssh.Signer].
func (s hostSigner) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	a, err := s.remote.call(Request{Sign: data})
	if err != nil {
		return nil, err
	}
	return &ssh.Signature{Format: s.key.Type(), Blob: a.Signature}, nil
}
