package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a sandbox does, on a host that stays as it is.
func TestCompare(t *testing.T) {
	tests := []struct {
		name string
		do   func(t *testing.T, box string)
		want string
	}{
		{"nothing", func(*testing.T, string) {}, ""},
		{"touched", func(t *testing.T, box string) {
			check(t, os.WriteFile(box+"/a.txt", []byte(seven), 0o644))
			check(t, os.Chown(box+"/dir/b.txt", 1, 1))
			check(t, os.Chown(box+"/dir/sub", 1, 1))
			check(t, os.Lchown(box+"/link", 1, 1))
			write(t, box+"/dir/new", "x")
			check(t, os.Remove(box+"/dir/new"))
		}, ""},
		{"edit", func(t *testing.T, box string) { write(t, box+"/a.txt", "other\n") }, "modified a.txt"},
		{"edit of the same size", func(t *testing.T, box string) { write(t, box+"/a.txt", strings.ToUpper(seven)) }, "modified a.txt"},
		{"mode", func(t *testing.T, box string) {
			check(t, os.Chmod(box+"/a.txt", 0o755))
			check(t, os.Chmod(box+"/dir", 0o700))
		}, "mode a.txt 644 755\nmode dir 755 700"},
		{"setuid", func(t *testing.T, box string) { check(t, os.Chmod(box+"/a.txt", 0o755|os.ModeSetuid)) }, "mode a.txt 644 4755"},
		{"setgid and sticky directories", func(t *testing.T, box string) {
			check(t, os.Mkdir(box+"/shared/new", 0o755))
			write(t, box+"/shared/x", "x\n")
			check(t, os.Chmod(box+"/dir", 0o755|os.ModeSetgid|os.ModeSticky))
			check(t, os.Chmod(box+"/dir/sub", 0o700|os.ModeSetgid))
		}, "mode dir/sub 755 700\nadded shared/new\nadded shared/x"},
		{"edit and mode", func(t *testing.T, box string) {
			write(t, box+"/a.txt", "other\n")
			check(t, os.Chmod(box+"/a.txt", 0o600))
		}, "modified a.txt"},
		{"add", func(t *testing.T, box string) {
			write(t, box+"/dir/new/x", "x\n")
			check(t, os.Symlink("x", box+"/dir/new/l"))
		}, "added dir/new\nadded dir/new/l\nadded dir/new/x"},
		{"remove", func(t *testing.T, box string) { check(t, os.RemoveAll(box+"/dir")); check(t, os.Remove(box+"/link")) },
			"removed dir\nremoved dir/b.txt\nremoved dir/c.txt\nremoved dir/sub\nremoved dir/sub/d.txt\nremoved link"},
		{"remove and make again", func(t *testing.T, box string) {
			check(t, os.RemoveAll(box+"/dir"))
			write(t, box+"/dir/b.txt", "b\n")
			write(t, box+"/dir/sub", "a file now\n")
		}, "removed dir/c.txt\ntype dir/sub dir file\nremoved dir/sub/d.txt"},
		{"the same again", func(t *testing.T, box string) {
			check(t, os.RemoveAll(box+"/dir"))
			write(t, box+"/dir/b.txt", "b\n")
			write(t, box+"/dir/c.txt", strings.Repeat("c\n", 99))
			write(t, box+"/dir/sub/d.txt", "d\n")
		}, ""},
		{"types", func(t *testing.T, box string) {
			check(t, os.RemoveAll(box+"/dir"))
			check(t, os.Symlink("/etc", box+"/dir"))
			check(t, os.Remove(box+"/link"))
			write(t, box+"/link", "x\n")
			check(t, os.Remove(box+"/a.txt"))
			check(t, os.Mkdir(box+"/a.txt", 0o755))
		}, "type a.txt file dir\ntype dir dir symlink\nremoved dir/b.txt\nremoved dir/c.txt\nremoved dir/sub\nremoved dir/sub/d.txt\ntype link symlink file"},
		{"link", func(t *testing.T, box string) {
			check(t, os.Remove(box+"/link"))
			check(t, os.Symlink("b.txt", box+"/link"))
		}, "modified link"},
		{"rename", func(t *testing.T, box string) { check(t, os.Rename(box+"/a.txt", box+"/dir/z.txt")) }, "renamed a.txt dir/z.txt"},
		{"rename of a directory", func(t *testing.T, box string) {
			check(t, os.CopyFS(box+"/moved", os.DirFS(box+"/dir")))
			check(t, os.RemoveAll(box+"/dir"))
		}, "removed dir\nremoved dir/sub\nadded moved\nrenamed dir/b.txt moved/b.txt\nrenamed dir/c.txt moved/c.txt\nadded moved/sub\nrenamed dir/sub/d.txt moved/sub/d.txt"},
		{"rename and edit", func(t *testing.T, box string) {
			check(t, os.Rename(box+"/a.txt", box+"/z.txt"))
			write(t, box+"/z.txt", strings.Replace(seven, "four", "4", 1))
		}, "renamed a.txt z.txt"},
		{"no rename", func(t *testing.T, box string) {
			check(t, os.Remove(box+"/a.txt"))
			write(t, box+"/z.txt", strings.ToUpper(seven))
		}, "removed a.txt\nadded z.txt"},
		{"pipe", func(t *testing.T, box string) { check(t, mkfifo(box+"/p")) }, "added p deny"},
		{"hidden", func(t *testing.T, box string) {
			if _, err := os.Stat(box + "/.env"); err == nil {
				t.Error("the sandbox sees a secret")
			}
			write(t, box+"/.env", "x\n")
			write(t, box+"/keys/.SSH/id", "x\n")
			write(t, box+"/.env.example", "x\n")
		}, "modified .env deny\nadded .env.example\nadded keys\nadded keys/.SSH deny\nadded keys/.SSH/id deny"},
		{"hidden, made and removed", func(t *testing.T, box string) {
			write(t, box+"/.env", "x\n")
			check(t, os.Remove(box+"/.env"))
		}, ""},
		{"removed with what is hidden", func(t *testing.T, box string) { check(t, os.RemoveAll(box+"/conf")) },
			"removed conf clash\nremoved conf/deep clash\nremoved conf/deep/server.pem deny\nremoved conf/x"},
		{"not UTF-8", func(t *testing.T, box string) {
			write(t, box+"/\xff", "x")
			check(t, os.Symlink("\xff", box+"/l"))
		}, "added l deny\nadded \\xff deny"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := newOverlay(t, prepareHost(t))
			tt.do(t, o.box)
			diffs, f := o.compare(CompareOptions{Patch: true})
			if got := summary(diffs); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			applies(t, o, f, diffs)
		})
	}
}

