// Package terminal implements the terminals in sandboxes. A process in the sandbox has one terminal with its program, keeps the
// end of the output, and serves viewers on a unix socket. The host attaches viewers with [Attach].
//
// A viewer that is slow or hostile never holds up the program or another viewer.
package terminal

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/frame"
)

// ringSize is the number of bytes that a terminal keeps of the end of its program's output.
const ringSize = 256 << 10

const (
	helloTimeout = 10 * time.Second // timeout for the first frame on a connection, and for the answer to it
	flushTimeout = 10 * time.Second // time in which a viewer must read the rest of the output after the program's end
	lingerSteps  = 60               // a terminal is kept for at most this many times lingerStep after its program's end
	lingerStep   = 10 * time.Second // unit of the time for which a terminal is kept after its program's end
	maxPending   = 64 << 10         // number of bytes of input for the program at which further input must wait
)

// A Program is a program that runs at a terminal. Read and Write are called by one goroutine each.
type Program interface {
	PID() int // returns the id of the process of the program
	// Read reads output. It returns io.EOF when the program has ended and all output that it has written was read, even if other
	// processes still have the terminal open.
	Read(b []byte) (int, error)
	// Write writes input for the program. A call that waits returns when Close is called.
	Write(b []byte) (int, error)
	Resize(rows, cols uint16) error // changes the size of the terminal
	// Signal sends a signal to the foreground process group of the terminal.
	Signal(signal int) error
	// Exit returns the exit status of the program. It is called after Read has returned an error.
	Exit() caisson.ExitStatus
	// Kill kills the program. It does not wait for its end.
	Kill()
	// Close closes the terminal.
	Close() error
}

// A Server serves the viewers of one terminal.
type Server struct {
	program Program       // the program of the terminal
	step    time.Duration // unit of the time for which the terminal is kept after the program's end; lingerStep, except in tests
	keep    bool          // the terminal is kept after the program's end, until Kill is called

	mayEnd chan struct{} // closed when the terminal may end as soon as its program has ended
	letEnd func()        // lets the terminal end as soon as its program has ended, by closing mayEnd; may be called repeatedly

	mu      sync.Mutex       // guards the fields below
	changed *sync.Cond       // signals changes of the fields below
	info    caisson.Terminal // information about the terminal; Viewers is not set
	out     ring             // the end of the program's output
	viewers map[*viewer]bool // the attached viewers
	writer  *viewer          // the viewer whose input counts; nil if there is none
	pending []byte           // input that was not written to the program yet
}

// A Listener accepts connections, which are sockets in non-blocking mode.
type Listener interface {
	Accept(ctx context.Context) (*os.File, error) // waits for the next connection and returns its socket
	// Close closes the listener. A call of Accept that waits returns an error.
	Close() error
}

// A connection is a connection of a client to a terminal's socket.
type connection interface {
	io.ReadWriteCloser
	SetDeadline(t time.Time) error // sets the time after which reads and writes fail
}

// A viewer is the server's end of the connection of a viewer that is attached.
type viewer struct {
	conn     connection // connection to the viewer on the host
	readOnly bool       // the viewer sends no input and never becomes the writer
	at       uint64     // position, in the program's output, of the next byte to send to the viewer
	notices  []notice   // notices to send; at most one of each kind
	skipped  bool       // the notice that output was skipped was added to notices before
	gone     bool       // the connection has ended
}

// NewServer returns the server for the terminal of a program that has just been started. If keep is set, the terminal is kept
// after the program's end until [Server.Kill] is called.
func NewServer(id caisson.ID, command []string, program Program, rows, cols uint16, keep bool) *Server {
	s := &Server{
		program: program, step: lingerStep, keep: keep, out: ring{buf: make([]byte, ringSize)}, viewers: map[*viewer]bool{}, mayEnd: make(chan struct{}),
		info: caisson.Terminal{ID: id, PID: program.PID(), Rows: rows, Cols: cols, StartedAt: time.Now().UTC()},
	}
	for _, arg := range command[:min(len(command), maxArgs)] {
		s.info.Command = append(s.info.Command, arg[:min(len(arg), maxArg)])
	}
	s.changed = sync.NewCond(&s.mu)
	s.letEnd = sync.OnceFunc(func() { close(s.mayEnd) })
	return s
}

