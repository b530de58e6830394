package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// crashed is thrown where a process is to end. Nothing that is deferred in this package touches files.
type crashed struct{}

// crashAt returns a hook that ends what it is given to at the n-th point, and a function that runs that.
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

// recoverSlowly recovers, with a crash after each few points.
func recoverSlowly(t *testing.T, s site, first int) Outcome {
	t.Helper()
	for n := first; ; n += 13 {
		var out Outcome
		var err error
		hook, run := crashAt(n)
		if run(func() { out, err = recoverWith(t.Context(), s.host, s.saved, hook) }) {
			continue
		}
		if err != nil || len(out.Kept) > 0 {
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
			for n := 0; ; n++ {
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
				if out.State == OutcomeApplied {
					s.want(t, what, op.after)
				} else {
					s.want(t, what, op.before)
					if n%4 == 0 {
						out, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
						wantState(t, "apply again", out, err, OutcomeApplied)
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

// TestCrashWithoutExchange is for file systems whose renames know no flags. It runs alone.
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
			if err != nil || len(out.Kept) > 0 {
				t.Fatalf("recover: %+v, %v", out, err)
			}
			break
		}
		seen[out.State]++
		want := mixed.before
		if out.State == OutcomeApplied {
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
		if out.State == OutcomeUndone {
			s.want(t, what, op.before)
		} else {
			s.want(t, what, op.after)
			out, err := Undo(t.Context(), s.host, s.saved)
			wantState(t, "undo again", out, err, OutcomeUndone)
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
		if out.State == OutcomeApplied {
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

// TestStageRemovedAfterCrash: somebody tidies up between a crash and the recovery.
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
		left, err := filepath.Glob(s.dir + "/" + stagePrefix + "*")
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range left {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		out, err := Recover(t.Context(), s.host, s.saved)
		if err != nil || len(out.Kept) > 0 {
			t.Errorf("recover: %+v, %v", out, err)
		}
		want := op.before
		if out.State == OutcomeApplied {
			want = op.after
		}
		s.want(t, fmt.Sprintf("crashed at %d, %q,", n, out.State), want)
		if t.Failed() || !ended {
			return
		}
	}
}

// TestEditsAreNeverLost: whenever somebody saves a file meanwhile, it is there in the end.
func TestEditsAreNeverLost(t *testing.T) {
	t.Parallel()
	op := mixed
	plan, c := planOf(t, op.before, op.after)
	for name, edit := range map[string]func(dir string) error{
		"in place": func(dir string) error { return os.WriteFile(dir+"/a", []byte("edit"), 0o644) },
		"renamed": func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/.a.swp", []byte("edit"), 0o644), os.Rename(dir+"/.a.swp", dir+"/a"))
		},
	} {
		for _, recovers := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, crash %v", name, recovers), func(t *testing.T) {
				for n := 0; ; n++ {
					s := memorySite(t, op.before)
					points := 0
					hook, run := crashAt(n + 1)
					if !recovers {
						hook, run = func(string) {}, func(f func()) bool { f(); return false }
					}
					var err error
					ended := run(func() {
						_, err = apply(t.Context(), s.host, s.saved, plan, c.read, func(p string) {
							if points++; points == n+1 {
								if err := edit(s.dir); err != nil {
									t.Error(err)
								}
							}
							hook(p)
						})
					})
					out, rerr := Recover(t.Context(), s.host, s.saved)
					if rerr != nil {
						t.Fatal(rerr)
					}
					if !recovers && err != nil && caisson.KindOf(err) != caisson.Conflict {
						t.Fatal(err)
					}
					want := maps.Clone(op.before)
					if out.State == OutcomeApplied {
						want = maps.Clone(op.after)
					}
					if points > n {
						want["a"] = "f 644 edit"
					}
					s.want(t, fmt.Sprintf("edited at %d, %q,", n, out.State), want)
					if t.Failed() || points <= n && !ended {
						return
					}
				}
			})
		}
	}
}

// TestPromise3ParentBecomesSymlink: whenever a directory is replaced by a symlink, nothing happens where that leads.
func TestPromise3ParentBecomesSymlink(t *testing.T) {
	t.Parallel()
	before := shape{"d": "d 755", "d/e": "d 755", "d/e/x": "f 644 x", "d/e/y": "f 644 y", "d/e/z": "f 644 z", "w": "f 644 w"}
	after := shape{"d": "d 755", "d/e": "d 755", "d/e/x": "f 644 xx", "d/e/y": "f 755 y", "d/e/n": "f 644 n", "d/e/g": "d 755", "d/e/g/h": "f 644 h", "w": "f 644 ww"}
	plan, c := planOf(t, before, after)
	for _, which := range []string{"d", "d/e"} {
		for n := 0; ; n++ {
			s := memorySite(t, before)
			outside := shape{"e": "d 755", "e/x": "f 644 x", "e/y": "f 644 y", "e/z": "f 644 z", "x": "f 644 x", "y": "f 644 y", "z": "f 644 z"}
			other := filepath.Join(filepath.Dir(s.dir), "outside")
			if err := os.Mkdir(other, 0o755); err != nil {
				t.Fatal(err)
			}
			lay(t, other, outside)
			points := 0
			out, err := apply(t.Context(), s.host, s.saved, plan, c.read, func(string) {
				if points++; points == n+1 {
					link := filepath.Join(s.dir, which)
					if err := errors.Join(os.Rename(link, s.dir+"/aside"), os.Symlink(other, link)); err != nil {
						t.Error(err)
					}
				}
			})
			if got := shapeOf(t, other); !maps.Equal(got, outside) {
				t.Fatalf("at %d: outside there is\n%v", n, got)
			}
			got := shapeOf(t, s.dir)
			for name := range got {
				if strings.HasPrefix(name, stagePrefix) {
					t.Errorf("at %d: left behind %q", n, name)
				}
			}
			w := "f 644 w"
			if err == nil {
				w = "f 644 ww"
			} else if caisson.KindOf(err) != caisson.Conflict {
				t.Errorf("at %d: %v", n, err)
			}
			if got["w"] != w {
				t.Errorf("at %d: %q, %+v, %v", n, got["w"], out, err)
			}
			// What could not be put back is where the directory is now, or saved.
			for _, text := range []string{"x", "y", "z"} {
				in := got["aside/"+text] + got["aside/e/"+text]
				saved, _ := os.ReadFile(filepath.Join(s.saved.Name(), objectsDir, HashText([]byte(text))))
				if in != "f 644 "+text && !bytes.Equal(saved, []byte(text)) && err != nil {
					t.Errorf("at %d: %s is lost", n, text)
				}
			}
			if points <= n || t.Failed() {
				break
			}
		}
	}
}

// TestKept: what somebody puts into a directory that goes or comes stays, and is told of.
func TestKept(t *testing.T) {
	add := func(name string) func(dir string) error {
		return func(dir string) error {
			found, err := filepath.Glob(filepath.Join(dir, name))
			if err != nil || len(found) != 1 {
				return fmt.Errorf("%q, %v", found, err)
			}
			return os.WriteFile(found[0]+"/theirs", nil, 0o600)
		}
	}
	edit := func(dir string) error { return os.WriteFile(dir+"/z", []byte("edit"), 0o644) }
	before := shape{"d": "d 755", "d/x": "f 644 x", "z": "f 644 z"}
	after := shape{"n": "d 755", "n/y": "f 644 y", "z": "f 644 zz"}
	plan, c := planOf(t, before, after)
	for name, tt := range map[string]struct {
		at    map[string]func(dir string) error // by point
		kept  []string
		state string
		want  shape
	}{
		"new directory, taken back": {
			map[string]func(string) error{"placed 2": add("n"), "placed 3": edit}, []string{"n"}, OutcomeRolledBack,
			shape{"d": "d 755", "d/x": "f 644 x", "n": "d 755", "n/theirs": "f 600 ", "z": "f 644 edit"},
		},
		"old directory, before it goes": {
			map[string]func(string) error{"taken 1": add("d")}, nil, OutcomeRolledBack,
			shape{"d": "d 755", "d/x": "f 644 x", "d/theirs": "f 600 ", "z": "f 644 z"},
		},
		"old directory, on its way": {
			map[string]func(string) error{"moved 0": add(stagePrefix + "*/o0")}, nil, OutcomeRolledBack,
			shape{"d": "d 755", "d/x": "f 644 x", "d/theirs": "f 600 ", "z": "f 644 z"},
		},
		"old directory, after it went": {
			map[string]func(string) error{"commit": add(stagePrefix + "*/o0")}, []string{"d"}, OutcomeApplied,
			shape{"n": "d 755", "n/y": "f 644 y", "z": "f 644 zz", "d": "d 755", "d/theirs": "f 600 "},
		},
		"edited and taken back": {
			map[string]func(string) error{"switched": func(dir string) error {
				return errors.Join(os.WriteFile(dir+"/z", []byte("edit"), 0o644), os.WriteFile(dir+"/fail", nil, 0o600))
			}}, []string{"z"}, OutcomeRolledBack,
			shape{"d": "d 755", "d/x": "f 644 x", "z": "f 644 edit", "fail": "f 600 "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := memorySite(t, before)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := map[string]bool{}
			hook, run := crashAt(1 << 30)
			run(func() {
				apply(ctx, s.host, s.saved, plan, c.read, func(p string) {
					hook(p)
					if change := tt.at[p]; change != nil && !done[p] {
						done[p] = true
						if err := change(s.dir); err != nil {
							t.Error(err)
						}
					}
					if _, err := os.Stat(s.dir + "/fail"); err == nil && p == "switched" {
						panic(crashed{})
					}
				})
			})
			out, err := Recover(t.Context(), s.host, s.saved)
			if err != nil || out.State != tt.state || fmt.Sprint(out.Kept) != fmt.Sprint(tt.kept) {
				t.Errorf("%+v, %v", out, err)
			}
			if len(done) != len(tt.at) {
				t.Errorf("only %v happened", done)
			}
			s.want(t, "afterwards", tt.want)
		})
	}
}
