package workspaces

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
)

// TestRemovalCounts: files that automatic syncs create, or that were removed otherwise, do not raise the number of
// files that they may remove, and two syncs that were reviewed concurrently are not both applied if that would be too
// many.
func TestRemovalCounts(t *testing.T) {
	t.Parallel()
	step := func(name, before, after string) gate.Step {
		node := func(hash string) gate.Node {
			if hash == "" {
				return gate.Node{Type: "none"}
			}
			return gate.Node{Type: "file", Hash: hash}
		}
		return gate.Step{Path: name, Before: node(before), After: node(after)}
	}
	steps := func(from, to, n int, before, after string) (list []gate.Step) {
		for i := from; i < from+n; i++ {
			name := func(hash string) string {
				if hash == "" {
					return ""
				}
				return fmt.Sprintf("%s%d", hash, i)
			}
			list = append(list, step(fmt.Sprintf("f%d", i+to), name(before), name(after)))
		}
		return list
	}
	renames := func(n int) []gate.Step { return append(steps(0, 0, n, "x", ""), steps(0, 1000, n, "", "x")...) }
	removal := func(n int) []gate.Step { return steps(0, 0, n, "x", "") }
	made := func(n int) []gate.Step { return steps(0, 500, n, "", "y") }
	w := &caisson.Workspace{ID: "ws_1", Device: 1, Inode: 2}
	for _, tt := range []struct {
		name  string
		files int64 // at the start
		done  [][]gate.Step
		again int64 // files when another workspace begins
		most  int   // how many may be removed then
	}{
		{"nothing", 20, nil, 20, 10},
		{"half", 20, [][]gate.Step{removal(10)}, 10, 0},
		{"renames of all", 12, [][]gate.Step{renames(12)}, 12, 6},
		{"files made and removed by others", 20, [][]gate.Step{made(50)}, 20, 10},
		{"files made", 20, [][]gate.Step{made(50)}, 70, 10},
		{"a scan before the removal", 20, [][]gate.Step{removal(10)}, 20, 0},
		{"grown before", 2, nil, 20, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &removalCounts{dir: t.TempDir()}
			if err := c.countAuto(w, removal(1)); caisson.KindOf(err) != caisson.Conflict {
				t.Errorf("without counts: %v", err)
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(c.addWorkspace(w, tt.files))
			for _, s := range tt.done {
				must(c.countAuto(w, s))
			}
			must(c.addWorkspace(w, tt.again))
			if err := c.countAuto(w, removal(tt.most+1)); caisson.KindOf(err) != caisson.Conflict {
				t.Errorf("%d removals: %v", tt.most+1, err)
			}
			must(c.countAuto(w, removal(tt.most)))
			if err := c.countAuto(w, removal(1)); caisson.KindOf(err) != caisson.Conflict {
				t.Errorf("one more: %v", err)
			}
			must(c.uncountAuto(w, removal(tt.most)))
			must(c.countAuto(w, removal(tt.most)))
			removed := []caisson.ReceiptEntry{{Path: "f1", Kind: caisson.ChangeRemoved}}
			must(c.countApproved(w, &caisson.SyncReceipt{Entries: removed}, removal(1), false))
			if had, err := c.read(w); err != nil || had.Removed != 0 || had.Auto {
				t.Errorf("after a person's removal: %+v, %v", had, err)
			}
		})
	}
}

// TestRemovalsOfEarlierVersions: counts of workspaces become those of their directory, once.
func TestRemovalsOfEarlierVersions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &removalCounts{dir: t.TempDir(), workspaces: directory(dir)}
	for _, id := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, id := range []caisson.ID{"a", "b"} {
			if err := c.mergeOld(&caisson.Workspace{ID: id, Device: 1, Inode: 2}); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, string(id), removalFile)); err == nil {
				t.Error("the old file is left")
			}
			if id == "a" {
				if err := os.WriteFile(filepath.Join(dir, "b", removalFile), []byte(`{"Files":15,"Removed":5,"Told":true}`), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if had, err := c.read(&caisson.Workspace{Device: 1, Inode: 2}); err != nil || had.Files != 15 || had.Removed != 10 {
		t.Errorf("%+v, %v", had, err)
	}
}
