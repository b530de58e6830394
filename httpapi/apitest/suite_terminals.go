package apitest

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

func testTerminals(t *testing.T, ctx context.Context, c Cores) {
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{}).ID)
	list := func() []caisson.Terminal { return must(c.Terminals.ListTerminals(ctx, sb))(t) }
	if got := list(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	made := must(c.Terminals.CreateTerminal(ctx, sb, caisson.TerminalRequest{Command: []string{"cat"}, Rows: 20, Cols: 70}))(t)
	attach := func(req caisson.AttachRequest) caisson.Process {
		t.Helper()
		return must(c.Terminals.AttachTerminal(ctx, sb, made.ID, req))(t)
	}
	sees := func(p caisson.Process, want string) {
		t.Helper()
		seen, b := "", make([]byte, 100)
		for !strings.Contains(seen, want) {
			n, err := p.Stdout().Read(b)
			if seen += string(b[:n]); err != nil {
				t.Fatalf("%q, %v", seen, err)
			}
		}
	}
	p := attach(caisson.AttachRequest{Rows: 21, Cols: 71})
	if p.PID() != made.PID {
		t.Errorf("pid %d is not %d", p.PID(), made.PID)
	}
	io.WriteString(p.Stdin(), "one\n")
	sees(p, "one\r\none\r\n")
	succeeds(t, p.Close())

	// The program runs on without a viewer, and its output is kept. A second writer replaces the first, which gets a message
	// about that.
	p = attach(caisson.AttachRequest{})
	defer p.Close()
	sees(p, "one\r\none\r\n")
	viewer := attach(caisson.AttachRequest{ReadOnly: true})
	defer viewer.Close()
	if viewer.Stdin() != nil {
		t.Error("a viewer has an input")
	}
	Fails(t, viewer.Resize(1, 1), caisson.Conflict, "")
	second := attach(caisson.AttachRequest{})
	defer second.Close()
	b := make([]byte, 200)
	if n, err := p.Stderr().Read(b); err != nil || !strings.Contains(string(b[:n]), "only view") {
		t.Errorf("%q, %v", b[:n], err)
	}
	io.WriteString(p.Stdin(), "ignored\n")
	io.WriteString(second.Stdin(), "two\n")
	sees(viewer, "two\r\ntwo\r\n")
	succeeds(t, second.Resize(22, 72))
	poll.Until(t, Timeout, func() bool { return len(list()) == 1 && list()[0].Viewers == 3 && list()[0].Rows == 22 })
	if got := list()[0]; got.ID != made.ID || got.Rows != 22 || got.Cols != 72 || got.Exit != nil || got.Command[0] != "cat" {
		t.Errorf("%+v", got)
	}
	io.WriteString(second.Stdin(), "\x04")
	for _, p := range []caisson.Process{p, viewer, second} {
		if out, _, status := collectOutput(t, ctx, p); !status.Success() || strings.Contains(out, "ignored") {
			t.Errorf("%q, %+v", out, status)
		}
	}
	poll.Until(t, Timeout, func() bool { return len(list()) == 0 })

	other := must(c.Terminals.CreateTerminal(ctx, sb, caisson.TerminalRequest{Command: []string{"sleep"}}))(t)
	killed := must(c.Terminals.AttachTerminal(ctx, sb, other.ID, caisson.AttachRequest{}))(t)
	defer killed.Close()
	succeeds(t, c.Terminals.RemoveTerminal(ctx, sb, other.ID))
	if _, _, status := collectOutput(t, ctx, killed); status.Signal == 0 {
		t.Errorf("%+v", status)
	}

	poll.Until(t, Timeout, func() bool { return caisson.KindOf(c.Terminals.RemoveTerminal(ctx, sb, other.ID)) == caisson.NotFound })
	_, err := c.Terminals.AttachTerminal(ctx, sb, other.ID, caisson.AttachRequest{})
	Fails(t, err, caisson.NotFound, "")
	_, err = c.Terminals.AttachTerminal(ctx, sb, "../../../run/x", caisson.AttachRequest{})
	if kind := caisson.KindOf(err); kind != caisson.Invalid && kind != caisson.NotFound {
		t.Error(err)
	}
	_, err = c.Terminals.AttachTerminal(ctx, "nobody", made.ID, caisson.AttachRequest{})
	Fails(t, err, caisson.NotFound, "")
	_, err = c.Terminals.CreateTerminal(ctx, sb, caisson.TerminalRequest{})
	Fails(t, err, caisson.Invalid, "command")
	_, err = c.Terminals.CreateTerminal(ctx, sb, caisson.TerminalRequest{Command: []string{"a"}, Workdir: "x"})
	Fails(t, err, caisson.Invalid, "workdir")

	_, err = c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Interactive: true})
	Fails(t, err, caisson.Invalid, "interactive")
	must(c.Agents.PutAgent(ctx, caisson.Agent{
		ID: "typist", Name: "Typist", Image: "host", Driver: caisson.DriverExec, Command: []string{"cat"}, Interactive: []string{"cat"}, Models: []string{"-"},
	}))(t)
	_, err = c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "typist", Interactive: true, Prompt: "true"})
	Fails(t, err, caisson.Invalid, "prompt")
	_, err = c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "typist", Interactive: true, Session: "s"})
	Fails(t, err, caisson.Invalid, "session")
}
