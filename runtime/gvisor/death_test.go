package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// TestLauncherKilled kills launchers at each stage of a launch.
func TestLauncherKilled(t *testing.T) {
	r := open(t)
	for _, c := range []struct {
		name string
		come func(dir string) bool // whether the stage is reached
	}{
		{"started", func(string) bool { return true }},
		{"configured", func(dir string) bool { return exists(filepath.Join(dir, "bundle", "config.json")) }},
		{"one process", func(dir string) bool { pids, err := gvisorProcesses(dir); return err == nil && len(pids) > 0 }},
		{"both processes", func(dir string) bool { pids, err := gvisorProcesses(dir); return err == nil && len(pids) > 1 }},
		{"socket", func(dir string) bool {
			files, err := filepath.Glob(filepath.Join(dir, "bundle", protocol.StateDir, "*.sock"))
			return err == nil && len(files) > 0
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := caisson.NewID(caisson.SandboxPrefix)
			spec := newSpec(t, r, id)
			created := make(chan error, 1)
			go func() { created <- r.Create(t.Context(), id, spec) }()
			launcher := 0
			poll.Until(t, time.Minute, func() bool { launcher = launcherOf(t); return launcher > 0 })
			for !c.come(runtimeDir(spec.Dir)) && unix.Kill(launcher, 0) == nil { // busy-waits, because the stages are short
			}
			unix.Kill(launcher, unix.SIGKILL)
			err := <-created
			t.Log("create:", err)
			if err == nil {
				t.Log("the launcher was faster")
				if err := r.Destroy(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			wantNothing(t, r, id, spec)
			poll.Until(t, time.Minute, func() bool { return len(zombies(t)) == 0 })
			// The same id can be used again.
			create(t, r, id, spec)
			if out, _ := run(t, r, id, "/bin/echo", "alive"); out != "alive\n" {
				t.Errorf("created anew it says %q", out)
			}
			if err := r.Destroy(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// launcherOf returns the PID of the launcher among this process's children, or 0 if there is none.
func launcherOf(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, _ := os.ReadFile(f)
		for _, pid := range strings.Fields(string(data)) {
			cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if !strings.HasPrefix(string(cmdline), protocol.LaunchArg0) {
				continue
			}
			// Skips the process that only keeps a user namespace open.
			ours, err := os.Readlink("/proc/self/ns/user")
			theirs, err2 := os.Readlink("/proc/" + pid + "/ns/user")
			n := 0
			if err == nil && err2 == nil && ours == theirs {
				fmt.Sscan(pid, &n)
				return n
			}
		}
	}
	return 0
}

// TestProcessKilled kills each of a sandbox's two processes.
func TestProcessKilled(t *testing.T) {
	t.Parallel()
	r := open(t)
	for name, victim := range map[string]func(*sandbox) process{
		"main":  func(s *sandbox) process { return s.state.Main },
		"gofer": func(s *sandbox) process { return s.state.Gofer },
	} {
		t.Run(name, func(t *testing.T) {
			s, spec := start(t, r, "/bin/sleep", "1000")
			p, err := r.Exec(t.Context(), s.id, caisson.RuntimeExec{Command: []string{"/bin/cat"}, Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			done := r.Done(s.id)
			kill(t, victim(s).PID)
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("Done is not closed")
			}
			if st, err := p.Wait(t.Context()); err != nil || st.Success() {
				t.Errorf("the session ended with %+v, %v", st, err)
			}
			if st, err := r.WaitCommand(t.Context(), s.id); err != nil || !st.Unknown || st.Reason == "" {
				t.Errorf("the command ended with %+v, %v", st, err)
			}
			if reason := r.EndReason(s.id); reason == "" || strings.Contains(reason, "memory") {
				t.Errorf("the sandbox ended because %q", reason)
			}
			if err := r.Destroy(t.Context(), s.id); err != nil {
				t.Fatal(err)
			}
			wantNothing(t, r, s.id, spec)
		})
	}
}

// TestExitIsRemembered calls WaitCommand before and after the sandbox has stopped.
func TestExitIsRemembered(t *testing.T) {
	t.Parallel()
	r := open(t)
	s, _ := start(t, r, guestdPath, "test", "exit", "5")
	for range 2 {
		if st, err := r.WaitCommand(t.Context(), s.id); err != nil || st != (caisson.ExitStatus{Code: 5}) {
			t.Errorf("the command ended with %+v, %v", st, err)
		}
		if s.running() {
			kill(t, s.state.Main.PID)
			<-r.Done(s.id)
		}
	}
}

// TestZombie checks that the command is no longer listed after it has exited, and that its exit status is available after a
// restore.
func TestZombie(t *testing.T) {
	t.Parallel()
	r := open(t)
	s, _ := start(t, r, guestdPath, "test", "exit", "5")
	count := func(id caisson.ID) int {
		list, err := r.Processes(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	poll.Until(t, time.Minute, func() bool { return count(s.id) == 1 })
	image := t.TempDir()
	if err := r.Checkpoint(t.Context(), s.id, image, true); err != nil {
		t.Fatal(err)
	}
	fork := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, fork)
	spec.Command = []string{guestdPath, "test", "exit", "5"}
	if err := r.Restore(t.Context(), fork, spec, image); err != nil {
		t.Fatal(err)
	}
	for _, id := range []caisson.ID{s.id, fork} {
		if st, err := r.WaitCommand(t.Context(), id); err != nil || st != (caisson.ExitStatus{Code: 5}) {
			t.Errorf("the command of %s ended with %+v, %v", id, st, err)
		}
		if n := count(id); n != 1 {
			t.Errorf("%s lists %d processes", id, n)
		}
	}
}
