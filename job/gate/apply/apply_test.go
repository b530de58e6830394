package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
)

// operations are the kinds of changes of a directory.
var operations = []struct {
	name          string
	before, after shape
}{
	{"nothing", shape{"a": "f 644 1"}, shape{"a": "f 644 1"}},
	{"add", shape{}, shape{"a": "f 644 1", "b": "f 755 2", "empty": "f 600 "}},
	{"modify", shape{"a": "f 644 1", "b": "f 600 2"}, shape{"a": "f 644 2", "b": "f 600 "}},
	{"delete", shape{"a": "f 644 1", "b": "f 644 1"}, shape{"b": "f 644 1"}},
	{"rename", shape{"a": "f 644 1"}, shape{"b": "f 644 1"}},
	{"exchange", shape{"a": "f 644 1", "b": "f 644 2"}, shape{"a": "f 644 2", "b": "f 644 1"}},
	{"mode", shape{"a": "f 644 1", "d": "d 755"}, shape{"a": "f 755 1", "d": "d 700"}},
	{"mode and content", shape{"a": "f 644 1"}, shape{"a": "f 755 2"}},
	{"read-only files", shape{"a": "f 444 1", "b": "f 400 2"}, shape{"a": "f 444 2", "c": "f 400 2"}},
	{"symlink add", shape{}, shape{"l": "l a", "m": "l ../outside"}},
	{"symlink replace", shape{"l": "l a"}, shape{"l": "l b"}},
	{"symlink remove", shape{"l": "l a", "a": "f 644 1"}, shape{"a": "f 644 1"}},
	{"directory add", shape{}, shape{"d": "d 755", "d/e": "d 500", "d/e/f": "f 644 1", "d/e/g": "f 600 2"}},
	{"directory remove", shape{"d": "d 755", "d/e": "d 711", "d/e/f": "f 644 1"}, shape{}},
	{"directory rename", shape{"d": "d 755", "d/a": "f 644 1"}, shape{"e": "d 755", "e/a": "f 644 1"}},
	{"read-only directory", shape{"d": "d 555", "d/e": "d 555", "d/e/f": "f 644 1"}, shape{"d": "d 755"}},
	{"file to symlink", shape{"a": "f 644 1", "b": "l a"}, shape{"a": "l b", "b": "f 644 1"}},
	{"file to directory", shape{"a": "f 644 1"}, shape{"a": "d 755", "a/b": "f 644 2", "a/c": "d 755"}},
	{"symlink to directory", shape{"a": "l b"}, shape{"a": "d 755", "a/b": "f 644 2"}},
	{"directory to file", shape{"a": "d 755", "a/b": "f 644 2", "a/c": "d 755"}, shape{"a": "f 644 1"}},
	{"directory to symlink", shape{"a": "d 755", "a/b": "f 644 2"}, shape{"a": "l b"}},
	{"setgid directory", shape{"s": "d 2755", "s/x": "f 644 x"}, shape{"s": "d 2700", "s/y": "f 644 x"}},
	{"deep", shape{"1": "d 755", "1/2": "d 755", "1/2/3": "d 755", "1/2/3/4": "f 644 x"},
		shape{"1": "d 755", "1/2": "d 755", "1/2/3": "d 755", "1/2/3/5": "d 755", "1/2/3/5/6": "d 755", "1/2/3/5/6/7": "f 644 y"}},
	{"hostile names", shape{"-rf": "f 644 1", "a\n": "f 644 1"}, shape{"-rf": "f 644 2", "\x1b[31m": "f 644 1", "\u202e": "d 755", "$(x)": "l `y`"}},
	{"everything", shape{"a": "f 644 1", "b": "f 644 2", "c": "f 644 3", "l": "l a", "d": "d 755", "d/x": "f 644 x", "d/y": "d 555",
		"d/y/z": "f 644 z", "t": "f 644 t", "u": "d 755", "u/v": "f 644 v", "stay": "d 755", "stay/s": "f 644 s"},
		shape{"a": "f 644 11", "b": "f 755 2", "r": "f 644 3", "l": "l b", "t": "d 700", "t/w": "f 600 w", "u": "f 644 u",
			"stay": "d 711", "stay/s": "f 644 ss", "n": "d 755", "n/m": "d 555", "n/m/o": "f 644 o", "n/l": "l m"}},
}

