package test_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testbin"
	"github.com/caisson-dev/caisson/internal/testneed"
)

const (
	// hang is the time after which a command counts as hanging.
	hang = 2 * time.Minute
	// settle is the maximum time until stopped things have disappeared: the kernel removes namespaces in the
	// background.
	settle = time.Minute
)

// A host is a separate data directory with the binary under test.
type host struct {
	t    testing.TB
	bin  string
	dir  string // Contains all files; removed at the end.
	data string // --data
	env  []string
	// start starts a daemon; nil starts it in the namespaces of the test.
	start func(*exec.Cmd) error
	// keep contains the templates that are kept at the end of the test.
	keep []string
}

// newHost returns a host whose commands start a daemon when they need one. When the test ends all of its sandboxes are
// removed, and anything else left is an error.
func newHost(t testing.TB) *host {
	t.Helper()
	return newHostOn(t, "")
}

// newHostOn is newHost on an existing data directory that is kept; "" creates a temporary one.
func newHostOn(t testing.TB, data string) *host {
	t.Helper()
	testneed.Root(t)
	// The directory is not t.TempDir(), because the path of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "ct-")
	if err != nil {
		t.Fatal(err)
	}
	if data == "" {
		data = filepath.Join(dir, "d")
	}
	h := &host{t: t, bin: testbin.Path(t, "caisson"), dir: dir, data: data}
	h.env = []string{
		"PATH=" + filepath.Join(dir, "bin") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir,
		"CAISSON_DATA=" + h.data, "CAISSON_CONFIG=" + h.configFile(),
	}
	h.configure("idleExit: 10m")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "bin"), 0o700), os.Symlink(h.bin, filepath.Join(dir, "bin", "caisson"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	h.needGVisor()
	return h
}

func (h *host) configFile() string { return filepath.Join(h.dir, "config.yaml") }

// configure writes the configuration file. It takes effect with the next daemon.
func (h *host) configure(lines ...string) {
	h.t.Helper()
	if err := os.WriteFile(h.configFile(), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

var probe struct {
	sync.Once
	detail string // Why gVisor does not run on this machine, or "".
}

// needGVisor skips the test if gVisor does not run according to doctor.
func (h *host) needGVisor() {
	h.t.Helper()
	probe.Do(func() {
		var checks []caisson.Check
		r := h.run("doctor", "-o", "json")
		if err := json.Unmarshal([]byte(r.stdout), &checks); err != nil {
			probe.detail = fmt.Sprintf("doctor said %q: %v", r.stdout+r.stderr, err)
			return
		}
		for _, c := range checks {
			if c.Name == "platform" && c.Status == "failed" {
				probe.detail = c.Detail
			}
		}
	})
	if probe.detail != "" {
		testneed.Skip(h.t, "gvisor", probe.detail)
	}
}

// A result is the result of a command.
type result struct {
	args           []string
	stdout, stderr string
	code           int
	took           time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("caisson %s: exit code %d after %v\nstdout: %.2000s\nstderr: %.2000s", strings.Join(r.args, " "), r.code, r.took, r.stdout, r.stderr)
}

// command returns a command of the binary under test. It is killed when ctx ends.
func (h *host) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.bin, args...)
	cmd.Env, cmd.Dir = h.env, h.dir
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs a command to its end. It is safe for concurrent use.
func (h *host) run(args ...string) result { return h.runWith(nil, args...) }

// runWith is run with standard input.
func (h *host) runWith(stdin io.Reader, args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	cmd := h.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	begin := time.Now()
	err := cmd.Run()
	r := result{args: args, stdout: out.String(), stderr: errs.String(), code: cmd.ProcessState.ExitCode(), took: time.Since(begin)}
	if ctx.Err() != nil {
		h.t.Errorf("%v hangs", r)
	} else if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		h.t.Errorf("%v: %v", r, err)
	}
	return r
}

// ok runs a command that must succeed and returns its output without the last newline.
func (h *host) ok(args ...string) string {
	h.t.Helper()
	r := h.run(args...)
	if r.code != 0 {
		h.t.Fatalf("%v", r)
	}
	return strings.TrimSuffix(r.stdout, "\n")
}

// fails runs a command that must fail with an exit code and an error that contains words.
func (h *host) fails(code int, words string, args ...string) {
	h.t.Helper()
	r := h.run(args...)
	if r.code != code || !strings.Contains(r.stderr, words) {
		h.t.Errorf("want exit code %d and %q; %v", code, words, r)
	}
}

// sh runs a script in a sandbox and returns its output.
func (h *host) sh(sandbox, script string) string {
	h.t.Helper()
	return h.ok("exec", sandbox, "--", "sh", "-c", script)
}

// shows decodes the output of a command with -o json.
func shows[T any](h *host, args ...string) (v T) {
	h.t.Helper()
	out := h.ok(append(slices.Clone(args), "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		h.t.Fatalf("caisson %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return v
}

func (h *host) show(sandbox string) caisson.Sandbox {
	h.t.Helper()
	return shows[caisson.Sandbox](h, "sandbox", "show", sandbox)
}

// waitState waits until a sandbox is in a state.
func (h *host) waitState(sandbox string, want caisson.State) caisson.Sandbox {
	h.t.Helper()
	var sb caisson.Sandbox
	poll.Until(h.t, settle, func() bool {
		sb = h.show(sandbox)
		return sb.State == want
	})
	return sb
}

func (h *host) socket() string { return filepath.Join(h.data, "caisson.sock") }

// write creates a file below the test's directory and returns its path.
func (h *host) write(name, content string) string {
	h.t.Helper()
	p := filepath.Join(h.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o644)); err != nil {
		h.t.Fatal(err)
	}
	return p
}

// A daemon is a "caisson serve" process that the test started and can kill.
type daemon struct {
	h   *host
	cmd *exec.Cmd
}

// serve starts a daemon in the foreground and waits until it serves. Commands use it while it is running, and do not
// start another one after it was killed.
func (h *host) serve(args ...string) *daemon {
	h.t.Helper()
	d, err := h.tryServe(args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

func (h *host) tryServe(args ...string) (*daemon, error) {
	if host := "CAISSON_HOST=unix://" + h.socket(); !slices.Contains(h.env, host) {
		h.env = append(h.env, host)
	}
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	log, err := os.OpenFile(filepath.Join(h.dir, "serve.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, errors.Join(err, readyEnd.Close())
	}
	defer log.Close()
	cmd := exec.Command(h.bin, append([]string{"serve", "--data", h.data}, args...)...)
	cmd.Args[0], cmd.Dir, cmd.Env = "caisson", h.dir, append(slices.Clone(h.env), "CAISSON_READY_FD=3")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{readyEnd}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if h.start != nil {
		err = h.start(cmd)
	} else {
		err = cmd.Start()
	}
	readyEnd.Close()
	if err != nil {
		return nil, err
	}
	d := &daemon{h: h, cmd: cmd}
	stop := time.AfterFunc(hang, func() { cmd.Process.Kill() })
	defer stop.Stop()
	line, err := io.ReadAll(io.LimitReader(ready, 4096))
	if string(line) != "ok\n" {
		d.kill()
		return nil, fmt.Errorf("the daemon said %q (%v); its log: %s", line, err, h.serveLog())
	}
	return d, nil
}

func (h *host) serveLog() string {
	data, err := os.ReadFile(filepath.Join(h.dir, "serve.log"))
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-4000):])
}

// kill kills the daemon to simulate a crash.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait() // The error reports that the daemon was killed.
}

// end stops the daemon as an administrator does.
func (d *daemon) end() {
	d.h.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.h.t.Error(err)
	}
	stop := time.AfterFunc(settle, func() { d.cmd.Process.Kill() })
	defer stop.Stop()
	if err := d.cmd.Wait(); err != nil {
		d.h.t.Errorf("the daemon ended with %v; its log: %s", err, d.h.serveLog())
	}
}

