package coretest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/guestd"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/runtime/fake"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
)

// counter counts the running processes that tests have started in sandboxes.
type counter struct{ running atomic.Int64 } // running is the number of these processes that run now

// programs returns the programs that all sandboxes have, by path, in addition to those of package guest.
func (w *World) programs() map[string]func([]string) fake.Program {
	list := map[string]func([]string) fake.Program{
		"/.caisson/init": func([]string) fake.Program {
			return fake.Func(func(context.Context, *fake.Proc) int { return 0 })
		},
		task.ProgramPath: func([]string) fake.Program { return fake.Func(w.agents.drive) },
		"/usr/bin/sh":    func([]string) fake.Program { return fake.Func(w.shell) },
	}
	for name, run := range map[string]fake.Func{
		"true": func(context.Context, *fake.Proc) int { return 0 },
		"echo": guestdProgram, "cat": guestdProgram, "exit": guestdProgram,
		"fail": fail, "flood": flood, "leave": leaveChild, "shut": closeInput, "size": size, "binary": binary,
	} {
		list["/usr/bin/"+name] = func([]string) fake.Program { return w.live.count(run) }
	}
	list["/usr/bin/sleep"] = func([]string) fake.Program { return sleeper{w.live} }
	return list
}

// count returns a program that calls run and is counted while it runs.
func (c *counter) count(run fake.Func) fake.Func {
	return func(ctx context.Context, p *fake.Proc) int {
		c.running.Add(1)
		defer c.running.Add(-1)
		return run(ctx, p)
	}
}

// sleeper runs until it is killed. Checkpoints can capture it.
type sleeper struct{ live *counter } // live counts the process while it runs

// Run implements [fake.Program].
func (s sleeper) Run(ctx context.Context, p *fake.Proc) int {
	return s.live.count(func(ctx context.Context, _ *fake.Proc) int { <-ctx.Done(); return 0 })(ctx, p)
}

func (sleeper) Memory() ([]byte, error)    { return nil, nil } // a sleeper has no state to save
func (sleeper) RestoreMemory([]byte) error { return nil }      // a sleeper has no state to restore

// guestdProgram runs the test program of package guestd that has the same name as the process.
func guestdProgram(ctx context.Context, p *fake.Proc) int {
	return guestd.Run(ctx, &guestd.ProcessEnv{
		Args: append([]string{"test", filepath.Base(p.Args()[0])}, p.Args()[1:]...), In: p.Stdin(), Out: p.Stdout(), Err: p.Stderr(),
	})
}

// fail prints "no" to its standard error and exits with the code 1.
func fail(_ context.Context, p *fake.Proc) int {
	io.WriteString(p.Stderr(), "no\n")
	return 1
}

// flood writes a number of bytes, which is its argument, to each output.
func flood(_ context.Context, p *fake.Proc) int {
	n, err := strconv.ParseInt(p.Args()[1], 10, 64)
	if err != nil {
		return 2
	}
	var wg sync.WaitGroup
	for _, w := range []io.Writer{p.Stdout(), p.Stderr()} {
		wg.Go(func() { io.Copy(w, io.LimitReader(pattern{}, n)) })
	}
	wg.Wait()
	return 0
}

// leaveChild starts a child process that keeps the outputs open, and exits.
func leaveChild(_ context.Context, p *fake.Proc) int {
	io.WriteString(p.Stdout(), "left\n")
	if _, err := p.Spawn(fake.Child{Args: []string{guest.Path, "test", "sleep", "24h"}}); err != nil {
		return 1
	}
	return 0
}

// closeInput closes its input and runs until it is killed.
func closeInput(ctx context.Context, p *fake.Proc) int {
	p.CloseStdin()
	io.WriteString(p.Stdout(), "shut\n")
	<-ctx.Done()
	return 0
}

// size waits until its terminal has 50 rows, and prints the size of the terminal.
func size(ctx context.Context, p *fake.Proc) int {
	changed := p.Catch(syscall.SIGWINCH)
	for {
		if rows, cols, err := p.TerminalSize(); err == nil && rows == 50 {
			io.WriteString(p.Stdout(), strconv.Itoa(int(rows))+" "+strconv.Itoa(int(cols))+"\n")
			return 0
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 1
		}
	}
}

// binary prints bytes that are not UTF-8.
func binary(_ context.Context, p *fake.Proc) int {
	p.Stdout().Write([]byte{0xff, 0, 0xfe})
	return 0
}

// pattern is an endless stream that repeats the 16 bytes "0123456789abcdef".
type pattern struct{}

// Read returns as many whole repetitions of the 16 bytes as p has space for.
func (pattern) Read(p []byte) (int, error) {
	copy(p, bytes.Repeat([]byte("0123456789abcdef"), len(p)/16+1))
	return len(p) / 16 * 16, nil
}

// sandboxOf returns the sandbox of a process.
func sandboxOf(p *fake.Proc) caisson.ID { return caisson.ID(filepath.Base(filepath.Dir(p.Root()))) }

// shell runs the scripts with which the relay uses git in sandboxes: sh -c SCRIPT git DIR .... It runs them on the host, in the
// directory with the sandbox's files. Its configuration of git replaces the URL of the relay by that of the test's HTTP server.
func (w *World) shell(ctx context.Context, p *fake.Proc) int {
	args := append([]string{}, p.Args()[1:]...)
	if len(args) < 4 || args[0] != "-c" || args[2] != "git" {
		io.WriteString(p.Stderr(), "this shell runs only scripts of the relay\n")
		return 127
	}
	args[3] = filepath.Join(p.Root(), args[3])
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Env = append(gitEnv(), "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_CONFIG_KEY_1=url."+w.remotes.relayURL(sandboxOf(p))+".insteadOf", "GIT_CONFIG_VALUE_1=http://git.caisson.internal/")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.Stdin(), p.Stdout(), p.Stderr()
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		io.WriteString(p.Stderr(), err.Error()+"\n")
		return 126
	}
	return 0
}