// applies checks that the steps that nothing is against make a valid plan, whose contents are there.
func applies(t *testing.T, o *overlay, f *Frozen, diffs []Difference) {
	t.Helper()
	var plan Plan
	for _, d := range diffs {
		if d.Change.Mode&^0o777 != 0 {
			continue
		}
		for _, s := range d.Steps {
			plan.Steps = append(plan.Steps, s)
			if s.After.Type == typeFile && HashText([]byte(contentOf(t, f, s.After.Hash))) != s.After.Hash {
				t.Errorf("%s: the content is another", s.Path)
			}
			if s.After.Type == typeFile && contentOf(t, f, d.Change.Hash) != contentOf(t, f, s.After.Hash) {
				t.Errorf("%s: the hash names another content", s.Path)
			}
			if want := nodeAt(t, o.host, s.Path); !want.same(s.Before) {
				t.Errorf("%s: expected before %+v, is %+v", s.Path, s.Before, want)
			}
		}
	}
	check(t, plan.Validate())
}

func nodeAt(t *testing.T, dir, path string) Node {
	t.Helper()
	r := newHostReader(t.Context(), int(openTestDir(t, dir).Fd()))
	s, err := r.state(path)
	check(t, err)
	return s.node()
}

func TestComparePatches(t *testing.T) {
	o := newOverlay(t, prepareHost(t))
	write(t, o.box+"/a.txt", strings.Replace(seven, "one", "1", 1))
	write(t, o.box+"/bin", "\x00")
	write(t, o.box+"/new", "new\n")
	check(t, os.Remove(o.box+"/dir/b.txt"))
	check(t, os.Rename(o.box+"/dir/c.txt", o.box+"/dir/e.txt"))
	write(t, o.box+"/dir/e.txt", strings.Repeat("c\n", 98)+"e\n")
	write(t, o.host+"/a.txt", strings.Replace(seven, "seven", "7", 1))
	diffs, _ := o.compare(CompareOptions{Patch: true})
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

// A workspace goes on after an apply: what was applied is what later changes are compared with.
func TestRebase(t *testing.T) {
	o := newOverlay(t, prepareHost(t))
	v := func(n int) string { return strings.Replace(seven, "one", fmt.Sprint(n), 1) }
	apply := func() {
		t.Helper()
		diffs, f := o.compare(CompareOptions{})
		var applied []Applied
		for _, d := range diffs {
			for _, s := range d.Steps {
				applied = append(applied, Applied{Path: s.Path, Node: s.After})
				path := filepath.Join(o.host, s.Path)
				switch s.After.Type {
				case typeFile:
					write(t, path, contentOf(t, f, s.After.Hash))
				case typeDir:
					check(t, os.MkdirAll(path, 0o755))
				default:
					check(t, os.RemoveAll(path))
				}
			}
		}
		check(t, Rebase(t.Context(), o.dir("host"), o.dir("base"), applied))
		if diffs, _ := o.compare(CompareOptions{}); len(diffs) > 0 {
			t.Errorf("still there after it was applied:\n%s", summary(diffs))
		}
	}
	write(t, o.box+"/a.txt", v(1))
	write(t, o.box+"/new/x", "x\n")
	check(t, os.RemoveAll(o.box+"/dir/sub"))
	apply()
	write(t, o.box+"/a.txt", v(2))
	write(t, o.box+"/new/x", "y\n")
	write(t, o.box+"/dir/sub/d.txt", "again\n")
	diffs, _ := o.compare(CompareOptions{})
	if got := summary(diffs); got != "modified a.txt\nadded dir/sub\nadded dir/sub/d.txt\nmodified new/x" {
		t.Errorf("got\n%s", got)
	}
	apply()
	// Three-way merges start from what was applied.
	write(t, o.box+"/a.txt", v(3))
	write(t, o.host+"/a.txt", v(2)+"eight\n")
	check(t, os.RemoveAll(o.box+"/new"))
	diffs, f := o.compare(CompareOptions{})
	if got := summary(diffs); got != "modified a.txt moved merge\nremoved new\nremoved new/x" {
		t.Errorf("got\n%s", got)
	} else if got := contentOf(t, f, diffs[0].Change.Hash); got != v(3)+"eight\n" {
		t.Errorf("merged into %q", got)
	}
	// What is not there as it was applied is not what a workspace starts from.
	check(t, Rebase(t.Context(), o.dir("host"), o.dir("base"), []Applied{{Path: "a.txt", Node: Node{Type: typeFile, Mode: 0o644, Hash: HashText(nil)}}}))
	if again, _ := o.compare(CompareOptions{}); summary(again) != summary(diffs) {
		t.Errorf("got\n%s", summary(again))
	}
}
