package sshserver

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/sshproxy"
	"github.com/caisson-dev/caisson/job/worker"
)

// jobFunc is a job that the test plays.
type jobFunc func(*sshproxy.Conn)

// Run implements [worker.Starter].
func (f jobFunc) Run(ctx context.Context, req worker.Request, _ any) error {
	fd, err := unix.FcntlInt(req.Files[1].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c, err := sshproxy.NewConn(os.NewFile(uintptr(fd), "channel"))
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	f(c)
	return ctx.Err()
}

// countedProcesses counts the processes that are started.
type countedProcesses struct {
	caisson.Processes // nil: other calls panic
	started           atomic.Int32
}

// Exec implements [caisson.Processes].
func (p *countedProcesses) Exec(context.Context, string, caisson.ExecRequest) (caisson.Process, error) {
	p.started.Add(1)
	return nil, caisson.Errorf(caisson.Unavailable, "none")
}

// TestHostileJob tests that a job that was taken over by a stranger gets nothing, and is ended when it breaks the protocol.
func TestHostileJob(t *testing.T) {
	start := &sshproxy.Start{Kind: sshproxy.KindExec, Command: "id"}
	in := &user{caller: caisson.Caller{Account: "a"}, ref: "x"}
	for name, tt := range map[string]struct {
		who     *user
		say     []any
		started int32
	}{
		"a process without login":    {nil, []any{sshproxy.Request{ID: 1, Start: start}}, 0},
		"a connection without login": {nil, []any{sshproxy.Request{ID: 1, Dial: &sshproxy.Dial{Network: "tcp", Address: "localhost:1"}}}, 0},
		"after a refused login": {nil, []any{
			sshproxy.Request{ID: 1, Login: &sshproxy.Login{User: "x", Key: []byte("k"), Signed: true}}, sshproxy.Request{ID: 2, Start: start},
		}, 0},
		"a login that is not needed": {in, []any{sshproxy.Request{ID: 1, Login: &sshproxy.Login{User: "y", Key: []byte("k"), Signed: true}}}, 0},
		"an id twice":                {in, []any{sshproxy.Request{ID: 1, Start: start}, sshproxy.Request{ID: 1, Start: start}}, 1},
		"another kind":               {in, []any{sshproxy.Request{ID: 1, Start: &sshproxy.Start{Kind: "root"}}}, 0},
		"a long command":             {in, []any{sshproxy.Request{ID: 1, Start: &sshproxy.Start{Kind: sshproxy.KindExec, Command: strings.Repeat("x", sshproxy.MaxCommand+1)}}}, 0},
		"much to sign":               {in, []any{sshproxy.Request{ID: 1, Sign: make([]byte, sshproxy.MaxSigned+1)}}, 0},
		"unknown fields":             {in, []any{map[string]any{"id": 1, "host": "/etc"}}, 0},
		"no object":                  {in, []any{"x"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			processes := &countedProcesses{}
			ended := make(chan struct{})
			s, err := New(Config{
				Processes: processes, HostKey: caisson.NewSecret(strings.Repeat("k", 32)), Log: slog.New(slog.DiscardHandler),
				Jobs: jobFunc(func(c *sshproxy.Conn) {
					defer close(ended)
					for _, m := range tt.say {
						if err := c.Send(m); err != nil {
							return
						}
					}
					for { // until the daemon ends the channel
						var a sshproxy.Reply
						if _, err := c.Receive(&a, 3); err != nil {
							return
						}
					}
				}),
			})
			if err != nil {
				t.Fatal(err)
			}
			login := loginFunc(nil)
			if tt.who == nil {
				login = func(context.Context, string, []byte, bool) (*user, error) {
					return nil, caisson.Errorf(caisson.Unauthed, "not known")
				}
			}
			s.serve(t.Context(), null(t), tt.who, login)
			<-ended
			if n := processes.started.Load(); n > tt.started {
				t.Errorf("%d processes were started", n)
			}
		})
	}
}
