package workspaces_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestHiddenWithin: files hidden below a directory are also hidden if that directory is the workspace.
func TestHiddenWithin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	home := w.tree(map[string]string{".config/gh/hosts.yml": "token", ".config/editor": "e", ".ssh/work": "key", ".aws/credentials": "c"})
	for name, want := range map[string]int{".config": 1, ".ssh": 1, ".aws": 1} {
		if ws := w.lay(filepath.Join(home, name)); ws.HiddenCount != want {
			t.Errorf("%s: %d are hidden: %q", name, ws.HiddenCount, ws.Hidden)
		} else if got := w.sees(ws); got["gh/hosts.yml"]+got["work"]+got["credentials"] != "" {
			t.Errorf("%s: the sandbox sees %q", name, got)
		}
	}
	shown := w.lay(filepath.Join(home, ".aws"), func(r *caisson.WorkspaceRequest) { r.Show = []string{"credentials"} })
	if got := w.sees(shown); got["credentials"] != "c" {
		t.Errorf("what is to be shown is not: %q", got)
	}
}

// TestAutoRemovalsInDisguise: a sandbox cannot remove more by creating files first, by replacing files with
// directories, or by renaming them.
func TestAutoRemovalsInDisguise(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"more files", "directories", "links"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			files := map[string]string{}
			for i := range 12 {
				files[fmt.Sprintf("d/f%d", i)] = fmt.Sprintf("this is file %d\n", i)
			}
			dir := w.tree(files)
			ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Mode = caisson.SyncYolo })
			if how == "more files" {
				more := map[string]string{}
				for i := range 40 {
					more[fmt.Sprintf("more/%d", i)] = fmt.Sprint(i)
				}
				w.edit(ws, more)
				w.autoApply(func() bool { return len(w.saw("sync.applied")) == 1 })
				maps.Copy(files, more)
			}
			w.inside(ws, func(in string) {
				for i := range 12 {
					name := filepath.Join(in, fmt.Sprintf("d/f%d", i))
					w.must(os.Remove(name))
					switch how {
					case "directories":
						w.must(os.Mkdir(name, 0o755))
					case "links":
						w.must(os.Symlink("nowhere", name))
					}
				}
			})
			w.autoApply(func() bool { return len(w.saw("sync.held")) == 1 })
			w.wantFiles(dir, files)
		})
	}
	const header = "This line is the same in each of the files.\n"
	many := func(from, to string, first, n int) (list [][2]string) {
		for i := first; i < first+n; i++ {
			list = append(list, [2]string{fmt.Sprintf(from, i), strings.ReplaceAll(to, "%d", fmt.Sprint(i))})
		}
		return list
	}
	// All changes of each round but the last one are applied; of the last round, no removal of a file in d is. An empty
	// new name means a removal.
	for how, rounds := range map[string][][][2]string{
		"cancel each other out": {
			append(many("d/f%d", "node_modules/f%d", 0, 6), many("node_modules/m%d", "d/m%d", 0, 6)...),
			append(many("d/f%d", "node_modules/f%d", 6, 6), many("node_modules/m%d", "d/m%d", 6, 6)...),
		},
		"to what is removed": {
			many("d/f%d", "node_modules/f%d", 0, 6), many("node_modules/f%d", "", 0, 6), many("d/f%d", "node_modules/f%d", 6, 1),
		},
		"to what was renamed":        {many("d/f%d", "d/g%d", 0, 12), many("d/g%d", "node_modules/g%d", 0, 12)},
		"onto each other in turn":    {many("d/f%d", "d/f11", 0, 6), many("d/f%d", "d/f11", 6, 5)},
		"onto each other at once":    {many("d/f%d", "d/f11", 0, 11)},
		"with a part of the content": {many("d/f%d", "d/g%d", 0, 12)},
	} {
		t.Run("renames "+how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			files := map[string]string{}
			for i := range 12 {
				files[fmt.Sprintf("d/f%d", i)] = fmt.Sprintf("%sthis is file %d\n", header, i)
				files[fmt.Sprintf("node_modules/m%d", i)] = fmt.Sprintf("%d is another one\n", i)
			}
			dir := w.tree(files)
			ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Mode = caisson.SyncYolo })
			for n, round := range rounds {
				before := have(t, dir)
				w.inside(ws, func(in string) {
					for _, names := range round {
						from, to := filepath.Join(in, names[0]), filepath.Join(in, names[1])
						if to == in {
							w.must(os.RemoveAll(from))
							continue
						}
						w.must(os.Rename(from, to))
						if how == "with a part of the content" {
							w.must(os.Truncate(to, int64(len(header))))
						}
					}
				})
				if n < len(rounds)-1 {
					w.autoApply(func() bool { return len(w.saw("sync.applied")) == n+1 })
					if held := w.saw("sync.held"); len(held) > 0 {
						t.Fatalf("round %d: %+v", n, held)
					}
					continue
				}
				w.autoApply(func() bool { return len(w.saw("sync.held")) == 1 })
				after := have(t, dir)
				for _, names := range round {
					if name := names[0]; strings.HasPrefix(name, "d/") && after[name] != before[name] {
						t.Errorf("%s is %q, want %q", name, after[name], before[name])
					}
				}
			}
		})
	}
}