// Serve accepts connections from ln and serves viewers until the terminal ends: after its program's end, when a viewer that
// is not read-only has received the exit status or 10 minutes have passed, or if s.keep is set, after Kill. Then it closes ln and
// waits for the end of the viewers' connections.
func (s *Server) Serve(ln Listener) {
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			all.Go(func() { defer conn.Close(); s.serve(conn) })
		}
	})
	all.Go(s.writeInput)
	s.readOutput()
	s.linger()
	ln.Close()
	s.waitForViewers()
	all.Wait()
}

// readOutput reads the program's output into the ring until the program has ended, and answers queries in it. Then it stores the
// exit status and closes the program.
func (s *Server) readOutput() {
	b := make([]byte, maxData)
	asked := newQueryAnswerer()
	for {
		n, err := s.program.Read(b)
		s.mu.Lock()
		s.out.add(b[:n])
		if answers := asked.read(b[:n], s.info.Rows, s.info.Cols); len(s.pending)+len(answers) <= maxPending {
			s.pending = append(s.pending, answers...)
		}
		if err != nil {
			exit := s.program.Exit()
			s.info.Exit = &exit
			for v := range s.viewers {
				v.conn.SetDeadline(time.Now().Add(flushTimeout))
			}
		}
		s.changed.Broadcast()
		s.mu.Unlock()
		if err != nil {
			s.program.Close()
			return
		}
	}
}

// linger waits until a viewer that is not read-only has received the exit status, for at most 10 minutes. If s.keep is set, it
// waits until Kill is called instead. It waits lingerSteps times for s.step, and not once, because the clock jumps when a paused
// sandbox is resumed.
func (s *Server) linger() {
	if s.keep {
		<-s.mayEnd
		return
	}
	for range lingerSteps {
		select {
		case <-s.mayEnd:
			return
		case <-time.After(s.step):
		}
	}
}

// waitForViewers waits until the connections of all viewers have ended: clients close them after the exit status, and the others
// reach a deadline.
func (s *Server) waitForViewers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.viewers) > 0 { // ends, because the connections of all viewers have a deadline
		s.changed.Wait()
	}
}

// writeInput writes pending input to the program until the program has ended.
func (s *Server) writeInput() {
	for {
		s.mu.Lock()
		for len(s.pending) == 0 && s.info.Exit == nil {
			s.changed.Wait()
		}
		b := s.pending
		s.pending = nil
		ended := s.info.Exit != nil
		s.changed.Broadcast() // wakes handle, which waits until there is room in pending
		s.mu.Unlock()
		if ended {
			return
		}
		s.program.Write(b) // errors are ignored: the program has ended, or has closed its terminal
	}
}

// serve serves one connection: it executes the request in the first frame, and then serves a viewer that was attached.
func (s *Server) serve(conn connection) {
	conn.SetDeadline(time.Now().Add(helloTimeout))
	kind, payload, err := frame.Read(conn, clientLimits)
	if err != nil {
		return
	}
	switch kind {
	case kindInfo:
		s.sendInfo(conn)
	case kindKill:
		s.Kill()
		s.sendInfo(conn)
	case kindAttach:
		if checkLength(payload, attachSize) != nil {
			return
		}
		v := &viewer{conn: conn, readOnly: payload[4]&flagReadOnly != 0}
		rows, cols := parseSize(payload)
		if !s.attach(v, rows, cols) {
			conn.Write(frame.Append(nil, kindNotice, []byte{byte(noticeFull)}))
			return
		}
		var sender sync.WaitGroup
		sender.Go(func() { s.send(v) })
		s.receive(v)
		s.detach(v)
		sender.Wait()
		s.remove(v)
	}
}

// Kill kills the program, and makes the terminal end soon after the program has ended.
func (s *Server) Kill() {
	s.program.Kill()
	s.letEnd()
}

// Info returns information about the terminal.
func (s *Server) Info() caisson.Terminal {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.info
	t.Viewers = len(s.viewers)
	return t
}

// sendInfo sends an info frame about the terminal.
func (s *Server) sendInfo(conn connection) {
	if b, err := appendInfo(nil, s.Info()); err == nil {
		conn.Write(b)
	}
}

