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

// Limits of a session. The output of a process that has exited is limited because a background process may keep it open for ever
// and write to it.
const (
	silence       = 300 * time.Millisecond // after the process has exited, its output ends when nothing was written for this time
	maxAfterExit  = 2 << 20                // bytes of each output that are copied after the process has exited; a pipe holds less
	maxEnv        = 64                     // environment variables that a client may set
	maxEnvBytes   = 8 << 10                // bytes of the names and values of all environment variables that a client sets
	maxTerminal   = 64                     // bytes of the type of a terminal, the value of TERM
	maxDimensions = 4096                   // rows and columns of a terminal; larger numbers are reduced
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
		// The process is connected with the channel after the reply to its request was sent, so that the reply comes before all
		// output and the exit status.
		switch {
		case w.startErr != nil:
			w.sendExit(caisson.ExitStatus{Unknown: true, Reason: failureText(w.startErr)})
			return
		case w.process != nil && !w.running:
			w.running = true
			go w.run()
		}
	}
}

// A session is a channel with at most one process. All its methods except run are called by one goroutine.
type session struct {
	channel  ssh.Channel // channel of the client
	remote   *remote     // sends requests to the daemon
	start    Start       // request for the process, as far as the client has described it
	envBytes int         // bytes of the names and values in start.Env
	raw      bool        // whether the output of a terminal is sent to the client without removing control sequences
	process  *process    // the process; nil if none was started
	startErr error       // why the process could not be started; nil if it was, or if none was requested
	running  bool        // whether run has been called
	once     sync.Once   // ensures that process.close is called only once
}

// end kills the process, if one was started and still runs, and closes its descriptors.
func (w *session) end() {
	if w.process != nil {
		w.once.Do(w.process.close)
	}
}

// handle handles one request of the client and reports whether it is granted.
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
	return false // other requests are refused, such as those for agent and X11 forwarding
}

// rawVariable is the environment variable by which a client requests the output of a terminal with all control sequences;
// without it some are removed. It is not passed to the sandbox.
const rawVariable = "CAISSON_RAW_TTY"

// setEnv sets an environment variable of the process. It returns false for variables that do not concern the locale, the time
// zone or the terminal, and if a limit is exceeded.
func (w *session) setEnv(name, value string) bool {
	if name == rawVariable {
		w.raw = value == "1"
		return true
	}
	known := name == "LANG" || name == "LANGUAGE" || name == "TZ" || name == "COLORTERM" || name == "TERM_PROGRAM" || strings.HasPrefix(name, "LC_")
	if !known || len(w.start.Env) == maxEnv || w.envBytes+len(name)+len(value) > maxEnvBytes {
		return false
	}
	w.envBytes += len(name) + len(value)
	w.start.Env[name] = value
	return true
}

// A windowSize is the content of an SSH window-change request, and a part of pty-req. Width and Height are in pixels.
type windowSize struct{ Cols, Rows, Width, Height uint32 }

// size returns rows and columns, at most maxDimensions each.
func (s windowSize) size() Size {
	return Size{Rows: uint16(min(s.Rows, maxDimensions)), Cols: uint16(min(s.Cols, maxDimensions))}
}

// setTerminal sets the terminal of the process as a pty-req requests it. It returns false if the payload is malformed.
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

// begin starts the process. It returns false only if there is a process already. If the process cannot be started, begin sets
// startErr and returns true, because clients show the message of a process that has failed, but no message for a request that is
// refused.
func (w *session) begin(kind, command string) bool {
	if w.process != nil {
		return false
	}
	w.start.Kind, w.start.Command = kind, command
	switch {
	case len(command) > MaxCommand || strings.ContainsRune(command, 0):
		w.startErr = caisson.Errorf(caisson.Invalid, "the command is longer than %s or contains a zero byte", caisson.Size(MaxCommand))
	case kind == KindSFTP && w.start.TTY:
		w.startErr = caisson.Errorf(caisson.Invalid, "sftp needs no terminal")
	default:
		w.process, w.startErr = w.remote.start(&w.start)
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
		if err != nil { // the process reads no more; discard the rest, so that the client is not blocked
			_, _ = io.Copy(io.Discard, w.channel)
		}
	}()
	var exited atomic.Bool
	var outputs sync.WaitGroup
	outputs.Go(func() { w.copyToClient(w.channel, p.stdout, &exited) })
	outputs.Go(func() { w.copyToClient(w.channel.Stderr(), p.stderr, &exited) })
	status := p.wait()
	exited.Store(true)
	for _, f := range []*os.File{p.stdout, p.stderr} {
		_ = f.SetReadDeadline(time.Now().Add(silence)) // fails only for a file that is closed
	}
	outputs.Wait()
	w.once.Do(p.close)
	w.sendExit(status)
}

// copyToClient copies the standard output or error of the process to the client. Unless raw is set, the output of a
// terminal is filtered: the client writes it to its own terminal, so only harmless control sequences are passed.
func (w *session) copyToClient(to io.Writer, from *os.File, exited *atomic.Bool) {
	if w.start.TTY && !w.raw {
		f := safetext.NewFilter(to, safetext.Screen)
		defer f.Close() // fails when the connection has ended
		to = f
	}
	copyOutput(to, from, exited)
}

// copyOutput copies an output of a process until it ends. Once exited is set, it also returns after maxAfterExit bytes, or when
// nothing was written for the time silence.
func copyOutput(to io.Writer, from *os.File, exited *atomic.Bool) {
	buf := make([]byte, blockSize)
	for rest := maxAfterExit; rest > 0; {
		over := exited.Load()
		if over {
			_ = from.SetReadDeadline(time.Now().Add(silence)) // before each read, so that the time of writes does not count
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

// sendExit sends the exit status or the signal of the process to the client. Errors are ignored: they mean that the connection
// has ended.
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