// TestAutoRemovalsTogether: workspaces of a directory, concurrently or one after another, remove together no more than
// one could.
func TestAutoRemovalsTogether(t *testing.T) {
	t.Parallel()
	yolo := func(r *caisson.WorkspaceRequest) { r.Mode = caisson.SyncYolo }
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after %t", after), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			files := map[string]string{}
			for i := range 12 {
				files[fmt.Sprintf("f%d", i)] = fmt.Sprintf("this is file %d\n", i)
			}
			dir := w.tree(files)
			remove := func(ws *caisson.Workspace, first int) {
				w.inside(ws, func(in string) {
					for i := first; i < first+6; i++ {
						w.must(os.Remove(filepath.Join(in, fmt.Sprintf("f%d", i))))
					}
					w.must(os.WriteFile(filepath.Join(in, fmt.Sprintf("done%d", first)), nil, 0o644))
				})
			}
			one := w.lay(dir, yolo)
			if after { // and files that the first one creates do not raise the number that the second one may remove
				more := map[string]string{}
				for i := range 40 {
					more[fmt.Sprintf("more/%d", i)] = fmt.Sprint(i)
				}
				w.edit(one, more)
				remove(one, 0)
				w.autoApply(func() bool { return len(w.saw("sync.applied")) == 1 })
				two := w.lay(dir, yolo)
				remove(two, 6)
			} else {
				two := w.lay(dir, yolo)
				remove(one, 0)
				remove(two, 6)
			}
			w.autoApply(func() bool { return len(w.saw("sync.held")) == 1 })
			left := 0
			for i := range 12 {
				if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("f%d", i))); err == nil {
					left++
				}
			}
			if left != 6 {
				t.Errorf("%d of 12 files are left, want half", left)
			}
		})
	}
}

// TestAutoRemovalsAfterRename: a person's approval of a rename with an edit does not reset the count.
func TestAutoRemovalsAfterRename(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := map[string]string{}
	for i := range 12 {
		files[fmt.Sprintf("f%d", i)] = strings.Repeat(fmt.Sprintf("this is file %d\n", i), 10)
	}
	dir := w.tree(files)
	ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Mode = caisson.SyncYolo })
	remove := func(first, n int) {
		w.inside(ws, func(in string) {
			for i := first; i < first+n; i++ {
				w.must(os.Remove(filepath.Join(in, fmt.Sprintf("f%d", i))))
			}
		})
		for i := first; i < first+n; i++ {
			delete(files, fmt.Sprintf("f%d", i))
		}
	}
	remove(0, 6)
	w.autoApply(func() bool { return len(w.saw("sync.applied")) == 1 })
	w.inside(ws, func(in string) {
		w.must(os.Rename(filepath.Join(in, "f6"), filepath.Join(in, "g6")))
		w.must(os.WriteFile(filepath.Join(in, "g6"), []byte(files["f6"]+"more\n"), 0o644))
	})
	files["g6"] = files["f6"] + "more\n"
	delete(files, "f6")
	req := pick(t, w.review(ws))
	req.Confirmed = true
	_, err := w.sync(ws, req)
	w.must(err)
	w.wantFiles(dir, files)
	kept := maps.Clone(files)
	remove(7, 5)
	w.autoApply(func() bool { return len(w.saw("sync.held")) == 1 })
	w.wantFiles(dir, kept)
}

// TestAutoRemovals: most of a tree is never removed automatically, at once or in steps, and other changes are applied
// nevertheless.
func TestAutoRemovals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := map[string]string{".git/a": "", ".git/b": "", "node_modules/x": "x", "node_modules/y": "y"}
	for i := range 10 {
		files[fmt.Sprintf("d/f%d", i)] = fmt.Sprintf("this is file %d\n", i)
	}
	dir := w.tree(files)
	ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Mode = caisson.SyncYolo })
	remove := func(names ...string) {
		t.Helper()
		w.inside(ws, func(in string) {
			for _, name := range names {
				w.must(os.RemoveAll(filepath.Join(in, name)))
			}
		})
	}
	gone := func(names ...string) {
		for _, name := range names {
			delete(files, name)
		}
	}
	applied := func(n int) func() bool {
		return func() bool { return len(w.saw("sync.applied")) == n }
	}
	remove("node_modules", "d/f0", "d/f1", "d/f2") // generated files do not count
	w.autoApply(applied(1))
	gone("node_modules/x", "node_modules/y", "d/f0", "d/f1", "d/f2")
	w.wantFiles(dir, files)
	remove("d/f3", "d/f4")
	w.autoApply(applied(2))
	gone("d/f3", "d/f4")
	w.wantFiles(dir, files) // half of the ten
	remove("d/f5")
	w.edit(ws, map[string]string{"new": "n\n"})
	w.autoApply(applied(3))
	files["new"] = "n\n"
	w.wantFiles(dir, files)
	d := w.shows(ws, "removed d/f5 ask")
	if f := d.Changes[0].Finding; len(f) != 1 || f[0].Check != "removal" || f[0].Message != "6 of the directory's 10 files would be removed, which was not requested" {
		t.Errorf("%+v", f)
	}
	command := fmt.Sprintf("caisson sync --yes %s", ws.ID)
	if held := w.saw("sync.held"); len(held) != 1 || !strings.Contains(held[0].Data["reason"], command) {
		t.Errorf("%+v", held)
	}
	receipt, err := w.sync(ws, caisson.SyncRequest{Auto: true})
	if err != nil || receipt.ID != "" || receipt.Waiting != 1 || !strings.Contains(receipt.Held, command) {
		t.Errorf("%+v, %v", receipt, err)
	}
	// A person may apply it. After that, the count starts again.
	req := pick(t, d)
	_, err = w.sync(ws, req)
	w.wants(err, caisson.Denied, "6 of the directory's 10 files")
	req.Confirmed = true
	_, err = w.sync(ws, req)
	w.must(err)
	gone("d/f5")
	w.wantFiles(dir, files)
	remove("d/f6")
	w.edit(ws, map[string]string{"e": "e"})
	w.autoApply(applied(5))
	gone("d/f6")
	files["e"] = "e"
	w.wantFiles(dir, files)
}
