package apply

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// owned makes a site that belongs to uid, and a frozen directory with the contents of c.
func owned(t testing.TB, uid int, before shape, c contents) (site, *os.File) {
	t.Helper()
	s := memorySite(t, before)
	err := filepath.WalkDir(filepath.Dir(s.dir), func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, uid, uid)
	})
	if err != nil {
		t.Fatal(err)
	}
	// Only root can access the other directories by their paths.
	data := filepath.Join(filepath.Dir(s.dir), "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	frozen := filepath.Join(data, "frozen")
	for _, dir := range []string{frozen, filepath.Join(frozen, overlay.FrozenObjects), filepath.Join(frozen, overlay.MergedDir)} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	into := []string{overlay.FrozenObjects, overlay.MergedDir}
	for hash, text := range c {
		if err := os.WriteFile(filepath.Join(frozen, into[0], hash), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		into[0], into[1] = into[1], into[0]
	}
	saved := filepath.Join(data, "saved")
	if err := os.Mkdir(saved, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(saved, uid, uid); err != nil {
		t.Fatal(err)
	}
	s.saved = dirFile(t, saved)
	return s, dirFile(t, frozen)
}

func TestWriteJobs(t *testing.T) {
	runner := workertest.Runner(t)
	op := operations[len(operations)-1]
	plan, c := planOf(t, op.before, op.after)
	for _, uid := range []int{0, 1000} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			s, frozen := owned(t, uid, op.before, c)
			out, err := RunRecover(t.Context(), runner, s.host, s.saved)
			wantState(t, "recover before", out, err, None)
			out, err = RunApply(t.Context(), runner, s.host, s.saved, frozen, plan)
			wantState(t, "apply", out, err, Applied)
			s.want(t, "after apply", op.after)
			for name := range op.after {
				var st syscall.Stat_t
				if err := syscall.Lstat(filepath.Join(s.dir, name), &st); err != nil || int(st.Uid) != uid || int(st.Gid) != uid {
					t.Errorf("%s belongs to %d:%d, %v", name, st.Uid, st.Gid, err)
				}
			}
			if _, err = RunApply(t.Context(), runner, s.host, s.saved, frozen, plan); caisson.KindOf(err) != caisson.Conflict {
				t.Errorf("applied twice: %v", err)
			}
			out, err = RunUndo(t.Context(), runner, s.host, s.saved)
			wantState(t, "undo", out, err, Undone)
			s.want(t, "after undo", op.before)
			out, err = RunRecover(t.Context(), runner, s.host, s.saved)
			wantState(t, "recover after", out, err, Undone)
		})
	}
}

// TestPromise3OnlyTheOwnersRights checks that a sync has no more rights than the directory's owner.
func TestPromise3OnlyTheOwnersRights(t *testing.T) {
	runner := workertest.Runner(t)
	before := shape{"a": "f 644 1", "b": "f 644 1", "d": "d 755", "d/x": "f 644 x", "z": "f 644 z"}
	for _, tt := range []struct {
		name    string
		uid, to int
		path    string // owned by another user
		after   shape
	}{
		{"another's file modified", 1000, 0, "b", shape{"a": "f 644 2", "b": "f 644 2"}},
		{"another's file removed", 1000, 0, "b", shape{"a": "f 644 2", "b": ""}},
		{"another's file's mode", 1000, 1001, "b", shape{"a": "f 644 2", "b": "f 755 1"}},
		{"added in another's directory", 1000, 0, "d", shape{"a": "f 644 2", "d/y": "f 644 y", "z": "f 644 zz"}},
		{"removed from another's directory", 1000, 0, "d", shape{"a": "f 644 2", "d/x": "", "z": ""}},
		{"root's rights over others", 0, 1000, "b", shape{"a": "f 644 2", "b": "f 644 2"}},
		{"in a directory of a user of root", 0, 1000, "d", shape{"a": "f 644 2", "d/y": "f 644 y"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			after := shape{}
			for name, text := range before {
				after[name] = text
			}
			for name, text := range tt.after {
				if after[name] = text; text == "" {
					delete(after, name)
				}
			}
			plan, c := planOf(t, before, after)
			s, frozen := owned(t, tt.uid, before, c)
			if err := os.Chown(filepath.Join(s.dir, tt.path), tt.to, tt.to); err != nil {
				t.Fatal(err)
			}
			out, err := RunApply(t.Context(), runner, s.host, s.saved, frozen, plan)
			if caisson.KindOf(err) != caisson.Denied || out.State == Applied {
				t.Errorf("%+v, %v", out, err)
			}
			s.want(t, "afterwards", before)
		})
	}
}