// mixed combines one change of each kind, for tests that try every point of an apply.
var mixed = struct{ before, after shape }{
	shape{"a": "f 644 1", "c": "f 644 2", "d": "d 555", "d/x": "f 644 x", "l": "l a", "s": "d 755", "t": "f 644 t"},
	shape{"a": "f 644 11", "c": "f 755 2", "l": "l b", "s": "d 711", "s/n": "f 600 n", "t": "d 700", "t/w": "f 600 w"},
}

func TestApplyAndUndo(t *testing.T) {
	t.Parallel()
	for _, tt := range operations {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t, tt.before)
			plan, c := planOf(t, tt.before, tt.after)
			out, err := Recover(t.Context(), s.host, s.saved)
			wantState(t, "recover before", out, err, None)
			if _, err := Undo(t.Context(), s.host, s.saved); caisson.KindOf(err) != caisson.Conflict {
				t.Errorf("undo before: %v", err)
			}
			out, err = Apply(t.Context(), s.host, s.saved, plan, c.read)
			wantState(t, "apply", out, err, Applied)
			s.want(t, "after apply", tt.after)
			out, err = Recover(t.Context(), s.host, s.saved)
			wantState(t, "recover after", out, err, Applied)
			if _, err := Apply(t.Context(), s.host, s.saved, plan, c.read); caisson.KindOf(err) != caisson.Conflict {
				t.Errorf("applied twice: %v", err)
			}
			out, err = Undo(t.Context(), s.host, s.saved)
			wantState(t, "undo", out, err, Undone)
			s.want(t, "after undo", tt.before)
			out, err = Recover(t.Context(), s.host, s.saved)
			wantState(t, "recover after undo", out, err, Undone)
			if _, err := Undo(t.Context(), s.host, s.saved); caisson.KindOf(err) != caisson.Conflict {
				t.Errorf("undone twice: %v", err)
			}
			s.want(t, "in the end", tt.before)
		})
	}
}

// TestApplyExpects checks that nothing is changed if the host is not in the state that the plan expects.
func TestApplyExpects(t *testing.T) {
	t.Parallel()
	before := shape{"a": "f 644 1", "l": "l a", "d": "d 755", "d/x": "f 644 x", "g": "d 755", "g/y": "f 644 y"}
	after := shape{"a": "f 644 2", "l": "l b", "d": "d 755", "d/x": "f 755 x", "new": "f 644 n", "d/new": "d 755"}
	for _, tt := range []struct {
		name   string
		change func(dir string) error
		moved  []string
	}{
		{"content", func(d string) error { return os.WriteFile(d+"/a", []byte("3"), 0) }, []string{"a"}},
		{"mode", func(d string) error { return os.Chmod(d+"/a", 0o600) }, []string{"a"}},
		{"gone", func(d string) error { return os.Remove(d + "/a") }, []string{"a"}},
		{"a directory now", func(d string) error { return errors.Join(os.Remove(d+"/a"), os.Mkdir(d+"/a", 0o644)) }, []string{"a"}},
		{"a FIFO now", func(d string) error { return errors.Join(os.Remove(d+"/a"), syscall.Mkfifo(d+"/a", 0o644)) }, []string{"a"}},
		{"a symlink now", func(d string) error { return errors.Join(os.Rename(d+"/a", d+"/z"), os.Symlink("z", d+"/a")) }, []string{"a"}},
		{"another target", func(d string) error { return errors.Join(os.Remove(d+"/l"), os.Symlink("c", d+"/l")) }, []string{"l"}},
		{"there already", func(d string) error { return os.WriteFile(d+"/new", nil, 0o644) }, []string{"new"}},
		{"not empty", func(d string) error { return os.WriteFile(d+"/g/.env", nil, 0o644) }, []string{"g"}},
		{"no parent", func(d string) error { return os.RemoveAll(d + "/d") }, []string{"d/new", "d/x"}},
		{"parent is a symlink", func(d string) error { return errors.Join(os.Rename(d+"/d", d+"/e"), os.Symlink("e", d+"/d")) }, []string{"d/new", "d/x"}},
		{"several", func(d string) error {
			return errors.Join(os.Remove(d+"/l"), os.Remove(d+"/a"), os.WriteFile(d+"/new", nil, 0o644))
		}, []string{"a", "l", "new"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t, before)
			plan, c := planOf(t, before, after)
			if err := tt.change(s.dir); err != nil {
				t.Fatal(err)
			}
			was := shapeOf(t, s.dir)
			_, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
			wantMoved(t, err, tt.moved...)
			s.want(t, "afterwards", was)
			out, err := Recover(t.Context(), s.host, s.saved)
			wantState(t, "recover", out, err, None)
		})
	}
}

