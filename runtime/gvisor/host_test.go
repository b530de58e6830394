package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// start creates a sandbox with command, which may be empty.
func start(t *testing.T, r *Runtime, command ...string) (*sandbox, caisson.RuntimeSpec) {
	t.Helper()
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Command = command
	return create(t, r, id, spec), spec
}

func create(t testing.TB, r *Runtime, id caisson.ID, spec caisson.RuntimeSpec) *sandbox {
	t.Helper()
	if err := r.Create(t.Context(), id, spec); err != nil {
		t.Fatalf("create: %v", err)
	}
	s, err := r.get(id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDescriptors concurrently creates sandboxes while others are in use, and checks that no descriptors have leaked from one
// to another.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	const count, most = 20, 100
	r := open(t)
	ids, specs := make([]caisson.ID, count), make([]caisson.RuntimeSpec, count)
	for i := range ids {
		ids[i] = caisson.NewID(caisson.SandboxPrefix)
		specs[i] = newSpec(t, r, ids[i])
		specs[i].Command = []string{"/bin/sleep", "1000"}
	}
	ctx := t.Context()
	var g, waits errgroup.Group
	for i, id := range ids {
		g.Go(func() error {
			if err := r.Create(ctx, id, specs[i]); err != nil {
				return err
			}
			waits.Go(func() error { _, err := r.WaitCommand(ctx, id); return err })
			for range 3 {
				p, err := r.Exec(ctx, id, caisson.RuntimeExec{Command: []string{"/bin/cat"}, Stdin: true})
				if err != nil {
					return err
				}
				waits.Go(func() error { _, err := p.Wait(ctx); return err })
			}
			return nil
		})
	}
	g.Go(func() error { // like a client that polls the list
		for range 100 {
			if _, err := r.List(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	owner := map[string]caisson.ID{} // by socket or pipe
	for _, id := range ids {
		s, err := r.get(id)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []process{s.state.Main, s.state.Gofer} {
			held := descriptors(t, p.PID)
			if len(held) > most {
				t.Errorf("process %d of %s has %d descriptors: %q", p.PID, id, len(held), held)
			}
			for _, d := range held {
				if strings.HasPrefix(d, "socket:") || strings.HasPrefix(d, "pipe:") {
					if other, ok := owner[d]; ok && other != id {
						t.Errorf("%s and %s share %s", id, other, d)
					}
					owner[d] = id
				}
				if strings.Contains(d, r.cfg.Dir) && !strings.Contains(d, string(id)) {
					t.Errorf("%s has %s", id, d)
				}
			}
		}
	}
	for _, id := range ids {
		if err := r.Destroy(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if err := waits.Wait(); err != nil {
		t.Error(err)
	}
}

// descriptors returns the link targets of the descriptors of a process.
func descriptors(t *testing.T, pid int) (targets []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil { // fails if it was closed since
			targets = append(targets, target)
		}
	}
	return targets
}

// TestHostSide checks the properties of a sandbox that are visible on the host.
func TestHostSide(t *testing.T) {
	r := open(t)
	t.Setenv("CAISSON_SECRET", "hunter2")
	s, spec := start(t, r, "/bin/sleep", "1000")
	wantNoMounts(t, r)
	for name, p := range map[string]process{"main process": s.state.Main, "gofer": s.state.Gofer} {
		proc := fmt.Sprintf("/proc/%d/", p.PID)
		if env := readFile(t, proc+"environ"); strings.Trim(env, "\x00") != "" {
			t.Errorf("%s has the environment %q", name, env)
		}
		status := map[string][]string{}
		for line := range strings.Lines(readFile(t, proc+"status")) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.Fields(value)
		}
		for _, key := range []string{"Uid", "Gid"} {
			for _, id := range status[key] {
				var n uint32
				if _, err := fmt.Sscan(id, &n); err != nil || n < spec.UIDBase || n-spec.UIDBase >= caisson.UIDRange {
					t.Errorf("%s has %s %s, outside of the account's range from %d", name, key, id, spec.UIDBase)
				}
			}
		}
		if len(status["Groups"]) > 0 {
			t.Errorf("%s is in groups %q", name, status["Groups"])
		}
		if !slices.Equal(status["NoNewPrivs"], []string{"1"}) || !slices.Equal(status["Seccomp"], []string{"2"}) {
			t.Errorf("%s has NoNewPrivs %q and Seccomp %q", name, status["NoNewPrivs"], status["Seccomp"])
		}
		for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts"} {
			theirs, err := os.Readlink(proc + "ns/" + ns)
			ours, err2 := os.Readlink("/proc/self/ns/" + ns)
			if err != nil || err2 != nil || theirs == ours {
				t.Errorf("%s is in the %s namespace %s of the host: %v, %v", name, ns, theirs, err, err2)
			}
		}
	}
}

// wantNoMounts fails the test if the host has a mount of r: one below its directory, or one of the launcher, whose source is
// "caisson".
func wantNoMounts(t *testing.T, r *Runtime) {
	t.Helper()
	for line := range strings.Lines(readFile(t, "/proc/self/mountinfo")) {
		if _, source, ok := strings.Cut(line, " - "); !ok || strings.Contains(line, r.cfg.Dir) || strings.Contains(source, " caisson ") {
			t.Errorf("the host has the mount %s", line)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestNothingIsLeft creates and destroys sandboxes and compares the state of the host before and after.
func TestNothingIsLeft(t *testing.T) {
	r := open(t)
	fds := len(descriptors(t, os.Getpid()))
	for range 5 {
		s, spec := start(t, r, "/bin/sleep", "1000")
		run(t, r, s.id, "/bin/true")
		if err := r.Destroy(t.Context(), s.id); err != nil {
			t.Fatal(err)
		}
		wantNothing(t, r, s.id, spec)
	}
	poll.Until(t, time.Minute, func() bool { return len(zombies(t)) == 0 })
	wantNoMounts(t, r)
	// One user namespace for the account is cached.
	if n := len(descriptors(t, os.Getpid())); n > fds+1 {
		t.Errorf("%d descriptors became %d: %q", fds, n, descriptors(t, os.Getpid()))
	}
}

// wantNothing fails the test if processes, cgroups or files of a sandbox exist.
func wantNothing(t *testing.T, r *Runtime, id caisson.ID, spec caisson.RuntimeSpec) {
	t.Helper()
	if pids, err := gvisorProcesses(spec.Dir); err != nil || len(pids) > 0 {
		t.Errorf("processes %v are left, %v", pids, err)
	}
	if dirs := groupDirs(filepath.Join(r.cfg.Cgroup, string(id))); len(dirs) > 0 {
		t.Errorf("cgroups are left: %q", dirs)
	}
	if _, err := os.Lstat(runtimeDir(spec.Dir)); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", runtimeDir(spec.Dir), err)
	}
	list, err := r.List(t.Context())
	if err != nil || slices.ContainsFunc(list, func(s caisson.RuntimeSandbox) bool { return s.ID == id }) {
		t.Errorf("it is listed: %v, %v", list, err)
	}
	remains, err := r.Remains()
	if err != nil || slices.Contains(remains, id) {
		t.Errorf("it remains: %v, %v", remains, err)
	}
}

// zombies returns this process's children that have exited and were not reaped.
func zombies(t *testing.T) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has exited
		}
		for _, pid := range strings.Fields(string(data)) {
			stat, _ := os.ReadFile("/proc/" + pid + "/stat")
			if i := strings.LastIndexByte(string(stat), ')'); i >= 0 && strings.HasPrefix(string(stat[i:]), ") Z") {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// kill kills a process of the host with SIGKILL.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