// TestUnreadableDirectory checks that a directory that the owner cannot read is not changed, and that the rest is not changed
// either.
func TestUnreadableDirectory(t *testing.T) {
	runner := workertest.Runner(t)
	before := shape{"a": "f 644 1", "u": "d 300", "u/x": "f 644 x", "z": "d 755"}
	for name, after := range map[string]shape{
		"removed":       {"a": "f 644 2"},
		"its mode":      {"a": "f 644 2", "u": "d 755", "u/x": "f 644 x"},
		"what is in it": {"a": "f 644 2", "u": "d 755", "u/x": "f 644 xx"},
	} {
		t.Run(name, func(t *testing.T) {
			plan, c := planOf(t, before, after)
			s, frozen := owned(t, 1000, before, c)
			out, err := RunApply(t.Context(), runner, s.host, s.saved, frozen, plan)
			if caisson.KindOf(err) != caisson.Denied || out.State == Applied {
				t.Errorf("%+v, %v", out, err)
			}
			s.want(t, "afterwards", before)
		})
	}
}

func TestWriteJobsConflict(t *testing.T) {
	runner := workertest.Runner(t)
	before, after := shape{"a": "f 644 1", "b \x1b": "f 644 1"}, shape{"a": "f 644 2", "b \x1b": "f 644 2"}
	plan, c := planOf(t, before, after)
	s, frozen := owned(t, 1000, before, c)
	if err := os.WriteFile(s.dir+"/b \x1b", []byte("edit"), 0); err != nil {
		t.Fatal(err)
	}
	_, err := RunApply(t.Context(), runner, s.host, s.saved, frozen, plan)
	wantMoved(t, err, "b \x1b")
	if err == nil || strings.Contains(caisson.MessageOf(err), "\x1b") {
		t.Errorf("message %q", err)
	}
	s.want(t, "afterwards", shape{"a": "f 644 1", "b \x1b": "f 644 edit"})
}

// TestWriteJobKilled checks that another job recovers whenever the job is killed.
func TestWriteJobKilled(t *testing.T) {
	runner := workertest.Runner(t)
	before, after := shape{}, shape{}
	for i := range 500 {
		before[fmt.Sprintf("f%d", i)] = fmt.Sprintf("f 644 %d", i)
		after[fmt.Sprintf("f%d", i)] = fmt.Sprintf("f 644 new %d", i)
	}
	plan, c := planOf(t, before, after)
	for what, begun := range map[string]func(s site) bool{
		"staging": func(s site) bool {
			found, err := filepath.Glob(s.dir + "/" + gate.StagePrefix + "*/n5")
			return err != nil || len(found) > 0
		},
		"switching": func(s site) bool {
			text, err := os.ReadFile(s.dir + "/f100")
			return err != nil || string(text) == "new 100"
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, frozen := owned(t, 1000, before, c)
			ctx, cancel := context.WithCancel(t.Context())
			type result struct {
				out Outcome
				err error
			}
			done := make(chan result, 1)
			go func() {
				out, err := RunApply(ctx, runner, s.host, s.saved, frozen, plan)
				done <- result{out, err}
			}()
			poll.Until(t, time.Minute, func() bool { return begun(s) })
			cancel()
			r := <-done
			if r.err == nil && r.out.State == Applied {
				t.Log("it was faster")
				s.want(t, "afterwards", after)
				return
			}
			if r.out.State != RolledBack {
				t.Errorf("%+v, %v", r.out, r.err)
			}
			s.want(t, "afterwards", before)
		})
	}
}
