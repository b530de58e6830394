package apitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// A program runs until it returns its exit code. Its files are closed when it is killed, which ends reads and writes.
type program func(p *proc, args []string) int

// programs are what can be executed in memory.
var programs = map[string]program{
	"echo": func(p *proc, args []string) int {
		for i, a := range args {
			if i > 0 {
				io.WriteString(p.out, " ")
			}
			io.WriteString(p.out, a)
		}
		io.WriteString(p.out, "\n")
		return 0
	},
	"cat": func(p *proc, _ []string) int {
		if _, err := io.Copy(p.out, p.in); err != nil {
			return 1
		}
		return 0
	},
	"exit": func(_ *proc, args []string) int {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return 2
		}
		return n
	},
	"fail": func(p *proc, args []string) int {
		io.WriteString(p.err, "no\n")
		return 1
	},
	"sleep": func(p *proc, _ []string) int {
		<-p.killed
		return 0
	},
	// flood N writes N bytes to each output.
	"flood": func(p *proc, args []string) int {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return 2
		}
		var wg sync.WaitGroup
		for _, w := range []io.Writer{p.out, p.err} {
			wg.Go(func() { io.Copy(w, io.LimitReader(pattern{}, int64(n))) })
		}
		wg.Wait()
		return 0
	},
	// leave exits at once but leaves a child behind that holds the outputs.
	"leave": func(p *proc, _ []string) int {
		io.WriteString(p.out, "left\n")
		p.held = true
		return 0
	},
	// shut reads no input.
	"shut": func(p *proc, _ []string) int {
		p.in.Close()
		io.WriteString(p.out, "shut\n")
		<-p.killed
		return 0
	},
	// size prints the size of its terminal when it changes.
	"size": func(p *proc, _ []string) int {
		select {
		case s := <-p.resized:
			fmt.Fprintf(p.out, "%d %d\n", s[0], s[1])
			return 0
		case <-p.killed:
			return 1
		}
	},
	"binary": func(p *proc, _ []string) int {
		p.out.Write([]byte{0xff, 0, 0xfe})
		return 0
	},
}

// pattern is an endless stream whose bytes tell their place.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	copy(p, bytes.Repeat([]byte("0123456789abcdef"), len(p)/16+1))
	return len(p) / 16 * 16, nil
}

// proc is a process in memory. Its streams are pipes of the kernel, as a real one's are.
type proc struct {
	name    string
	pid     int
	tty     bool
	detach  bool
	stdin   *os.File // ours; nil if there is none
	stdout  *os.File
	stderr  *os.File
	in      *os.File // the program's
	out     *os.File
	err     *os.File
	held    bool // a child keeps the outputs open
	resized chan [2]uint16
	killed  chan struct{}
	kill    sync.Once
	signal  int // set before killed is closed
	reason  string
	done    chan struct{}
	status  caisson.ExitStatus
}

func startProc(pid int, req caisson.ExecRequest, run program, ended func()) (*proc, error) {
	p := &proc{
		name: req.Command[0], pid: pid, tty: req.TTY, detach: req.Detach, resized: make(chan [2]uint16, 1), killed: make(chan struct{}), done: make(chan struct{}),
	}
	var err [3]error
	p.in, p.stdin, err[0] = os.Pipe()
	p.stdout, p.out, err[1] = os.Pipe()
	p.stderr, p.err, err[2] = os.Pipe()
	if err := errors.Join(err[:]...); err != nil {
		return nil, caisson.Wrap(err, caisson.Exhausted, "no pipes left")
	}
	if !req.Stdin {
		p.stdin.Close()
		p.stdin = nil
	}
	if d := time.Duration(req.Timeout); d > 0 {
		t := time.AfterFunc(d, func() { p.end(9, "time limit") })
		go func() { <-p.done; t.Stop() }()
	}
	go func() {
		code := run(p, req.Command[1:])
		p.in.Close()
		if !p.held {
			p.out.Close()
			p.err.Close()
		}
		p.status = caisson.ExitStatus{Code: code}
		select {
		case <-p.killed:
			p.status = caisson.ExitStatus{Code: 128 + p.signal, Signal: p.signal, Reason: p.reason}
		default:
		}
		ended()
		close(p.done)
	}()
	return p, nil
}

func (p *proc) end(signal int, reason string) {
	p.kill.Do(func() {
		p.signal, p.reason = signal, reason
		close(p.killed)
		p.in.Close()
		p.out.Close()
		p.err.Close()
	})
}

func (p *proc) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *proc) PID() int { return p.pid }

func (p *proc) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

func (p *proc) Stdout() io.Reader { return p.stdout }
func (p *proc) Stderr() io.Reader { return p.stderr }

func (p *proc) Resize(rows, cols uint16) error {
	if !p.tty {
		return caisson.Errorf(caisson.Conflict, "the process has no terminal")
	}
	select {
	case p.resized <- [2]uint16{rows, cols}:
	default:
	}
	return nil
}

func (p *proc) Signal(_ context.Context, signal int) error {
	if signal < 1 || signal > 64 {
		return caisson.Invalidf("signal", "%d is not a signal", signal)
	}
	if p.ended() {
		return caisson.Errorf(caisson.NotFound, "the process has ended")
	}
	if signal != 28 { // SIGWINCH
		p.end(signal, "")
	}
	return nil
}

func (p *proc) Wait(ctx context.Context) (caisson.ExitStatus, error) {
	select {
	case <-p.done:
		return p.status, nil
	case <-ctx.Done():
		return caisson.ExitStatus{Code: -1, Unknown: true}, ctx.Err()
	}
}

func (p *proc) Close() error {
	if p.detach {
		p.stdout.Close()
		p.stderr.Close()
		return nil
	}
	p.end(9, "")
	<-p.done
	if p.stdin != nil {
		p.stdin.Close()
	}
	p.stdout.Close()
	p.stderr.Close()
	return nil
}
