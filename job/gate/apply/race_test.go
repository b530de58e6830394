package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
)

// TestEditsAreNeverLost checks that a file that is saved at any time during an apply exists afterwards.
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
					if out.State == Applied {
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

// TestPromise3ParentBecomesSymlink checks that nothing changes at the target of a symlink that replaces a directory at any
// time.
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
				if strings.HasPrefix(name, gate.StagePrefix) {
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
			// An entry that could not be moved back is in the directory's new place, or saved.
			for _, text := range []string{"x", "y", "z"} {
				in := got["aside/"+text] + got["aside/e/"+text]
				saved, _ := os.ReadFile(filepath.Join(s.saved.Name(), objectsDir, gate.HashText([]byte(text))))
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

// TestKept checks that files that another process creates in a directory of the plan stay, and are reported.
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
			map[string]func(string) error{"placed 2": add("n"), "placed 3": edit}, []string{"n"}, RolledBack,
			shape{"d": "d 755", "d/x": "f 644 x", "n": "d 755", "n/theirs": "f 600 ", "z": "f 644 edit"},
		},
		"old directory, before it goes": {
			map[string]func(string) error{"taken 1": add("d")}, nil, RolledBack,
			shape{"d": "d 755", "d/x": "f 644 x", "d/theirs": "f 600 ", "z": "f 644 z"},
		},
		"old directory, on its way": {
			map[string]func(string) error{"moved 0": add(gate.StagePrefix + "*/o0")}, nil, RolledBack,
			shape{"d": "d 755", "d/x": "f 644 x", "d/theirs": "f 600 ", "z": "f 644 z"},
		},
		"old directory, after it went": {
			map[string]func(string) error{"commit": add(gate.StagePrefix + "*/o0")}, []string{"d"}, Applied,
			shape{"n": "d 755", "n/y": "f 644 y", "z": "f 644 zz", "d": "d 755", "d/theirs": "f 600 "},
		},
		"edited and taken back": {
			map[string]func(string) error{"switched": func(dir string) error {
				return errors.Join(os.WriteFile(dir+"/z", []byte("edit"), 0o644), os.WriteFile(dir+"/fail", nil, 0o600))
			}}, []string{"z"}, RolledBack,
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
			if err != nil || out.State != tt.state || fmt.Sprint(out.LeftInPlace) != fmt.Sprint(tt.kept) {
				t.Errorf("%+v, %v", out, err)
			}
			if len(done) != len(tt.at) {
				t.Errorf("only %v happened", done)
			}
			s.want(t, "afterwards", tt.want)
		})
	}
}
