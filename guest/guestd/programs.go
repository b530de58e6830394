package guestd

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/errno"
)

// A testProgram is a test program: a part of guestd that tests of runtimes start in a sandbox with "guestd test NAME".
type testProgram struct {
	args string                                 // names of the arguments, for the usage message
	min  int                                    // minimum number of arguments of the program
	run  func(context.Context, *ProcessEnv) int // runs the program and returns its exit code
}

// testPrograms returns the test programs by name.
func testPrograms() map[string]testProgram {
	return map[string]testProgram{
		"alloc":       {"BYTES", 1, alloc},
		"cat":         {"", 0, cat},
		"counter":     {"[FILE]", 0, counter},
		"echo":        {"[ARG...]", 0, echo},
		"env":         {"", 0, env},
		"exit":        {"CODE", 1, exit},
		"fill":        {"FILE BYTES", 2, fill},
		"ignore-term": {"", 0, ignoreTerm},
		"serve":       {"NETWORK ADDRESS MODE", 3, serveConnections},
		"sleep":       {"DURATION", 1, sleep},
		"spawn":       {"COUNT", 1, spawnMany},
		"stat":        {"PATH", 1, stat},
		"tty":         {"", 0, tty},
	}
}

// runTestProgram implements "guestd test": it runs the test program that the first argument names.
func runTestProgram(ctx context.Context, p *ProcessEnv) int {
	if len(p.Args) == 0 {
		return p.fail(exitUsage, "test: no program given")
	}
	name := p.Args[0]
	prog, ok := testPrograms()[name]
	if !ok {
		return p.fail(exitNotFound, "test: no program "+strconv.Quote(name))
	}
	sub := *p
	sub.Args = p.Args[1:]
	if len(sub.Args) < prog.min {
		return p.fail(exitUsage, "usage: test "+name+" "+prog.args)
	}
	return prog.run(ctx, &sub)
}

// fail prints the error message why and returns code, the exit code.
func (p *ProcessEnv) fail(code int, why string) int {
	printError(p.Err, errors.New(why))
	return code
}

// print writes a line to standard output.
func (p *ProcessEnv) print(line string) { io.WriteString(p.Out, line+"\n") }

// number parses the argument with index i as a number from 0 to limit. After an error, it prints the error and ok is false.
func (p *ProcessEnv) number(i int, limit int64) (n int64, ok bool) {
	n, err := strconv.ParseInt(p.Args[i], 10, 64)
	if err != nil || n < 0 || n > limit {
		p.fail(exitUsage, strconv.Quote(p.Args[i])+" is not a number from 0 to "+strconv.FormatInt(limit, 10))
		return 0, false
	}
	return n, true
}

// echo is a test program that prints its arguments.
func echo(_ context.Context, p *ProcessEnv) int {
	p.print(strings.Join(p.Args, " "))
	return 0
}

// cat is a test program that copies its input to its output.
func cat(_ context.Context, p *ProcessEnv) int {
	if _, err := io.Copy(p.Out, p.In); err != nil {
		return p.fail(exitFailure, err.Error())
	}
	return 0
}

// exit is a test program that exits with the code in its argument.
func exit(_ context.Context, p *ProcessEnv) int {
	n, ok := p.number(0, 255)
	if !ok {
		return exitUsage
	}
	return int(n)
}

// env is a test program that prints its environment, one variable per line.
func env(_ context.Context, p *ProcessEnv) int {
	for _, kv := range p.Env {
		p.print(kv)
	}
	return 0
}

// sleep is a test program that sleeps for the duration in its argument.
func sleep(ctx context.Context, p *ProcessEnv) int {
	d, err := time.ParseDuration(p.Args[0])
	if err != nil {
		return p.fail(exitUsage, err.Error())
	}
	return p.wait(ctx, d)
}

// wait waits for the duration d, and returns the exit code of the program: 0, or exitFailure if ctx ends first.
func (p *ProcessEnv) wait(ctx context.Context, d time.Duration) int {
	select {
	case <-ctx.Done():
		return exitFailure
	case <-time.After(d):
		return 0
	}
}

// counter is a test program that answers every line of input with the next number, which it keeps in memory. If its argument
// names a file, it writes the next number to the file every counterInterval instead.
func counter(ctx context.Context, p *ProcessEnv) int {
	if len(p.Args) > 0 {
		return countInto(ctx, p, p.absPath(p.Args[0]))
	}
	in := bufio.NewReader(p.In)
	for n := 1; ; n++ {
		if _, err := in.ReadSlice('\n'); err == io.EOF {
			return 0
		} else if err != nil {
			return p.fail(exitFailure, err.Error())
		}
		p.print(strconv.Itoa(n))
	}
}

// counterInterval is the time between two numbers that the test program counter writes to a file.
const counterInterval = 20 * time.Millisecond

