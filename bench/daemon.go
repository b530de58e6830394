package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// daemon is a "caisson serve" process with its own data directory, and a client of it.
type daemon struct {
	dir string         // The data directory.
	cmd *exec.Cmd      // The process of "caisson serve".
	api *client.Client // A client of the daemon.
}

// startDaemon starts a daemon with default settings and the additional arguments args, and returns when the daemon accepts
// requests. name is the name of its data directory in cfg.Dir.
func startDaemon(ctx context.Context, cfg Config, name string, args ...string) (*daemon, error) {
	d := &daemon{dir: filepath.Join(cfg.Dir, name)}
	log, err := os.Create(d.dir + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	ready, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	d.cmd = exec.CommandContext(ctx, filepath.Join(cfg.Bin, "caisson"), append([]string{"serve", "--data", d.dir}, args...)...)
	d.cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "CAISSON_READY_FD=3"}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.ExtraFiles = []*os.File{theirs}
	d.cmd.Cancel = func() error { return d.cmd.Process.Signal(syscall.SIGTERM) }
	d.cmd.WaitDelay = 10 * time.Second
	err = d.cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(ready).ReadString('\n')
	if line = strings.TrimSpace(line); line != "ok" {
		return nil, errors.Join(fmt.Errorf("the daemon says %q; see %s", line, log.Name()), err, d.stop())
	}
	d.api, err = client.New(client.Config{Socket: filepath.Join(d.dir, "caisson.sock")})
	return d, err
}

// stop stops the daemon. Sandboxes keep running.
func (d *daemon) stop() error {
	if d.api != nil {
		d.api.Close()
	}
	d.cmd.Process.Signal(syscall.SIGTERM)
	var exit *exec.ExitError
	if err := d.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// create creates an idle sandbox of the host image.
func (d *daemon) create(ctx context.Context) (id string, err error) {
	sb, err := d.api.Create(ctx, caisson.CreateRequest{})
	if err != nil {
		return "", err
	}
	return string(sb.ID), nil
}

// program is the program that the benchmarks run. It does nothing.
const program = "/usr/bin/true"

// exec runs program in a sandbox, with a single request.
func (d *daemon) exec(ctx context.Context, id string) error { return d.execute(ctx, id, program) }

// execute runs a command in a sandbox, with a single request.
func (d *daemon) execute(ctx context.Context, id string, command ...string) error {
	res, err := d.api.Run(ctx, id, protocol.ProcessRequest{ExecRequest: caisson.ExecRequest{Command: command}})
	if err != nil {
		return err
	}
	if !res.Exit.Success() {
		return fmt.Errorf("%s %s", command[0], res.Exit)
	}
	return nil
}

// sandboxDir returns the directory of a sandbox.
func (d *daemon) sandboxDir(id string) string { return filepath.Join(d.dir, "sandboxes", id) }

// runtimeDir returns the part of the directory of a sandbox that belongs to the runtime.
func (d *daemon) runtimeDir(id string) string { return filepath.Join(d.sandboxDir(id), "runtime") }
