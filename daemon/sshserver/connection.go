package sshserver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/sshproxy"
)

// callTimeout is the timeout of calls that would never return if the sandbox hangs.
const callTimeout = 10 * time.Second

// maxSignatures is the maximum number of signatures with the host key for one connection. Each key exchange needs one.
const maxSignatures = 10_000

// A user is an authenticated client: the caller that it acts as, and the id or name of the sandbox that it connects to.
type user struct {
	caller caisson.Caller // account and rights of the client
	ref    string         // id or name of the sandbox
}

// A loginFunc returns the user for a public key in SSH's wire format. name is the SSH user name, the id or name of a
// sandbox. signed means that the client has proved that it has the private key; if it is false, the user is nil. Returns Unauthed
// if the key is not registered.
type loginFunc func(ctx context.Context, name string, key []byte, signed bool) (*user, error)

// A connection executes the requests of the job that speaks SSH with one client. Because the job may be hostile, it can request
// only operations on the sandbox of user, with the rights of user.
type connection struct {
	channel    *sshproxy.Conn     // channel to the SSH job
	ops        sandboxOps         // operations on sandboxes
	key        ed25519.PrivateKey // host key
	user       *user              // the client; nil until it has logged in
	login      loginFunc          // checks a login; nil if the client was authenticated before the job was started
	count      *counter           // counts the streams, over all connections of an account
	log        *slog.Logger
	signatures int // number of signatures with the host key so far

	mu      sync.Mutex
	last    uint32             // highest id of a stream so far; guarded by mu
	streams map[uint32]*stream // open streams by id; guarded by mu
	work    sync.WaitGroup     // goroutines of the streams
}

// A stream is a process in the sandbox, or a connection to a server in the sandbox, that an SSH job has opened.
type stream struct {
	ctx context.Context    // ends when the job ends the stream, and when the connection ends
	end context.CancelFunc // ends the stream: cancels ctx
	// large means that the pipes of the process may have pipeSize bytes; guarded by connection.mu.
	large bool

	mu   sync.Mutex
	proc caisson.Process // nil before the process has started and after it has exited; guarded by mu
}

// A sandboxOps has the operations on sandboxes that SSH jobs can request.
type sandboxOps struct {
	processes caisson.Processes
	// connect connects to a server in a sandbox, and counts the connection until the returned function is called.
	connect func(ctx context.Context, ref string, req caisson.ConnectRequest) (*os.File, func(), error)
}

// serve executes the requests of the SSH job until the channel ends or the job violates the protocol.
func (c *connection) serve(ctx context.Context) {
	for {
		var q sshproxy.Request
		if _, err := c.channel.Receive(&q, 0); err != nil {
			if errors.Is(err, sshproxy.ErrMessage) {
				c.log.WarnContext(ctx, "an ssh job was ended", "err", err)
			}
			break
		}
		if err := c.handle(ctx, &q); err != nil {
			c.log.WarnContext(ctx, "an ssh job was ended", "err", err)
			break
		}
	}
}

// end ends all streams and waits until they have ended. It must be called after serve has returned, so that no further stream is
// opened.
func (c *connection) end() {
	c.mu.Lock()
	for _, s := range c.streams {
		s.end()
	}
	c.mu.Unlock()
	c.work.Wait()
}