// TestUndoExpects checks that paths that have changed since the apply are not undone.
func TestUndoExpects(t *testing.T) {
	t.Parallel()
	before, after := shape{"a": "f 644 1", "b": "f 644 1"}, shape{"a": "f 644 2", "d": "d 755", "d/x": "f 644 x"}
	for name, tt := range map[string]struct {
		change func(dir string) error
		moved  []string
	}{
		"edited":      {func(d string) error { return os.WriteFile(d+"/a", []byte("3"), 0) }, []string{"a"}},
		"added below": {func(d string) error { return os.WriteFile(d+"/d/y", nil, 0o600) }, []string{"d"}},
		"back again":  {func(d string) error { return os.WriteFile(d+"/b", nil, 0o600) }, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, before)
			plan, c := planOf(t, before, after)
			if _, err := Apply(t.Context(), s.host, s.saved, plan, c.read); err != nil {
				t.Fatal(err)
			}
			if err := tt.change(s.dir); err != nil {
				t.Fatal(err)
			}
			was := shapeOf(t, s.dir)
			out, err := Undo(t.Context(), s.host, s.saved)
			wantMoved(t, err, tt.moved...)
			if out.State != Applied {
				t.Errorf("outcome %+v", out)
			}
			s.want(t, "afterwards", was)
		})
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	file := gate.Node{Type: "file", Mode: 0o644, Hash: gate.HashText(nil)}
	dir, link := gate.Node{Type: "dir", Mode: 0o755}, gate.Node{Type: "symlink", Link: []byte("x")}
	with := func(n gate.Node, mode uint32) gate.Node { n.Mode = mode; return n }
	for name, steps := range map[string][]gate.Step{
		"absolute":            {{Path: "/etc/x", After: file}},
		"upwards":             {{Path: "../x", After: file}},
		"upwards inside":      {{Path: "a/../../x", After: file}},
		"only upwards":        {{Path: "..", After: file}},
		"the directory":       {{Path: ".", After: dir}},
		"empty":               {{After: file}},
		"not clean":           {{Path: "a//b", After: file}},
		"NUL":                 {{Path: "a\x00b", After: file}},
		"not UTF-8":           {{Path: "\xff", After: file}},
		"long":                {{Path: strings.Repeat("x", 256), After: file}},
		"Caisson's own":       {{Path: "d/.caisson-x", After: file}},
		"twice":               {{Path: "a", After: file}, {Path: "a", After: dir}},
		"setuid":              {{Path: "a", After: with(file, 0o4755)}},
		"setgid":              {{Path: "a", After: with(file, 0o2755)}},
		"sticky":              {{Path: "a", After: with(file, 0o1755)}},
		"unreadable":          {{Path: "a", After: with(file, 0o200)}},
		"unreadable inside":   {{Path: "a", After: with(dir, 0o311)}},
		"a device":            {{Path: "a", After: gate.Node{Type: "device"}}},
		"a FIFO before":       {{Path: "a", Before: gate.Node{Type: "fifo"}}},
		"no hash":             {{Path: "a", After: gate.Node{Type: "file", Mode: 0o644}}},
		"a path for a hash":   {{Path: "a", After: gate.Node{Type: "file", Mode: 0o644, Hash: "../../../etc/passwd"}}},
		"no target":           {{Path: "a", After: gate.Node{Type: "symlink"}}},
		"another target":      {{Path: "a", After: gate.Node{Type: "symlink", Link: []byte("x"), Hash: gate.HashText([]byte("y"))}}},
		"below a file":        {{Path: "a", After: file}, {Path: "a/b", After: file}},
		"below a symlink":     {{Path: "a/b/c", After: file}, {Path: "a", After: link}},
		"below nothing":       {{Path: "a", Before: dir}, {Path: "a/b", After: file}},
		"below what was none": {{Path: "a", After: dir}, {Path: "a/b", Before: file}},
	} {
		s := newSite(t, shape{})
		if _, err := Apply(t.Context(), s.host, s.saved, &gate.Plan{Steps: steps}, contents{}.read); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %v", name, err)
		}
		s.want(t, name, shape{})
	}
}

