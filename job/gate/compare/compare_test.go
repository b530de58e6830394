package compare_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

// Changes of a sandbox while the host does not change.
func TestCompare(t *testing.T) {
	tests := []struct {
		name string
		do   func(t *testing.T, box string)
		want string
	}{
		{"nothing", func(*testing.T, string) {}, ""},
		{"touched", func(t *testing.T, box string) {
			gatetest.Must(t, os.WriteFile(box+"/a.txt", []byte(gatetest.Seven), 0o644))
			gatetest.Must(t, os.Chown(box+"/dir/b.txt", 1, 1))
			gatetest.Must(t, os.Chown(box+"/dir/sub", 1, 1))
			gatetest.Must(t, os.Lchown(box+"/link", 1, 1))
			gatetest.Write(t, box+"/dir/new", "x")
			gatetest.Must(t, os.Remove(box+"/dir/new"))
		}, ""},
		{"edit", func(t *testing.T, box string) { gatetest.Write(t, box+"/a.txt", "other\n") }, "modified a.txt"},
		{"edit of the same size", func(t *testing.T, box string) { gatetest.Write(t, box+"/a.txt", strings.ToUpper(gatetest.Seven)) }, "modified a.txt"},
		{"mode", func(t *testing.T, box string) {
			gatetest.Must(t, os.Chmod(box+"/a.txt", 0o755))
			gatetest.Must(t, os.Chmod(box+"/dir", 0o700))
		}, "mode a.txt 644 755\nmode dir 755 700"},
		{"setuid", func(t *testing.T, box string) { gatetest.Must(t, os.Chmod(box+"/a.txt", 0o755|os.ModeSetuid)) }, "mode a.txt 644 4755"},
		{"setgid and sticky directories", func(t *testing.T, box string) {
			gatetest.Must(t, os.Mkdir(box+"/shared/new", 0o755))
			gatetest.Write(t, box+"/shared/x", "x\n")
			gatetest.Must(t, os.Chmod(box+"/dir", 0o755|os.ModeSetgid|os.ModeSticky))
			gatetest.Must(t, os.Chmod(box+"/dir/sub", 0o700|os.ModeSetgid))
		}, "mode dir/sub 755 700\nadded shared/new\nadded shared/x"},
		{"edit and mode", func(t *testing.T, box string) {
			gatetest.Write(t, box+"/a.txt", "other\n")
			gatetest.Must(t, os.Chmod(box+"/a.txt", 0o600))
		}, "modified a.txt"},
		{"add", func(t *testing.T, box string) {
			gatetest.Write(t, box+"/dir/new/x", "x\n")
			gatetest.Must(t, os.Symlink("x", box+"/dir/new/l"))
		}, "added dir/new\nadded dir/new/l\nadded dir/new/x"},
		{"remove", func(t *testing.T, box string) {
			gatetest.Must(t, os.RemoveAll(box+"/dir"))
			gatetest.Must(t, os.Remove(box+"/link"))
		},
			"removed dir\nremoved dir/b.txt\nremoved dir/c.txt\nremoved dir/sub\nremoved dir/sub/d.txt\nremoved link"},
		{"remove and make again", func(t *testing.T, box string) {
			gatetest.Must(t, os.RemoveAll(box+"/dir"))
			gatetest.Write(t, box+"/dir/b.txt", "b\n")
			gatetest.Write(t, box+"/dir/sub", "a file now\n")
		}, "removed dir/c.txt\ntype dir/sub dir file\nremoved dir/sub/d.txt"},
		{"the same again", func(t *testing.T, box string) {
			gatetest.Must(t, os.RemoveAll(box+"/dir"))
			gatetest.Write(t, box+"/dir/b.txt", "b\n")
			gatetest.Write(t, box+"/dir/c.txt", strings.Repeat("c\n", 99))
			gatetest.Write(t, box+"/dir/sub/d.txt", "d\n")
		}, ""},
		{"types", func(t *testing.T, box string) {
			gatetest.Must(t, os.RemoveAll(box+"/dir"))
			gatetest.Must(t, os.Symlink("/etc", box+"/dir"))
			gatetest.Must(t, os.Remove(box+"/link"))
			gatetest.Write(t, box+"/link", "x\n")
			gatetest.Must(t, os.Remove(box+"/a.txt"))
			gatetest.Must(t, os.Mkdir(box+"/a.txt", 0o755))
		}, "type a.txt file dir\ntype dir dir symlink\nremoved dir/b.txt\nremoved dir/c.txt\nremoved dir/sub\nremoved dir/sub/d.txt\ntype link symlink file"},
		{"link", func(t *testing.T, box string) {
			gatetest.Must(t, os.Remove(box+"/link"))
			gatetest.Must(t, os.Symlink("b.txt", box+"/link"))
		}, "modified link"},
		{"rename", func(t *testing.T, box string) { gatetest.Must(t, os.Rename(box+"/a.txt", box+"/dir/z.txt")) }, "renamed a.txt dir/z.txt"},
		{"rename of a directory", func(t *testing.T, box string) {
			gatetest.Must(t, os.CopyFS(box+"/moved", os.DirFS(box+"/dir")))
			gatetest.Must(t, os.RemoveAll(box+"/dir"))
		}, "removed dir\nremoved dir/sub\nadded moved\nrenamed dir/b.txt moved/b.txt\nrenamed dir/c.txt moved/c.txt\nadded moved/sub\nrenamed dir/sub/d.txt moved/sub/d.txt"},
		{"rename and edit", func(t *testing.T, box string) {
			gatetest.Must(t, os.Rename(box+"/a.txt", box+"/z.txt"))
			gatetest.Write(t, box+"/z.txt", strings.Replace(gatetest.Seven, "four", "4", 1))
		}, "renamed a.txt z.txt"},
		{"no rename", func(t *testing.T, box string) {
			gatetest.Must(t, os.Remove(box+"/a.txt"))
			gatetest.Write(t, box+"/z.txt", strings.ToUpper(gatetest.Seven))
		}, "removed a.txt\nadded z.txt"},
		{"pipe", func(t *testing.T, box string) { gatetest.Must(t, gatetest.Mkfifo(box+"/p")) }, "added p deny"},
		{"hidden", func(t *testing.T, box string) {
			if _, err := os.Stat(box + "/.env"); err == nil {
				t.Error("the sandbox sees a secret")
			}
			gatetest.Write(t, box+"/.env", "x\n")
			gatetest.Write(t, box+"/keys/.SSH/id", "x\n")
			gatetest.Write(t, box+"/.env.example", "x\n")
		}, "modified .env deny\nadded .env.example\nadded keys\nadded keys/.SSH deny\nadded keys/.SSH/id deny"},
		{"hidden, made and removed", func(t *testing.T, box string) {
			gatetest.Write(t, box+"/.env", "x\n")
			gatetest.Must(t, os.Remove(box+"/.env"))
		}, ""},
		{"removed with what is hidden", func(t *testing.T, box string) { gatetest.Must(t, os.RemoveAll(box+"/conf")) },
			"removed conf clash\nremoved conf/deep clash\nremoved conf/deep/server.pem deny\nremoved conf/x"},
		{"not UTF-8", func(t *testing.T, box string) {
			gatetest.Write(t, box+"/\xff", "x")
			gatetest.Must(t, os.Symlink("\xff", box+"/l"))
		}, "added l deny\nadded \\xff deny"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := overlaytest.New(t, overlaytest.PrepareHost(t))
			tt.do(t, o.Box)
			diffs, f := o.Compare(compare.Options{Patch: true})
			if got := overlaytest.Summary(diffs); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			applies(t, o, f, diffs)
		})
	}
}

