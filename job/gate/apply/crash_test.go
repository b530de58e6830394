package apply

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/job/gate"
)

// crashed is the panic value that simulates the end of a process. Deferred functions in this package do not change files.
type crashed struct{}

// crashAt returns a hook that panics at the n-th point, and a function that runs its argument until that panic.
func crashAt(n int) (hook func(string), run func(func()) (ended bool)) {
	points := 0
	hook = func(string) {
		if points++; points > n {
			panic(crashed{})
		}
	}
	run = func(f func()) (ended bool) {
		defer func() {
			if r := recover(); r != nil {
				if _, ok := r.(crashed); !ok {
					panic(r)
				}
				ended = true
			}
		}()
		f()
		return false
	}
	return hook, run
}

// recoverSlowly recovers with a crash after each few points.
func recoverSlowly(t *testing.T, s site, first int) Outcome {
	t.Helper()
	for n := first; ; n += 13 {
		var out Outcome
		var err error
		hook, run := crashAt(n)
		if run(func() { out, err = recoverWith(t.Context(), s.host, s.saved, hook) }) {
			continue
		}
		if err != nil || len(out.LeftInPlace) > 0 {
			t.Fatalf("recover: %+v, %v", out, err)
		}
		return out
	}
}

func TestCrashAnywhereInApply(t *testing.T) {
	t.Parallel()
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			plan, c := planOf(t, op.before, op.after)
			seen := map[string]int{}
			stride := 1
			if len(plan.Steps) > 12 { // the other plans cover its kinds of steps
				stride = 3
			}
			for n := 0; ; n += stride {
				s := memorySite(t, op.before)
				hook, run := crashAt(n)
				ended := run(func() {
					if _, err := apply(t.Context(), s.host, s.saved, plan, c.read, hook); err != nil {
						t.Fatal(err)
					}
				})
				out := recoverSlowly(t, s, n%13)
				seen[out.State]++
				what := fmt.Sprintf("crashed at %d, %q,", n, out.State)
				if out.State == Applied {
					s.want(t, what, op.after)
				} else {
					s.want(t, what, op.before)
					if n%4 == 0 {
						out, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
						wantState(t, "apply again", out, err, Applied)
						s.want(t, "after another apply", op.after)
					}
				}
				if t.Failed() || !ended {
					break
				}
			}
			if len(seen) != 3 {
				t.Errorf("outcomes %v", seen)
			}
		})
	}
}

// TestCrashWithoutExchange tests file systems on which rename does not support flags. It does not run in parallel with other
// tests.
func TestCrashWithoutExchange(t *testing.T) {
	real := renameat2
	defer func() { renameat2 = real }()
	var hook func(string)
	renameat2 = func(from int, old string, to int, name string, flags uint) error {
		if flags != 0 {
			return unix.EINVAL
		}
		hook("rename")
		return real(from, old, to, name, 0)
	}
	plan, c := planOf(t, mixed.before, mixed.after)
	seen := map[string]int{}
	for n := 0; ; n++ {
		s := memorySite(t, mixed.before)
		var run func(func()) bool
		hook, run = crashAt(n)
		ended := run(func() {
			if _, err := apply(t.Context(), s.host, s.saved, plan, c.read, hook); err != nil {
				t.Fatal(err)
			}
		})
		var out Outcome
		for again := n % 5; ; again += 5 {
			var err error
			hook, run = crashAt(again)
			if run(func() { out, err = recoverWith(t.Context(), s.host, s.saved, hook) }) {
				continue
			}
			if err != nil || len(out.LeftInPlace) > 0 {
				t.Fatalf("recover: %+v, %v", out, err)
			}
			break
		}
		seen[out.State]++
		want := mixed.before
		if out.State == Applied {
			want = mixed.after
		}
		s.want(t, fmt.Sprintf("crashed at %d, %q,", n, out.State), want)
		if !ended || t.Failed() {
			break
		}
	}
	if len(seen) != 3 {
		t.Errorf("outcomes %v", seen)
	}
}

func TestCrashAnywhereInUndo(t *testing.T) {
	t.Parallel()
	op := mixed
	plan, c := planOf(t, op.before, op.after)
	for n := 0; ; n++ {
		s := memorySite(t, op.before)
		if _, err := Apply(t.Context(), s.host, s.saved, plan, c.read); err != nil {
			t.Fatal(err)
		}
		hook, run := crashAt(n)
		ended := run(func() {
			if _, err := undo(t.Context(), s.host, s.saved, hook); err != nil {
				t.Fatal(err)
			}
		})
		out := recoverSlowly(t, s, n%13)
		what := fmt.Sprintf("crashed at %d, %q,", n, out.State)
		if out.State == Undone {
			s.want(t, what, op.before)
		} else {
			s.want(t, what, op.after)
			out, err := Undo(t.Context(), s.host, s.saved)
			wantState(t, "undo again", out, err, Undone)
			s.want(t, "after another undo", op.before)
		}
		if t.Failed() || !ended {
			return
		}
	}
}

const (
	childDir   = "CAISSON_TEST_APPLY"
	childPoint = "CAISSON_TEST_APPLY_KILL"
)

// TestKilledChild is the process that [TestKilled] kills.
func TestKilledChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("only as a child")
	}
	n, err := strconv.Atoi(os.Getenv(childPoint))
	if err != nil {
		t.Fatal(err)
	}
	op := mixed
	plan, c := planOf(t, op.before, op.after)
	_, err = apply(t.Context(), dirFile(t, dir+"/host"), dirFile(t, dir+"/saved"), plan, c.read, func(string) {
		if n--; n < 0 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestKilled kills a process at every step.
func TestKilled(t *testing.T) {
	t.Parallel()
	op := mixed
	seen := map[string]int{}
	for n := 0; ; n++ {
		s := memorySite(t, op.before)
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledChild$")
		cmd.Env = append(os.Environ(), childDir+"="+filepath.Dir(s.dir), childPoint+"="+strconv.Itoa(n))
		text, err := cmd.CombinedOutput()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); err != nil && (!ok || ws.Signal() != syscall.SIGKILL) {
			t.Fatalf("%v\n%s", err, text)
		}
		out, rerr := Recover(t.Context(), s.host, s.saved)
		if rerr != nil {
			t.Fatal(rerr)
		}
		seen[out.State]++
		want := op.before
		if out.State == Applied {
			want = op.after
		}
		s.want(t, fmt.Sprintf("killed at %d, %q,", n, out.State), want)
		if err == nil || t.Failed() {
			break
		}
	}
	if len(seen) != 3 {
		t.Errorf("outcomes %v", seen)
	}
}

// TestStageRemovedAfterCrash removes the staging directory between a crash and the recovery.
func TestStageRemovedAfterCrash(t *testing.T) {
	t.Parallel()
	op := mixed
	plan, c := planOf(t, op.before, op.after)
	for n := 0; ; n++ {
		s := memorySite(t, op.before)
		hook, run := crashAt(n)
		ended := run(func() {
			if _, err := apply(t.Context(), s.host, s.saved, plan, c.read, hook); err != nil {
				t.Fatal(err)
			}
		})
		left, err := filepath.Glob(s.dir + "/" + gate.StagePrefix + "*")
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range left {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		out, err := Recover(t.Context(), s.host, s.saved)
		if err != nil || len(out.LeftInPlace) > 0 {
			t.Errorf("recover: %+v, %v", out, err)
		}
		want := op.before
		if out.State == Applied {
			want = op.after
		}
		s.want(t, fmt.Sprintf("crashed at %d, %q,", n, out.State), want)
		if t.Failed() || !ended {
			return
		}
	}
}
