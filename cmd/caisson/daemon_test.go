package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestOrdinaryUser checks that who is not root gets one clear sentence where a daemon is needed, and help where not.
func TestOrdinaryUser(t *testing.T) {
	testneed.Root(t) // to become somebody else
	bin := filepath.Join(t.TempDir(), "caisson")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bin, self, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(bin); dir != "/" && strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	locked := filepath.Join(t.TempDir(), "locked")
	if err := os.Mkdir(locked, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		err  string
	}{
		{"no daemon", []string{"--data", "/nonexistent/caisson", "sandbox", "ls"}, 5, "caisson: " + needRoot + "\n"},
		{"locked", []string{"--data", locked, "exec", "--rm", "host", "--", "true"}, 5, "caisson: " + needRoot + "\n"},
		{"version", []string{"version"}, 0, ""},
		{"help", []string{"exec", "--help"}, 0, ""},
		{"completion", []string{"completion", "bash"}, 0, ""},
		{"dynamic completion", []string{"--data", locked, "__complete", "--", "ps", ""}, 0, ""},
		{"doctor", []string{"--data", locked, "doctor"}, 1, ""}, // root is a failed check
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(bin, c.args...)
			cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin"}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Run(); err != nil {
				if _, ok := errors.AsType[*exec.ExitError](err); !ok {
					testneed.Skip(t, "nobody", err.Error()) // the temporary directory is closed to others
				}
			}
			if got := cmd.ProcessState.ExitCode(); got != c.code || stderr.String() != c.err {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", got, c.code, stderr.String(), c.err)
			}
		})
	}
}

func TestAwaitReady(t *testing.T) {
	for _, c := range []struct {
		name, line, want string
	}{
		{"ok", "ok\n", ""},
		{"reason", "the store is newer\n", "did not start: the store is newer; see log"},
		{"hostile", "bad \x1b]0;t\x07\n", `bad \x1b]0;t\x07`},
		{"cut", "o", "did not start: o;"},
		{"nothing", "", "ended while it started"},
		{"too long", strings.Repeat("x", 2*maxReadyLength), "did not start"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			go func() {
				io.WriteString(w, c.line)
				w.Close()
			}()
			err = awaitReady(t.Context(), r, "log")
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || caisson.KindOf(err) != caisson.Unavailable):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := awaitReady(ctx, r, "log"); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupt while waiting: %v", err)
	}
}

func TestDaemonLogIsBounded(t *testing.T) {
	name := filepath.Join(t.TempDir(), daemonLogName)
	for range 3 {
		f, err := openDaemonLog(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(maxDaemonLog + 1); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	entries, err := os.ReadDir(filepath.Dir(name))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	// What somebody put in its place is not followed.
	os.Remove(name)
	if err := os.Symlink("/dev/null", name); err != nil {
		t.Fatal(err)
	}
	if f, err := openDaemonLog(name); err == nil {
		f.Close()
		t.Error("a symlink was followed")
	}
}