// removeAll removes every object of the data directory except the templates in h.keep.
func (h *host) removeAll() {
	h.t.Helper()
	for _, kind := range []string{"template", "sandbox", "snapshot"} {
		for name := range strings.FieldsSeq(h.ok(kind, "ls", "-q")) {
			if kind != "template" || !h.stays(name) {
				h.run(kind, "rm", name)
			}
		}
		for name := range strings.FieldsSeq(h.ok(kind, "ls", "-q")) {
			if kind != "template" || !h.stays(name) {
				h.t.Errorf("%s %s is left", kind, name)
			}
		}
	}
}

// stays reports whether a template is kept at the end of the test.
func (h *host) stays(template string) bool {
	return template == caisson.HostTemplate || slices.Contains(h.keep, template)
}

// close removes all objects of the test and checks that nothing is left.
func (h *host) close() {
	defer os.RemoveAll(h.dir)
	defer h.force()
	if _, err := os.Stat(filepath.Join(h.data, "instance")); err != nil {
		return // No daemon was ever started.
	}
	if h.daemonPID() == 0 {
		h.env = slices.DeleteFunc(h.env, func(s string) bool { return strings.HasPrefix(s, "CAISSON_HOST=") })
	}
	if r := h.run("sandbox", "ls"); r.code != 0 {
		h.t.Errorf("the daemon does not work any more: %v\n%s", r, h.daemonLog())
		return
	}
	h.removeAll()
	h.wantRemains(nil)
	if pid := h.daemonPID(); pid != 0 {
		syscall.Kill(pid, syscall.SIGTERM)
		poll.Until(h.t, settle, func() bool { return h.daemonPID() == 0 })
	}
	if h.t.Failed() {
		h.t.Logf("the daemon's log: %s\n%s", h.daemonLog(), h.serveLog())
	}
}

func (h *host) daemonLog() string {
	data, _ := os.ReadFile(filepath.Join(h.data, "daemon.log")) // A missing log is empty.
	return string(data[max(0, len(data)-4000):])
}