// handle executes one request of the SSH job. An error means that the job violates the protocol.
func (c *connection) handle(ctx context.Context, q *sshproxy.Request) error {
	switch {
	case q.Sign != nil:
		return c.sign(q)
	case q.Login != nil:
		return c.handleLogin(ctx, q)
	case c.user == nil:
		return fmt.Errorf("%w: the client has not logged in", sshproxy.ErrMessage)
	}
	ctx = caisson.WithCaller(ctx, c.user.caller)
	switch {
	case q.Start != nil:
		command, err := sessionCommand(q.Start)
		if err != nil {
			return err
		}
		req := caisson.ExecRequest{
			Command: command, Env: q.Start.Env, TTY: q.Start.TTY, Rows: q.Start.Size.Rows, Cols: q.Start.Size.Cols, Stdin: true,
		}
		return c.open(ctx, q.ID, func(s *stream) error { return c.runProcess(ctx, s, q.ID, req, true) })
	case q.Dial != nil:
		if to, ok := loopback(q.Dial); ok {
			return c.open(ctx, q.ID, func(s *stream) error { return c.runConnection(ctx, s, q.ID, to) })
		}
		// guestProgram connects from inside the sandbox, so that the policy of the sandbox applies to the connection.
		req := caisson.ExecRequest{Command: []string{guestProgram, "connect", "tcp", q.Dial.Address}, Stdin: true}
		return c.open(ctx, q.ID, func(s *stream) error { return c.runProcess(ctx, s, q.ID, req, false) })
	}
	c.mu.Lock()
	s := c.streams[q.ID]
	c.mu.Unlock()
	if s == nil {
		return nil // the stream has ended in the meantime
	}
	switch {
	case q.End:
		s.end()
	case q.Resize != nil:
		if p := s.process(); p != nil {
			_ = p.Resize(q.Resize.Rows, q.Resize.Cols) // fails if the process has exited just now
		}
	case q.Signal > 0 && q.Signal <= 64:
		if p := s.process(); p != nil {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			t := processTree{c.ops.processes, c.user.ref}
			t.signal(ctx, p.PID(), q.Signal)
		}
	default:
		return fmt.Errorf("%w: no request", sshproxy.ErrMessage)
	}
	return nil
}

