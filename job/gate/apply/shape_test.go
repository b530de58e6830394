package apply

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
)

// A shape describes a directory: by path "f MODE CONTENT", "d MODE" or "l TARGET".
type shape map[string]string

// lay creates a directory with the shape s.
func lay(t testing.TB, dir string, s shape) {
	t.Helper()
	var modes []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		full := filepath.Join(dir, name)
		kind, rest, _ := strings.Cut(s[name], " ")
		var err error
		switch kind {
		case "d":
			err = os.MkdirAll(full, 0o700)
			modes = append(modes, name)
		case "l":
			err = os.Symlink(rest, full)
		default:
			_, content, _ := strings.Cut(rest, " ")
			err = os.WriteFile(full, []byte(content), 0o600)
			modes = append(modes, name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Backward(modes) {
		if err := syscall.Chmod(filepath.Join(dir, name), parseMode(t, s[name])); err != nil {
			t.Fatal(err)
		}
	}
}

func parseMode(t testing.TB, text string) uint32 {
	t.Helper()
	var kind string
	var mode uint32
	if _, err := fmt.Sscanf(text, "%s %o", &kind, &mode); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return mode
}

// shapeOf returns the shape of dir.
func shapeOf(t testing.TB, dir string) shape {
	t.Helper()
	s := shape{}
	err := filepath.WalkDir(dir, func(full string, d fs.DirEntry, err error) error {
		if err != nil || full == dir {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(full, &st); err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, full)
		switch mode := st.Mode & 0o7777; {
		case d.IsDir():
			s[name] = fmt.Sprintf("d %o", mode)
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(full)
			s[name] = "l " + to
			return err
		case d.Type().IsRegular():
			b, err := os.ReadFile(full)
			s[name] = fmt.Sprintf("f %o %s", mode, b)
			return err
		default:
			s[name] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s shape) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&b, "  %q: %.60q\n", name, s[name])
	}
	return b.String()
}

// contents are the contents of a plan by hash.
type contents map[string]string

func (c contents) read(hash string) (io.ReadCloser, error) {
	if text, ok := c[hash]; ok {
		return io.NopCloser(strings.NewReader(text)), nil
	}
	return nil, fs.ErrNotExist
}

func (c contents) node(t testing.TB, text string) gate.Node {
	t.Helper()
	kind, rest, _ := strings.Cut(text, " ")
	switch kind {
	case "":
		return gate.Node{}
	case "d":
		return gate.Node{Type: "dir", Mode: parseMode(t, text)}
	case "l":
		return gate.Node{Type: "symlink", Link: []byte(rest)}
	}
	_, content, _ := strings.Cut(rest, " ")
	c[gate.HashText([]byte(content))] = content
	return gate.Node{Type: "file", Mode: parseMode(t, text), Hash: gate.HashText([]byte(content))}
}

// planOf returns the plan that turns before into after.
func planOf(t testing.TB, before, after shape) (*gate.Plan, contents) {
	t.Helper()
	c, p := contents{}, &gate.Plan{}
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if before[name] == after[name] {
			continue
		}
		s := gate.Step{Path: name, Before: c.node(t, before[name]), After: c.node(t, after[name])}
		if s.Before.Type == "symlink" {
			s.Before.Hash, s.Before.Link = gate.HashText(s.Before.Link), nil
		}
		p.Steps = append(p.Steps, s)
	}
	return p, c
}

func dirFile(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// site is a host directory and a directory for the originals and the journal.
type site struct {
	dir         string
	host, saved *os.File
}

func newSite(t testing.TB, s shape) site {
	t.Helper()
	return newSiteIn(t, t.TempDir(), s)
}

// memorySite returns a site in memory, so that syncs do not wait for a disk.
func memorySite(t testing.TB, s shape) site {
	t.Helper()
	base, err := os.MkdirTemp("/dev/shm", "caisson-gate-")
	if err != nil {
		return newSite(t, s)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	return newSiteIn(t, base, s)
}

func newSiteIn(t testing.TB, base string, s shape) site {
	t.Helper()
	dir, saved := filepath.Join(base, "host"), filepath.Join(base, "saved")
	if err := os.Mkdir(saved, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lay(t, dir, s)
	t.Cleanup(func() { // so that any user can remove TempDir
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				os.Chmod(p, 0o700)
			}
			return nil
		})
	})
	return site{dir: dir, host: dirFile(t, dir), saved: dirFile(t, saved)}
}

func (s site) want(t testing.TB, what string, want shape) {
	t.Helper()
	if got := shapeOf(t, s.dir); !maps.Equal(got, want) {
		t.Errorf("%s there is\n%vnot\n%v", what, got, want)
	}
}

func wantState(t testing.TB, what string, out Outcome, err error, state string) {
	t.Helper()
	if err != nil || out.State != state || len(out.LeftInPlace) > 0 {
		t.Errorf("%s: %+v, %v; want %q", what, out, err, state)
	}
}

func wantMoved(t testing.TB, err error, paths ...string) {
	t.Helper()
	moved, ok := errors.AsType[*gate.Moved](err)
	if !ok || caisson.KindOf(err) != caisson.Conflict || !slices.Equal(moved.Paths, paths) {
		t.Errorf("error is %v, want a conflict about %q", err, paths)
	}
}
