package credential

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
)

// commandTimeout is the timeout of a program that prints the key. commandGrace is how long its output is read after the program
// has exited or was killed, because a grandchild may keep the pipe open.
const (
	commandTimeout = 10 * time.Second
	commandGrace   = time.Second
)

// runKeyCommand runs a program and returns the key that it prints. Errors include neither its output nor its arguments, because
// they may be the key, or grant access to it.
func runKeyCommand(ctx context.Context, argv []string) (caisson.Secret, error) {
	limited, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out := &limitedBuffer{limit: maxKeyFile, onExceeded: cancel}
	defer func() { clear(out.b.Bytes()) }()
	cmd := exec.CommandContext(limited, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8"}
	cmd.Dir = "/"
	cmd.Stdout = out
	cmd.WaitDelay = commandGrace
	// The command is started in a process group of its own, so that its children are killed with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return caisson.Secret{}, ctx.Err()
	case out.exceeded:
		return caisson.Secret{}, caisson.Errorf(caisson.Conflict, "the command %s for the key of credentials printed too much; it should print one line AGE-SECRET-KEY-1…", argv[0])
	case limited.Err() != nil:
		return caisson.Secret{}, caisson.Errorf(caisson.Unavailable, "the command %s for the key of credentials did not end within %s", argv[0], commandTimeout)
	case err != nil:
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return caisson.Secret{}, caisson.Errorf(caisson.Unavailable, "the command %s for the key of credentials failed: %s; run it by hand to see why", argv[0], exit.ProcessState)
		}
		return caisson.Secret{}, caisson.Wrap(err, caisson.Unavailable, "the command %s for the key of credentials cannot be run", argv[0])
	}
	key := caisson.NewSecret(strings.TrimSpace(out.b.String()))
	if key.IsZero() {
		return key, caisson.Errorf(caisson.Conflict, "the command %s for the key of credentials printed nothing", argv[0])
	}
	return key, nil
}

// limitedBuffer is a buffer for at most limit bytes. A write that exceeds the limit sets exceeded, calls onExceeded and returns
// an error.
type limitedBuffer struct {
	b          bytes.Buffer // the content of the buffer
	limit      int          // maximum size of the buffer in bytes
	exceeded   bool         // whether a write has exceeded limit
	onExceeded func()       // called when a write exceeds limit
}

func (w *limitedBuffer) Write(p []byte) (int, error) {
	if w.b.Len()+len(p) > w.limit {
		w.exceeded = true
		w.onExceeded()
		return 0, errors.New("too much output")
	}
	return w.b.Write(p)
}