// loopback returns the server that d addresses, and true if it is in the sandbox itself: a unix socket, or a port of the loopback
// interface. Such a server can be reached without the wire.
func loopback(d *sshproxy.Dial) (caisson.ConnectRequest, bool) {
	if d.Network == "unix" {
		return caisson.ConnectRequest{Path: d.Address}, true
	}
	host, port, err := net.SplitHostPort(d.Address)
	if err != nil {
		return caisson.ConnectRequest{}, false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	a, _ := netip.ParseAddr(host)
	return caisson.ConnectRequest{Port: int(n)}, err == nil && (host == "localhost" || a.IsLoopback())
}

// sessionCommand returns the command line for a shell, a command or SFTP. An error means that the job violates the protocol.
func sessionCommand(s *sshproxy.Start) ([]string, error) {
	switch {
	case s.Kind == sshproxy.KindShell:
		return []string{guestProgram, "session"}, nil
	case s.Kind == sshproxy.KindSFTP:
		return []string{guestProgram, "sftp"}, nil
	case s.Kind == sshproxy.KindExec && len(s.Command) <= sshproxy.MaxCommand:
		return []string{guestProgram, "session", s.Command}, nil
	}
	return nil, fmt.Errorf("%w: kind of process", sshproxy.ErrMessage)
}

// handleLogin logs the client in. After a successful login, a further request to log in violates the protocol.
func (c *connection) handleLogin(ctx context.Context, q *sshproxy.Request) error {
	if c.login == nil || c.user != nil {
		return fmt.Errorf("%w: login", sshproxy.ErrMessage)
	}
	u, err := c.login(ctx, q.Login.User, q.Login.Key, q.Login.Signed)
	if err != nil {
		return c.channel.Send(sshproxy.Reply{ID: q.ID, Error: sshproxy.FailureOf(err)})
	}
	if q.Login.Signed {
		c.user = u
	}
	return c.channel.Send(sshproxy.Reply{ID: q.ID})
}

// sign signs the exchange hash of a key exchange with the host key, and sends the signature to the job.
func (c *connection) sign(q *sshproxy.Request) error {
	if c.signatures++; c.signatures > maxSignatures || len(q.Sign) > sshproxy.MaxSigned {
		return fmt.Errorf("%w: signature", sshproxy.ErrMessage)
	}
	return c.channel.Send(sshproxy.Reply{ID: q.ID, Signature: ed25519.Sign(c.key, q.Sign)})
}

// open adds a stream with the given id and calls run for it in a new goroutine. If run returns an error, it is sent to the SSH
// job. An error of open means that the channel has ended, or that the job violates the protocol.
func (c *connection) open(ctx context.Context, id uint32, run func(*stream) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id <= c.last { // each id may be used only once
		return fmt.Errorf("%w: id", sshproxy.ErrMessage)
	}
	c.last = id
	// Twice the number of streams that the job may have is allowed, because streams that the job has ended may not have been
	// removed yet.
	if len(c.streams) >= 2*sshproxy.MaxStreams {
		return c.channel.Send(sshproxy.Reply{ID: id, Error: sshproxy.FailureOf(caisson.Errorf(caisson.Exhausted, "this connection has too many streams"))})
	}
	account := c.user.caller.Account
	if err := c.count.addStream(account); err != nil {
		return c.channel.Send(sshproxy.Reply{ID: id, Error: sshproxy.FailureOf(err)})
	}
	s := &stream{}
	s.ctx, s.end = context.WithCancel(ctx)
	c.streams[id] = s
	c.work.Go(func() {
		defer func() {
			s.end()
			c.mu.Lock()
			delete(c.streams, id)
			c.mu.Unlock()
			c.count.removeStream(account)
		}()
		if err := run(s); err != nil {
			// Send fails only if the channel has ended.
			_ = c.channel.Send(sshproxy.Reply{ID: id, Error: sshproxy.FailureOf(err)})
		}
	})
	return nil
}

// runConnection connects to a server in the sandbox, passes the descriptor to the job, and returns when the stream ends.
func (c *connection) runConnection(ctx context.Context, s *stream, id uint32, to caisson.ConnectRequest) error {
	f, release, err := c.ops.connect(ctx, c.user.ref, to)
	if err != nil {
		return err
	}
	defer release()
	err = c.channel.Send(sshproxy.Reply{ID: id}, f)
	f.Close()
	if err == nil {
		<-s.ctx.Done()
	}
	return nil
}

// runProcess starts a process, passes the descriptors of its standard streams to the job, and waits until the process has exited.
// If the stream ends first, it kills the process and its descendants. If exit is set, it sends the exit status to the job.
func (c *connection) runProcess(ctx context.Context, s *stream, id uint32, req caisson.ExecRequest, exit bool) error {
	p, err := c.ops.processes.Exec(ctx, c.user.ref, req)
	if err != nil {
		return err
	}
	var pumps sync.WaitGroup
	defer pumps.Wait()
	defer p.Close()
	files, err := streams(p, &pumps)
	if exit && err == nil && !req.TTY && c.allowLarge(s) {
		enlarge(files[0])
		enlarge(files[1])
	}
	if err != nil {
		return err
	}
	s.setProcess(p)
	if !exit {
		files[2].Close()
		files = files[:2]
	}
	err = c.channel.Send(sshproxy.Reply{ID: id, PID: p.PID()}, files...)
	sshproxy.CloseAll(files)
	if err != nil {
		c.kill(ctx, p)
		return nil
	}
	status, err := p.Wait(s.ctx)
	s.setProcess(nil)
	if err != nil {
		c.kill(ctx, p)
		return nil
	}
	if exit {
		if err := c.channel.Send(sshproxy.Reply{ID: id, Exit: &status}); err != nil {
			return nil
		}
		<-s.ctx.Done() // a terminal must stay open until the job has read the output and ends the stream
	}
	return nil
}

// allowLarge reports whether s may have large pipes, and if so, records that it has them. Because pipes use memory of the host,
// only one stream of a connection may have large ones at a time, which is enough for a file transfer.
func (c *connection) allowLarge(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.streams {
		if x.large {
			return false
		}
	}
	s.large = true
	return true
}

// kill kills a process and its descendants, even if ctx has ended.
func (c *connection) kill(ctx context.Context, p caisson.Process) {
	processTree{c.ops.processes, c.user.ref}.kill(ctx, p.PID())
}

// process returns the process of the stream, nil before it has started and after it has exited.
func (s *stream) process() caisson.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// setProcess sets the process of the stream; nil means that it has exited.
func (s *stream) setProcess(p caisson.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc = p
}

// pipeSize is the size, in bytes, of the pipes of a stream that is large. File transfers are slower with the kernel's default, 64
// KiB.
const pipeSize = 1 << 20

// streams returns descriptors of the standard input, output and error of p, which the caller must close. For a stream without a
// descriptor of its own, such as that of a terminal, it creates a pipe and copies the data in the background until p is closed.
func streams(p caisson.Process, pumps *sync.WaitGroup) (_ []*os.File, err error) {
	files := make([]*os.File, 0, 3)
	defer func() {
		if err != nil {
			sshproxy.CloseAll(files)
		}
	}()
	if in, ok := p.Stdin().(*os.File); ok {
		files = append(files, in)
	} else {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		files = append(files, w)
		in := p.Stdin()
		go func() { // ends when the job closes its end of the pipe or exits
			defer r.Close()
			if _, err := io.Copy(in, r); err == nil {
				in.Close()
			}
		}()
	}
	for _, out := range []io.Reader{p.Stdout(), p.Stderr()} {
		if f, ok := out.(*os.File); ok {
			files = append(files, f)
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		files = append(files, r)
		pumps.Go(func() {
			defer w.Close()
			_, _ = io.Copy(w, out) // ends when p is closed, or when the job closes its end of the pipe or exits
		})
	}
	return files, nil
}

// enlarge tries to set the size of a pipe to pipeSize. On an error, such as EPERM beyond the limit fs.pipe-user-pages-soft, the
// pipe keeps its size.
func enlarge(f *os.File) {
	raw, err := f.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
	}
}

// A processTree finds and signals the descendants of processes in one sandbox.
type processTree struct {
	processes caisson.Processes // starts and signals processes in sandboxes
	ref       string            // id or name of the sandbox
}

// maxRounds is the maximum number of times that kill lists the descendants of a process. Descendants are left after that if a
// hostile program starts processes very fast, or if the sandbox does not answer.
const maxRounds = 20

// listInterval is the time between two lists of the descendants of a process that is killed.
const listInterval = 10 * time.Millisecond

// signal sends a signal to a process and its descendants. Errors are ignored, because the processes may have exited.
func (t processTree) signal(ctx context.Context, pid, signal int) {
	pids, _ := t.descendants(ctx, pid)
	for _, p := range append(pids, pid) {
		_ = t.processes.Kill(ctx, t.ref, p, signal)
	}
}

// kill kills a process and its descendants, even if ctx has ended. It stops all of them first (SIGSTOP), so that none can start
// another process in the meantime. A process can still start one until SIGSTOP has reached it, so two lists in a row must have no
// new process.
func (t processTree) kill(ctx context.Context, pid int) {
	ctx = context.WithoutCancel(ctx)
	stopped := t.stop(ctx, pid)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for p := range stopped {
		_ = t.processes.Kill(ctx, t.ref, p, int(unix.SIGKILL))
	}
}

// stop stops a process and its descendants, and returns their ids.
func (t processTree) stop(ctx context.Context, pid int) map[int]bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stopped := map[int]bool{pid: true}
	_ = t.processes.Kill(ctx, t.ref, pid, int(unix.SIGSTOP))
	for round, settled := 0, 0; round < maxRounds && settled < 2 && ctx.Err() == nil; round++ {
		if round > 0 {
			time.Sleep(listInterval)
		}
		pids, err := t.descendants(ctx, pid)
		if settled++; err != nil {
			settled = 0
		}
		for _, p := range pids {
			if !stopped[p] {
				stopped[p], settled = true, 0
				_ = t.processes.Kill(ctx, t.ref, p, int(unix.SIGSTOP))
			}
		}
	}
	return stopped
}

// descendants returns the descendants of a process.
func (t processTree) descendants(ctx context.Context, pid int) (pids []int, err error) {
	list, err := t.processes.ListProcesses(ctx, t.ref)
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, p := range list {
		children[p.PPID] = append(children[p.PPID], p.PID)
	}
	seen := map[int]bool{pid: true}
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for _, p := range children[queue[0]] {
			if !seen[p] {
				seen[p] = true
				pids, queue = append(pids, p), append(queue, p)
			}
		}
	}
	return pids, nil
}
