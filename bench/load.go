package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// Names of the programs in Config.Bin that measure networks.
const (
	loadProgram    = "bench-load"    // The command in bench/load.
	gatewayProgram = "bench-gateway" // The command in bench/gateway.
)

// A server is a child process that listens on a port of this network namespace.
type server struct {
	cmd  *exec.Cmd
	port int          // The port on which it listens.
	out  bytes.Buffer // Standard output; may be read when the method end has returned.
	err  bytes.Buffer // Standard error; may be read when the method end has returned.
	stop func() error // Makes the process exit.
}

// startServer starts a program of Config.Bin with a listener as descriptor 3. The server is stopped by closing its standard
// input.
func (s traffic) startServer(ctx context.Context, program string, args ...string) (*server, error) {
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	v := &server{cmd: exec.CommandContext(ctx, filepath.Join(s.Bin, program), args...), port: l.Addr().(*net.TCPAddr).Port}
	v.cmd.Env, v.cmd.ExtraFiles, v.cmd.Stdout, v.cmd.Stderr = []string{}, []*os.File{file}, &v.out, &v.err
	in, err := v.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	v.stop = in.Close
	return v, v.cmd.Start()
}

// startLoad starts a server of the load program: "model" or "sink". The server is stopped by SIGTERM.
func (s traffic) startLoad(ctx context.Context, what string) (*server, error) {
	v, err := s.startServer(ctx, loadProgram, what)
	if err == nil {
		v.stop = func() error { return v.cmd.Process.Signal(syscall.SIGTERM) }
	}
	return v, err
}

// end stops the server and waits for its end. It returns an error if the server failed for another reason than SIGTERM.
func (v *server) end() error {
	err := errors.Join(v.stop(), v.cmd.Wait())
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %.500s", filepath.Base(v.cmd.Path), err, bytes.TrimSpace(v.err.Bytes()))
	}
	return err
}

// addressOn returns the host and port of the server for clients that reach this network namespace at address.
func (v *server) addressOn(address string) string { return fmt.Sprintf("%s:%d", address, v.port) }

// chatURL returns the URL of the chat API on a host, which may include a port.
func chatURL(host string) string { return "http://" + host + "/v1/chat/completions" }

// onHost returns a measure that runs a client of the load program on the host.
func (s traffic) onHost(args ...string) measure {
	return func(ctx context.Context) (samples, error) { return s.runLoad(ctx, args, nil, nil) }
}

// runLoad runs a client of the load program and returns its samples. prepare may change the command before the start, and started
// may do more set-up before the client begins to measure; both functions may be nil.
func (s traffic) runLoad(ctx context.Context, args []string, prepare func(*exec.Cmd), started func(*os.Process) error) (_ samples, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, loadProgram), args...)
	var out, said bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{}, &out, &said
	if prepare != nil {
		prepare(cmd)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if started != nil {
		err = started(cmd.Process)
	}
	if err != nil {
		cmd.Process.Kill()
	}
	if err := errors.Join(err, in.Close(), cmd.Wait()); err != nil {
		return nil, fmt.Errorf("%s %v: %w: %.500s", loadProgram, args, err, bytes.TrimSpace(said.Bytes()))
	}
	return parseSamples(out.Bytes())
}

// A loadSandbox is a sandbox that contains the load program.
type loadSandbox struct {
	*daemon
	id string // Id of the sandbox.
}

// loadPath is the path of the load program in a loadSandbox.
const loadPath = "/tmp/" + loadProgram

// createLoaded creates a sandbox with the load program. The sandbox may connect to the host by the address hostAddress, and the
// content of these connections is not inspected.
func (s traffic) createLoaded(ctx context.Context, d *daemon, models *caisson.ModelGrant) (_ *loadSandbox, err error) {
	file, err := os.Open(filepath.Join(s.Bin, loadProgram))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sb, err := d.api.Create(ctx, caisson.CreateRequest{
		Policy: &caisson.Policy{Rules: []caisson.Rule{{Action: caisson.Allow, Host: hostAddress}}}, Models: models,
	})
	if err != nil {
		return nil, err
	}
	_, err = d.api.WriteFile(ctx, string(sb.ID), loadPath, 0o755, file)
	return &loadSandbox{d, string(sb.ID)}, err
}

// remove removes the sandbox.
func (l *loadSandbox) remove(ctx context.Context) error { return l.api.Remove(ctx, l.id) }

// inside returns a measure that runs a client of the load program in the sandbox.
func (l *loadSandbox) inside(args ...string) measure {
	return func(ctx context.Context) (samples, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		res, err := l.api.Run(ctx, l.id, protocol.ProcessRequest{ExecRequest: caisson.ExecRequest{Command: append([]string{loadPath}, args...)}})
		if err != nil {
			return nil, err
		}
		if !res.Exit.Success() {
			return nil, fmt.Errorf("%s %v inside: %s: %.500s", loadProgram, args, res.Exit, res.Stderr.Text)
		}
		return parseSamples([]byte(res.Stdout.Text))
	}
}

// parseSamples parses the output of a client of the load program.
func parseSamples(data []byte) (s samples, err error) {
	err = json.Unmarshal(data, &s)
	return s, err
}
