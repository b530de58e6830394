package sshproxy

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// Limits on the output of a process that has exited: a background process may keep it open for ever, and need not be silent.
const (
	silence       = 300 * time.Millisecond // output is over after this time without any
	maxAfterExit  = 2 << 20                // bytes; a pipe holds less
	maxEnv        = 64                     // variables
	maxEnvBytes   = 8 << 10
	maxTerminal   = 64 // bytes of the name of a terminal
	maxDimensions = 4096
)

// session serves a channel of type session. It runs one process.
func (s *server) session(c ssh.NewChannel) {
	channel, requests, err := c.Accept()
	if err != nil {
		return
	}
	defer channel.Close()
	w := &session{channel: channel, remote: s.remote, start: Start{Env: map[string]string{}}}
	defer w.end()
	for q := range requests {
		ok := w.handle(q)
		if q.WantReply {
			if q.Reply(ok, nil) != nil {
				return
			}
		}
		// The reply comes before all output and the exit status, however fast the process is.
		switch {
		case w.failed != nil:
			w.sendExit(caisson.ExitStatus{Unknown: true, Reason: failureText(w.failed)})
			return
		case w.process != nil && !w.running:
			w.running = true
			go w.run()
		}
	}
}

// A session is a channel with at most one process. Its methods but run are called by one goroutine.
type session struct {
	channel ssh.Channel
	remote  *remote
	start   Start
	size    int  // bytes of start.Env
	raw     bool // the client wants the output of a terminal as it is
	process *process
	failed  error // why there is no process; nil if none was requested
	running bool  // run has been called
	once    sync.Once
}

// end ends the process.
func (w *session) end() {
	if w.process != nil {
		w.once.Do(w.process.close)
	}
}

// handle handles one request and reports whether it is granted.
func (w *session) handle(q *ssh.Request) bool {
	switch q.Type {
	case "env":
		var m struct{ Name, Value string }
		return ssh.Unmarshal(q.Payload, &m) == nil && w.process == nil && w.setEnv(m.Name, m.Value)
	case "pty-req":
		return w.process == nil && w.setTerminal(q.Payload)
	case "window-change":
		var m windowSize
		if ssh.Unmarshal(q.Payload, &m) == nil && w.process != nil && w.start.TTY {
			size := m.size()
			w.process.send(Request{Resize: &size})
		}
		return true
	case "signal":
		var m struct{ Name string }
		number := 0
		if ssh.Unmarshal(q.Payload, &m) == nil {
			number = signalNumber(m.Name)
		}
		if number == 0 || w.process == nil {
			return false
		}
		w.process.send(Request{Signal: number})
		return true
	case "shell":
		return w.begin(KindShell, "")
	case "exec":
		var m struct{ Command string }
		return ssh.Unmarshal(q.Payload, &m) == nil && w.begin(KindExec, m.Command)
	case "subsystem":
		var m struct{ Name string }
		return ssh.Unmarshal(q.Payload, &m) == nil && m.Name == "sftp" && w.begin(KindSFTP, "")
	}
	return false // agent and X11 forwarding among others
}

// rawVariable is the variable with which a client asks for output as it is, which the sandbox does not get.
const rawVariable = "CAISSON_RAW_TTY"

// setEnv sets a variable of the process; others than those of the locale and of the terminal are refused.
func (w *session) setEnv(name, value string) bool {
	if name == rawVariable {
		w.raw = value == "1"
		return true
	}
	known := name == "LANG" || name == "LANGUAGE" || name == "TZ" || name == "COLORTERM" || name == "TERM_PROGRAM" || strings.HasPrefix(name, "LC_")
	if !known || len(w.start.Env) == maxEnv || w.size+len(name)+len(value) > maxEnvBytes {
		return false
	}
	w.size += len(name) + len(value)
	w.start.Env[name] = value
	return true
}

// windowSize is the content of window-change, and a part of pty-req.
type windowSize struct{ Cols, Rows, Width, Height uint32 }

func (s windowSize) size() Size {
	return Size{Rows: uint16(min(s.Rows, maxDimensions)), Cols: uint16(min(s.Cols, maxDimensions))}
}

// setTerminal requests a terminal for the process.
func (w *session) setTerminal(payload []byte) bool {
	var m struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	if ssh.Unmarshal(payload, &m) != nil || len(m.Term) > maxTerminal {
		return false
	}
	w.start.TTY, w.start.Size = true, windowSize{Cols: m.Cols, Rows: m.Rows}.size()
	if m.Term != "" {
		w.start.Env["TERM"] = m.Term
	}
	return true
}