// applies checks that the steps of changes without findings make a valid plan, and that their contents exist.
func applies(t *testing.T, o *overlaytest.Workspace, f *overlay.Frozen, diffs []compare.Difference) {
	t.Helper()
	var plan gate.Plan
	for _, d := range diffs {
		if d.Change.Mode&^0o777 != 0 {
			continue
		}
		for _, s := range d.Steps {
			plan.Steps = append(plan.Steps, s)
			if s.After.Type == fsat.TypeFile && gate.HashText([]byte(overlaytest.Content(t, f, s.After.Hash))) != s.After.Hash {
				t.Errorf("%s: the content is another", s.Path)
			}
			if s.After.Type == fsat.TypeFile && overlaytest.Content(t, f, d.Change.Hash) != overlaytest.Content(t, f, s.After.Hash) {
				t.Errorf("%s: the hash names another content", s.Path)
			}
			if want := nodeAt(t, o.Host, s.Path); !want.Same(s.Before) {
				t.Errorf("%s: expected before %+v, is %+v", s.Path, s.Before, want)
			}
		}
	}
	gatetest.Must(t, plan.Validate())
}

func nodeAt(t *testing.T, dir, path string) gate.Node {
	t.Helper()
	r := baseline.NewHostReader(t.Context(), int(gatetest.OpenDir(t, dir).Fd()))
	s, err := r.State(path)
	gatetest.Must(t, err)
	return s.Node()
}

