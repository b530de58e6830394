// Package terminal implements the terminals in sandboxes. A process in the sandbox owns one terminal, its program, and the end of
// its output, and serves viewers on a unix socket. [Attach] is the host's end of such a connection.
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

// ringSize is how many bytes of output a terminal keeps.
const ringSize = 256 << 10

const (
	helloTimeout = 10 * time.Second // time in which a client must send its first frame
	flushTimeout = 10 * time.Second // time in which a viewer must read the rest of the output after the program's end
	lingerSteps  = 60               // see Server.linger
	lingerStep   = 10 * time.Second
	maxPending   = 64 << 10 // bytes of input that the program has not read
)

// A Program is a program at a terminal. Read and Write are called by one goroutine each.
type Program interface {
	PID() int
	// Read reads output. It returns io.EOF when the program has ended, even if other processes still have the terminal open, and all
	// that it has written was read.
	Read(b []byte) (int, error)
	// Write writes input. Close makes it return.
	Write(b []byte) (int, error)
	Resize(rows, cols uint16) error
	// Signal sends a signal to the foreground process group.
	Signal(signal int) error
	// Exit returns how the program has ended; it is called after Read has returned an error.
	Exit() caisson.ExitStatus
	// Kill kills the program.
	Kill()
	// Close closes the terminal.
	Close() error
}

// A Server serves the viewers of one terminal.
type Server struct {
	program Program
	step    time.Duration // see linger
	keep    bool          // the terminal is kept until Kill is called

	over     chan struct{} // closed when the terminal need not be kept any more
	markOver func()        // closes over

	mu      sync.Mutex
	changed *sync.Cond       // signals changes of the fields below
	info    caisson.Terminal // Viewers is not set
	out     ring
	viewers map[*viewer]bool
	writer  *viewer // the viewer whose input counts; nil for none
	pending []byte  // input that was not given to the program yet
}

// A Listener accepts connections, which are sockets in non-blocking mode.
type Listener interface {
	Accept(ctx context.Context) (*os.File, error)
	// Close makes Accept return.
	Close() error
}

// A connection is a connection of a client.
type connection interface {
	io.ReadWriteCloser
	SetDeadline(t time.Time) error
}

// A viewer is a connection that is attached.
type viewer struct {
	conn     connection
	readOnly bool
	at       uint64   // position of the next byte to send
	notices  []notice // to be sent, at most one of each
	skipped  bool     // noticeSkipped was added to notices
	gone     bool     // the connection has ended
}

// NewServer returns the server of the terminal of a program that has just been started. If keep is set, the terminal is kept after the
// program's end until [Server.Kill] is called.
func NewServer(id caisson.ID, command []string, program Program, rows, cols uint16, keep bool) *Server {
	s := &Server{
		program: program, step: lingerStep, keep: keep, out: ring{buf: make([]byte, ringSize)}, viewers: map[*viewer]bool{}, over: make(chan struct{}),
		info: caisson.Terminal{ID: id, PID: program.PID(), Rows: rows, Cols: cols, StartedAt: time.Now().UTC()},
	}
	for _, arg := range command[:min(len(command), maxArgs)] {
		s.info.Command = append(s.info.Command, arg[:min(len(arg), maxArg)])
	}
	s.changed = sync.NewCond(&s.mu)
	s.markOver = sync.OnceFunc(func() { close(s.over) })
	return s
}

// Serve serves viewers until the terminal ends, some time after its program has ended; see [caisson.Terminal]. It closes ln and
// the program.
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
	s.disconnect()
	all.Wait()
}

// readOutput keeps the program's output until its end.
func (s *Server) readOutput() {
	b := make([]byte, maxData)
	asked := newQueries()
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

// linger waits until a viewer has received the exit status, for at most lingerSteps steps. If the terminal is kept, it waits
// until Kill is called instead. It counts steps, because the clock jumps when a paused sandbox is resumed.
func (s *Server) linger() {
	if s.keep {
		<-s.over
		return
	}
	for range lingerSteps {
		select {
		case <-s.over:
			return
		case <-time.After(s.step):
		}
	}
}

// disconnect waits until all viewers have received the rest of the output and are gone.
func (s *Server) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.viewers) > 0 { // all have a deadline
		s.changed.Wait()
	}
}

// writeInput passes input to the program until the program ends.
func (s *Server) writeInput() {
	for {
		s.mu.Lock()
		for len(s.pending) == 0 && s.info.Exit == nil {
			s.changed.Wait()
		}
		b := s.pending
		s.pending = nil
		ended := s.info.Exit != nil
		s.changed.Broadcast() // there is room in pending
		s.mu.Unlock()
		if ended {
			return
		}
		s.program.Write(b) // an error means that the program has ended, or has closed its terminal
	}
}

// serve serves a connection.
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
		if exactly(payload, attachSize) != nil {
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

// Kill kills the program; the terminal does not linger.
func (s *Server) Kill() {
	s.program.Kill()
	s.markOver()
}

// Info describes the terminal.
func (s *Server) Info() caisson.Terminal {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.info
	t.Viewers = len(s.viewers)
	return t
}

// sendInfo sends an info frame.
func (s *Server) sendInfo(conn connection) {
	if b, err := appendInfo(nil, s.Info()); err == nil {
		conn.Write(b)
	}
}

// attach adds a viewer, which becomes the writer unless it is read-only. It returns false if there are too many.
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
	s.changed.Broadcast() // the former writer may be waiting
	if rows > 0 && cols > 0 && s.info.Exit == nil {
		// Programs draw their screen anew when the size changes. If the beginning of the output is lost, the kept part may not
		// contain a whole screen, so the size is changed twice.
		if rows == s.info.Rows && cols == s.info.Cols && v.at > 0 && rows > 1 {
			s.program.Resize(rows-1, cols)
		}
		s.resize(rows, cols)
	}
	return true
}

// resize sets the terminal's size. The caller must hold mu.
func (s *Server) resize(rows, cols uint16) {
	if rows > 0 && cols > 0 && s.program.Resize(rows, cols) == nil {
		s.info.Rows, s.info.Cols = rows, cols
	}
}

// receive handles a viewer's frames until the connection ends.
func (s *Server) receive(v *viewer) {
	for {
		kind, payload, err := frame.Read(v.conn, clientLimits)
		if err != nil || !s.handle(v, kind, payload) {
			return
		}
	}
}

// handle handles a frame, and returns false if it is malformed. For input of the writer it waits while pending is full, so that
// at most one connection waits.
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

// detach closes the connection of a viewer and ends send.
func (s *Server) detach(v *viewer) {
	v.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	v.gone = true
	s.changed.Broadcast()
}

// remove removes a viewer.
func (s *Server) remove(v *viewer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.viewers, v)
	if s.writer == v {
		s.writer = nil
	}
	s.changed.Broadcast()
}

// send sends a viewer its notices, the output and the exit status, until the viewer is gone or everything was sent. After the
// exit status the client closes the connection: if the server closed it, input in transit could reset the connection before the
// client has read the status.
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
				s.markOver()
			}
			break
		}
	}
	if err != nil {
		v.conn.Close() // ends receive
	}
}

// next waits for the next frame for a viewer, and puts it into b. last means that no frame follows; n is 0 if the viewer is gone.
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