// begin starts the process. A process that cannot be started is one that has failed: clients show its reason, and none for a request
// that is refused.
func (w *session) begin(kind, command string) bool {
	if w.process != nil {
		return false
	}
	w.start.Kind, w.start.Command = kind, command
	switch {
	case len(command) > MaxCommand || strings.ContainsRune(command, 0):
		w.failed = caisson.Errorf(caisson.Invalid, "the command is longer than %s or contains a zero byte", caisson.Size(MaxCommand))
	case kind == KindSFTP && w.start.TTY:
		w.failed = caisson.Errorf(caisson.Invalid, "sftp needs no terminal")
	default:
		w.process, w.failed = w.remote.start(&w.start)
	}
	return true
}

// run connects the process with the channel until the process has exited.
func (w *session) run() {
	p := w.process
	defer w.channel.Close() // ends the loop over the requests of the channel
	go func() {
		_, err := io.CopyBuffer(onlyWriter{p.stdin}, onlyReader{w.channel}, make([]byte, blockSize))
		p.stdin.Close()
		if err != nil { // the process has closed its input; the client must not be stopped by a full window
			_, _ = io.Copy(io.Discard, w.channel)
		}
	}()
	var exited atomic.Bool
	var outputs sync.WaitGroup
	outputs.Go(func() { w.show(w.channel, p.stdout, &exited) })
	outputs.Go(func() { w.show(w.channel.Stderr(), p.stderr, &exited) })
	status := p.wait()
	exited.Store(true)
	for _, f := range []*os.File{p.stdout, p.stderr} {
		_ = f.SetReadDeadline(time.Now().Add(silence)) // fails only for a file that is closed
	}
	outputs.Wait()
	w.once.Do(p.close)
	w.sendExit(status)
}

// show copies an output of the process to the client. What comes from a terminal goes to one, so it passes a filter.
func (w *session) show(to io.Writer, from *os.File, exited *atomic.Bool) {
	if w.start.TTY && !w.raw {
		f := safetext.NewFilter(to, safetext.Screen)
		defer f.Close() // fails when the connection has ended
		to = f
	}
	copyOutput(to, from, exited)
}

// copyOutput copies an output of a process until it ends or, once exited is set, until it has been silent for a while.
func copyOutput(to io.Writer, from *os.File, exited *atomic.Bool) {
	buf := make([]byte, blockSize)
	for rest := maxAfterExit; rest > 0; {
		over := exited.Load()
		if over {
			_ = from.SetReadDeadline(time.Now().Add(silence)) // time that the client takes is no silence
		}
		n, err := from.Read(buf)
		if over {
			rest -= n
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && !over {
			continue // the process has exited while this read was in progress
		}
		if err != nil {
			return
		}
	}
}

// sendExit tells the client how the process has ended. Errors mean that the connection has ended.
func (w *session) sendExit(status caisson.ExitStatus) {
	if status.Reason != "" {
		_, _ = io.WriteString(w.channel.Stderr(), "caisson: "+safetext.Escape(status.Reason)+"\r\n")
	}
	_ = w.channel.CloseWrite()
	if name := signalName(status.Signal); name != "" {
		_, _ = w.channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Name     string
			Core     bool
			Message  string
			Language string
		}{Name: name, Message: status.Reason}))
		return
	}
	code := uint32(status.Code & 0xff)
	if status.Unknown {
		code = 255
	}
	_, _ = w.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
}

// signalNumber returns the number of a signal that SSH knows, or 0.
func signalNumber(name string) int { return int(signals[name]) }

// signalName returns SSH's name of a signal, or "".
func signalName(number int) string {
	for name, s := range signals {
		if int(s) == number {
			return name
		}
	}
	return ""
}

// signals are the signals of RFC 4254, section 6.10.
var signals = map[string]unix.Signal{
	"ABRT": unix.SIGABRT, "ALRM": unix.SIGALRM, "FPE": unix.SIGFPE, "HUP": unix.SIGHUP, "ILL": unix.SIGILL, "INT": unix.SIGINT,
	"KILL": unix.SIGKILL, "PIPE": unix.SIGPIPE, "QUIT": unix.SIGQUIT, "SEGV": unix.SIGSEGV, "TERM": unix.SIGTERM,
	"USR1": unix.SIGUSR1, "USR2": unix.SIGUSR2,
}