// attach adds a viewer with a screen of this size; 0 means that the size is not known. The viewer becomes the writer unless it is
// read-only. attach returns false if there are too many viewers.
func (s *Server) attach(v *viewer, rows, cols uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.viewers) >= caisson.MaxTerminalViewers {
		return false
	}
	v.conn.SetDeadline(time.Time{})
	if s.info.Exit != nil {
		v.conn.SetDeadline(time.Now().Add(flushTimeout))
	}
	s.viewers[v] = true
	v.at = s.out.start()
	if v.readOnly {
		return true
	}
	if s.writer != nil {
		s.writer.notices = append(s.writer.notices, noticeTaken)
	}
	s.writer = v
	s.changed.Broadcast() // wakes handle, which may be waiting with input of the former writer
	if rows > 0 && cols > 0 && s.info.Exit == nil {
		// If the beginning of the output is lost, the rest may not contain a whole screen. Programs draw their screen anew when
		// the size changes, so an equal size is set after a different one.
		if rows == s.info.Rows && cols == s.info.Cols && v.at > 0 && rows > 1 {
			s.program.Resize(rows-1, cols)
		}
		s.resize(rows, cols)
	}
	return true
}

// resize sets the terminal's size, unless rows or cols is 0. The caller must hold mu.
func (s *Server) resize(rows, cols uint16) {
	if rows > 0 && cols > 0 && s.program.Resize(rows, cols) == nil {
		s.info.Rows, s.info.Cols = rows, cols
	}
}

// receive handles the frames from a viewer until the connection ends or a frame is malformed.
func (s *Server) receive(v *viewer) {
	for {
		kind, payload, err := frame.Read(v.conn, clientLimits)
		if err != nil || !s.handle(v, kind, payload) {
			return
		}
	}
}

// handle handles a frame from a viewer, and returns false if it is malformed. Input of a viewer that is not the writer is
// dropped. For input of the writer, handle waits while pending is full; so only one viewer can be waiting.
func (s *Server) handle(v *viewer, kind byte, payload []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case kindInput:
		for s.writer == v && s.info.Exit == nil && len(s.pending) > maxPending {
			s.changed.Wait()
		}
		if s.writer == v && s.info.Exit == nil {
			s.pending = append(s.pending, payload...)
			s.changed.Broadcast()
		}
		return true
	case kindResize:
		if s.writer == v && len(payload) == 4 && s.info.Exit == nil {
			s.resize(parseSize(payload))
		}
		return len(payload) == 4
	case kindSignal:
		valid := len(payload) == 1 && payload[0] >= 1 && payload[0] <= maxSignal
		if valid && s.writer == v && s.info.Exit == nil {
			s.program.Signal(int(payload[0]))
		}
		return valid
	}
	return false
}

// detach closes the connection of a viewer, and makes the method send, which serves the viewer, return.
func (s *Server) detach(v *viewer) {
	v.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	v.gone = true
	s.changed.Broadcast()
}

// remove removes a viewer whose connection has ended. If it was the writer, there is no writer until one attaches.
func (s *Server) remove(v *viewer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.viewers, v)
	if s.writer == v {
		s.writer = nil
	}
	s.changed.Broadcast()
}

// send sends a viewer its notices, the output and the exit status, until the viewer is gone or everything was sent. It does not
// close the connection after the exit status; the client does. If the server closed it, input in transit could reset the
// connection before the client has read the status.
func (s *Server) send(v *viewer) {
	b := make([]byte, frame.HeaderSize+maxData)
	pid := binary.BigEndian.AppendUint32(nil, uint32(s.program.PID()))
	_, err := v.conn.Write(frame.Append(nil, kindStarted, pid))
	for err == nil {
		n, last := s.next(v, b)
		if n > 0 {
			_, err = v.conn.Write(b[:n])
		}
		if last {
			if err == nil && n > 0 && !v.readOnly && !s.keep {
				s.letEnd()
			}
			break
		}
	}
	if err != nil {
		v.conn.Close() // makes the method receive, which serves the viewer too, return
	}
}

// next waits for something to send to a viewer, and puts the frame into b. n is the length of the frame, or 0 if the viewer is
// gone. last means that no frame follows.
func (s *Server) next(v *viewer, b []byte) (n int, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if v.gone {
			return 0, true
		}
		if from := s.out.start(); v.at < from {
			v.at = from
			if !v.skipped {
				v.skipped = true
				v.notices = append(v.notices, noticeSkipped)
			}
		}
		switch {
		case len(v.notices) > 0:
			what := v.notices[0]
			v.notices = v.notices[1:]
			return len(frame.Append(b[:0], kindNotice, []byte{byte(what)})), false
		case v.at < s.out.end:
			n := s.out.read(v.at, b[frame.HeaderSize:])
			frame.PutHeader(b, kindOutput, n)
			v.at += uint64(n)
			return frame.HeaderSize + n, false
		case s.info.Exit != nil:
			return len(frame.Append(b[:0], kindExit, appendExit(nil, *s.info.Exit))), true
		}
		s.changed.Wait()
	}
}