// TestPlanWithoutChange checks that a step without a change only requires the expected state.
func TestPlanWithoutChange(t *testing.T) {
	now := shape{"a": "f 644 1", "d": "d 755", "l": "l a"}
	s, c := newSite(t, now), contents{}
	plan := &gate.Plan{}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		n := c.node(t, now[name])
		if n.Type == "symlink" {
			n.Hash = gate.HashText(n.Link)
		}
		plan.Steps = append(plan.Steps, gate.Step{Path: name, Before: n, After: n})
	}
	// A step may differ only in bits of directories that are not applied.
	plan.Steps[1].After.Mode = 0o3755
	out, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
	wantState(t, "apply", out, err, Applied)
	s.want(t, "after apply", now)
	out, err = Undo(t.Context(), s.host, s.saved)
	wantState(t, "undo", out, err, Undone)
	s.want(t, "after undo", now)
}

// TestPromise3OnlyWhatWasReviewed checks that content that does not match its hash is not applied.
func TestPromise3OnlyWhatWasReviewed(t *testing.T) {
	before, after := shape{"a": "f 644 1", "b": "f 644 1"}, shape{"a": "f 644 2", "b": "f 644 3"}
	s := newSite(t, before)
	plan, c := planOf(t, before, after)
	for hash, read := range map[string]func(string) (io.ReadCloser, error){
		"other content": func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("4")), nil },
		"no content":    contents{}.read,
		"cut short": func(hash string) (io.ReadCloser, error) {
			r, err := c.read(hash)
			return io.NopCloser(io.MultiReader(r, errReader{})), err
		},
	} {
		out, err := Apply(t.Context(), s.host, s.saved, plan, read)
		if err == nil || out.State != RolledBack {
			t.Errorf("%s: %+v, %v", hash, out, err)
		}
		s.want(t, hash, before)
	}
	out, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
	wantState(t, "apply in the end", out, err, Applied)
	s.want(t, "in the end", after)
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("unreadable") }

func TestCancelTakesBack(t *testing.T) {
	t.Parallel()
	op := mixed
	plan, c := planOf(t, op.before, op.after)
	for n := 0; ; n++ {
		s := memorySite(t, op.before)
		ctx, cancel := context.WithCancel(t.Context())
		points := 0
		out, err := apply(ctx, s.host, s.saved, plan, c.read, func(string) {
			if points++; points == n+1 {
				cancel()
			}
		})
		cancel()
		if err == nil {
			if out.State != Applied {
				t.Errorf("%+v", out)
			}
			s.want(t, "in the end", op.after)
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("point %d: %v", n, err)
		} else {
			s.want(t, fmt.Sprintf("cancelled at %d", n), op.before)
		}
		if points <= n {
			return
		}
	}
}