// countInto replaces the content of file by the next number every counterInterval.
func countInto(ctx context.Context, p *ProcessEnv, file string) int {
	fs, err := openFilesystem(p.Root)
	if err != nil {
		return p.fail(exitFailure, err.Error())
	}
	defer fs.close()
	for n := 1; ; n++ {
		d, err := fs.createPending(file, 0o644)
		if err == nil {
			if _, err = d.WriteString(strconv.Itoa(n) + "\n"); err != nil {
				d.discard()
			} else {
				_, err = d.commit()
			}
		}
		if err != nil {
			return p.fail(exitFailure, err.Error())
		}
		if code := p.wait(ctx, counterInterval); code != 0 {
			return code
		}
	}
}

// stat is a test program that prints the type, mode, uid, gid and size of a file, and the target of a symlink, which it does not
// follow.
func stat(_ context.Context, p *ProcessEnv) int {
	fs, err := openFilesystem(p.Root)
	if err != nil {
		return p.fail(exitFailure, err.Error())
	}
	defer fs.close()
	at, err := fs.locate(p.absPath(p.Args[0]))
	if err != nil {
		return p.fail(exitFailure, message(errno.Wrap(err)))
	}
	defer at.close()
	e, err := at.stat()
	if err != nil {
		return p.fail(exitFailure, message(errno.Wrap(err)))
	}
	info, err := e.info(at.path, at.name)
	if err != nil {
		return p.fail(exitFailure, err.Error())
	}
	line := []string{info.Type, info.Mode, strconv.Itoa(info.UID), strconv.Itoa(info.GID), strconv.FormatInt(info.Size, 10)}
	p.print(strings.TrimSpace(strings.Join(append(line, info.Target), " ")))
	return 0
}

// fill is a test program that writes zeros to a file until the file has the given size or writing fails, and prints the number of
// bytes written and the error.
func fill(ctx context.Context, p *ProcessEnv) int {
	want, ok := p.number(1, math.MaxInt64)
	if !ok {
		return exitUsage
	}
	done, err := fillFile(ctx, p, p.absPath(p.Args[0]), want)
	line := strconv.FormatInt(done, 10)
	if err != nil {
		p.print(line + " " + errorText(err))
		return exitFailure
	}
	p.print(line)
	return 0
}

// fillFile writes want zero bytes to the file at the path name, and returns the number of bytes written.
func fillFile(ctx context.Context, p *ProcessEnv, name string, want int64) (done int64, err error) {
	fs, err := openFilesystem(p.Root)
	if err != nil {
		return 0, err
	}
	defer fs.close()
	f, err := fs.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zeros := make([]byte, chunkSize)
	for done < want && ctx.Err() == nil {
		n, err := f.Write(zeros[:min(want-done, chunkSize)])
		done += int64(n)
		if err != nil {
			return done, err
		}
	}
	return done, ctx.Err()
}

// alloc is a test program that allocates memory, touches every page, prints the size, and keeps the memory until its input ends.
func alloc(ctx context.Context, p *ProcessEnv) int {
	want, ok := p.number(0, math.MaxInt64)
	if !ok {
		return exitUsage
	}
	var held [][]byte
	for done := int64(0); done < want && ctx.Err() == nil; {
		b := make([]byte, min(want-done, 1<<20))
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
		done += int64(len(b))
	}
	p.print(p.Args[0])
	io.Copy(io.Discard, p.In)
	runtime.KeepAlive(held)
	return 0
}

// spawnMany is a test program that starts up to the given number of children, prints how many could be started, and kills them.
func spawnMany(ctx context.Context, p *ProcessEnv) int {
	want, ok := p.number(0, 1<<20)
	if !ok {
		return exitUsage
	}
	n := 0
	for ; p.Spawn != nil && int64(n) < want && ctx.Err() == nil; n++ {
		kill, err := p.Spawn()
		if err != nil {
			break
		}
		defer kill()
	}
	p.print(strconv.Itoa(n))
	return 0
}

// tty is a test program that prints the size of its terminal as "ROWS COLS", at once and after every SIGWINCH.
func tty(ctx context.Context, p *ProcessEnv) int {
	if p.TerminalSize == nil || p.Notify == nil {
		return p.fail(exitFailure, "not a terminal")
	}
	changed := p.Notify(syscall.SIGWINCH)
	for {
		rows, cols, err := p.TerminalSize()
		if err != nil {
			return p.fail(exitFailure, "not a terminal")
		}
		p.print(strconv.Itoa(int(rows)) + " " + strconv.Itoa(int(cols)))
		select {
		case <-ctx.Done():
			return exitFailure
		case <-changed:
		}
	}
}

// ignoreTerm is a test program that prints "ready", and "ignored" for every SIGTERM; only SIGKILL ends it.
func ignoreTerm(ctx context.Context, p *ProcessEnv) int {
	var terminated <-chan syscall.Signal
	if p.Notify != nil {
		terminated = p.Notify(syscall.SIGTERM)
	}
	p.print("ready")
	for {
		select {
		case <-ctx.Done():
			return exitFailure
		case <-terminated:
			p.print("ignored")
		}
	}
}