func TestComparePatches(t *testing.T) {
	o := overlaytest.New(t, overlaytest.PrepareHost(t))
	gatetest.Write(t, o.Box+"/a.txt", strings.Replace(gatetest.Seven, "one", "1", 1))
	gatetest.Write(t, o.Box+"/bin", "\x00")
	gatetest.Write(t, o.Box+"/new", "new\n")
	gatetest.Must(t, os.Remove(o.Box+"/dir/b.txt"))
	gatetest.Must(t, os.Rename(o.Box+"/dir/c.txt", o.Box+"/dir/e.txt"))
	gatetest.Write(t, o.Box+"/dir/e.txt", strings.Repeat("c\n", 98)+"e\n")
	gatetest.Write(t, o.Host+"/a.txt", strings.Replace(gatetest.Seven, "seven", "7", 1))
	diffs, _ := o.Compare(compare.Options{Patch: true})
	var got []string
	for _, d := range diffs {
		c := d.Change
		head, _, _ := strings.Cut(c.Patch, "@@")
		got = append(got, fmt.Sprintf("%s +%d -%d %v %q", c.Path, c.Added, c.Removed, c.Binary, head))
	}
	want := []string{
		`a.txt +1 -1 false "--- a/a.txt\n+++ b/a.txt\n"`,
		`bin +0 -0 true ""`,
		`dir/b.txt +0 -1 false "--- a/dir/b.txt\n+++ /dev/null\n"`,
		`dir/e.txt +1 -1 false "--- a/dir/c.txt\n+++ b/dir/e.txt\n"`,
		`new +1 -0 false "--- /dev/null\n+++ b/new\n"`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(diffs[0].Change.Patch, "7\n+") || !strings.Contains(diffs[0].Change.Patch, "-one\n+1\n") {
		t.Errorf("the patch of a merge is not against what the host has:\n%s", diffs[0].Change.Patch)
	}
}

// After an apply, later changes of a workspace are compared with the applied states.
func TestRebase(t *testing.T) {
	o := overlaytest.New(t, overlaytest.PrepareHost(t))
	v := func(n int) string { return strings.Replace(gatetest.Seven, "one", fmt.Sprint(n), 1) }
	apply := func() {
		t.Helper()
		diffs, f := o.Compare(compare.Options{})
		var applied []baseline.AppliedPath
		for _, d := range diffs {
			for _, s := range d.Steps {
				applied = append(applied, baseline.AppliedPath{Path: s.Path, Node: s.After})
				path := filepath.Join(o.Host, s.Path)
				switch s.After.Type {
				case fsat.TypeFile:
					gatetest.Write(t, path, overlaytest.Content(t, f, s.After.Hash))
				case fsat.TypeDir:
					gatetest.Must(t, os.MkdirAll(path, 0o755))
				default:
					gatetest.Must(t, os.RemoveAll(path))
				}
			}
		}
		gatetest.Must(t, baseline.Rebase(t.Context(), o.Dir("host"), o.Dir("base"), applied))
		if diffs, _ := o.Compare(compare.Options{}); len(diffs) > 0 {
			t.Errorf("still there after it was applied:\n%s", overlaytest.Summary(diffs))
		}
	}
	gatetest.Write(t, o.Box+"/a.txt", v(1))
	gatetest.Write(t, o.Box+"/new/x", "x\n")
	gatetest.Must(t, os.RemoveAll(o.Box+"/dir/sub"))
	apply()
	gatetest.Write(t, o.Box+"/a.txt", v(2))
	gatetest.Write(t, o.Box+"/new/x", "y\n")
	gatetest.Write(t, o.Box+"/dir/sub/d.txt", "again\n")
	diffs, _ := o.Compare(compare.Options{})
	if got := overlaytest.Summary(diffs); got != "modified a.txt\nadded dir/sub\nadded dir/sub/d.txt\nmodified new/x" {
		t.Errorf("got\n%s", got)
	}
	apply()
	// The applied contents are the base of three-way merges.
	gatetest.Write(t, o.Box+"/a.txt", v(3))
	gatetest.Write(t, o.Host+"/a.txt", v(2)+"eight\n")
	gatetest.Must(t, os.RemoveAll(o.Box+"/new"))
	diffs, f := o.Compare(compare.Options{})
	if got := overlaytest.Summary(diffs); got != "modified a.txt moved merge\nremoved new\nremoved new/x" {
		t.Errorf("got\n%s", got)
	} else if got := overlaytest.Content(t, f, diffs[0].Change.Hash); got != v(3)+"eight\n" {
		t.Errorf("merged into %q", got)
	}
	// A path that is not in its applied state does not become part of the base.
	gatetest.Must(t, baseline.Rebase(t.Context(), o.Dir("host"), o.Dir("base"), []baseline.AppliedPath{{Path: "a.txt", Node: gate.Node{Type: fsat.TypeFile, Mode: 0o644, Hash: gate.HashText(nil)}}}))
	if again, _ := o.Compare(compare.Options{}); overlaytest.Summary(again) != overlaytest.Summary(diffs) {
		t.Errorf("got\n%s", overlaytest.Summary(again))
	}
}
