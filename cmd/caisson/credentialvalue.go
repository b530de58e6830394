package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/credential"
)

// credentialValue contains the name of a credential and the source of its value.
type credentialValue struct {
	Name    string   `arg:"" help:"Name, in the form of an environment variable's name." complete:"credential"`
	Rest    []string `arg:"" optional:"" passthrough:"" name:"-" help:"- for standard input; with --command, the program and its arguments."`
	Env     string   `help:"Use the value of an environment variable." placeholder:"VARIABLE"`
	File    string   `help:"Use the content of a file." placeholder:"FILE" complete:"file"`
	Command bool     `help:"Run the program that follows, without a shell, and use its output."`
}

// maxLine is the maximum length in bytes of a line that Linux accepts from a terminal; it discards the rest of a longer one.
const maxLine = 4095

// ProvideValue checks the name of the credential and reads its value.
func (c *credentialValue) ProvideValue(ctx context.Context, a *app, k *kong.Context) (caisson.Secret, error) {
	if err := credential.CheckName(c.Name); err != nil {
		return caisson.Secret{}, err
	}
	value, err := c.read(ctx, a, strings.TrimPrefix(k.Selected().FullPath(), "caisson "))
	if err != nil {
		return value, err
	}
	return value, credential.CheckValue(value)
}

// read returns the value of the credential from the source that the arguments specify.
func (c *credentialValue) read(ctx context.Context, a *app, command string) (caisson.Secret, error) {
	rest := trimDashes(c.Rest)
	stdin := !c.Command && len(rest) == 1 && rest[0] == "-"
	given := 0
	for _, is := range []bool{c.Env != "", c.File != "", c.Command, stdin} {
		if is {
			given++
		}
	}
	switch {
	case !c.Command && len(rest) > 0 && !stdin:
		return caisson.Secret{}, usagef(command, "a value is never an argument: every user of this machine can see those, and the shell keeps them; leave it out to be prompted for it. If that was a real one, replace it at its provider")
	case given > 1:
		return caisson.Secret{}, usagef(command, "give one of --env, --file, --command and -")
	case c.Command && len(rest) == 0:
		return caisson.Secret{}, usagef(command, "--command needs a program; write it after --")
	case c.Command:
		return runValueCommand(ctx, a, rest)
	case c.Env != "":
		v := caisson.NewSecret(a.getenv(c.Env))
		if v.IsZero() {
			return v, caisson.Invalidf("env", "the environment variable %.100s is not set, or empty", c.Env)
		}
		return v, nil
	case c.File != "":
		return readValueFile(c.File)
	case !stdin && isTerminal(a.in):
		return a.promptSecret(ctx, fmt.Sprintf("value of %s: ", c.Name))
	}
	return readValue(a.in, "standard input")
}

// readValue reads the value of a credential from r and removes line breaks at its end. from names the source in errors.
func readValue(r io.Reader, from string) (caisson.Secret, error) {
	b, err := io.ReadAll(io.LimitReader(r, credential.MaxValue+3)) // a line break, and 1 byte to detect a value that is too long
	defer clear(b)
	if err != nil {
		return caisson.Secret{}, caisson.Invalidf("value", "%s cannot be read: %s", from, err)
	}
	v := caisson.NewSecret(strings.TrimRight(string(b), "\r\n"))
	if v.IsZero() {
		return v, caisson.Invalidf("value", "%s is empty", from)
	}
	return v, nil
}

// readValueFile returns the content of a file as the value of a credential.
func readValueFile(file string) (caisson.Secret, error) {
	f, err := os.Open(file)
	if err != nil {
		return caisson.Secret{}, localError("file", file, err)
	}
	defer f.Close()
	return readValue(f, "the file")
}

// runValueCommand runs a program and returns its output as the value of a credential. The program has this command's environment,
// standard input and standard error, so that it can prompt for a password.
func runValueCommand(ctx context.Context, a *app, argv []string) (caisson.Secret, error) {
	var none caisson.Secret
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stderr = a.in, a.err
	out, err := cmd.StdoutPipe()
	if err != nil {
		return none, err
	}
	if err := cmd.Start(); err != nil {
		return none, caisson.Wrap(err, caisson.Invalid, "the program %.100s cannot be run", argv[0])
	}
	v, readErr := readValue(out, "the output of the program")
	_ = out.Close() // a program that still writes, because its output is too long, then gets SIGPIPE
	err = cmd.Wait()
	switch exit, failed := errors.AsType[*exec.ExitError](err); {
	case ctx.Err() != nil:
		return none, ctx.Err()
	case failed && len(v.Reveal()) <= credential.MaxValue:
		return none, caisson.Wrap(err, caisson.Invalid, "the program %.100s failed: %s", argv[0], exit.ProcessState)
	case err != nil && !failed:
		return none, err
	}
	return v, readErr
}

// promptSecret prompts for a line on the terminal, without echo.
func (a *app) promptSecret(ctx context.Context, prompt string) (caisson.Secret, error) {
	var none caisson.Secret
	in, ok := a.in.(*os.File)
	if !ok {
		return none, errors.New("standard input is not a terminal")
	}
	state, err := term.GetState(int(in.Fd()))
	if err != nil {
		return none, fmt.Errorf("read the terminal's state: %w", err)
	}
	fmt.Fprint(a.err, prompt)
	value, err := await(ctx, func() (caisson.Secret, error) {
		defer a.restoreOnPanic()
		b, err := term.ReadPassword(int(in.Fd()))
		defer clear(b)
		return caisson.NewSecret(string(b)), err
	})
	fmt.Fprintln(a.err)
	switch {
	case ctx.Err() != nil:
		_ = term.Restore(int(in.Fd()), state)
		return none, ctx.Err()
	case errors.Is(err, io.EOF) || err == nil && value.IsZero():
		return none, caisson.Invalidf("value", "nothing was entered")
	case err != nil:
		return none, fmt.Errorf("read from the terminal: %w", err)
	case len(value.Reveal()) >= maxLine:
		return none, caisson.Invalidf("value", "a terminal cuts off lines of more than %d bytes; use --file or standard input", maxLine)
	}
	return value, nil
}
