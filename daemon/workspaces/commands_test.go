package workspaces_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/poll"
)

func sh(name, script string) workspaces.Command {
	return workspaces.Command{Name: name, Command: []string{"/bin/sh", "-c", script}, Time: caisson.Duration(time.Minute)}
}

// TestCommandSees: a command sees the directory exactly as it is after the apply, except for hidden files.
func TestCommandSees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := map[string]string{
		"a.txt": "one\n", "gone.txt": "x\n", "old/x": "a long enough text to be found again\n", "tree/d/leaf": "l\n", "tree/keep": "k\n", "file": "f\n",
		"dir/in": "i\n", "link": "->a.txt", ".env": "SECRET\n", "merge.txt": "1\n2\n3\n4\n5\n6\n7\n", "deep/er/x": "x\n", "again/old": "o\n",
	}
	dir := w.tree(start)
	w.must(os.Chmod(filepath.Join(dir, "deep"), 0o750))
	ws := w.lay(dir)
	poll.Until(t, patience, func() bool { // the base for merges is saved
		_, err := os.Stat(filepath.Join(w.data, "workspaces", string(ws.ID), "base/index"))
		return err == nil
	})
	w.inside(ws, func(in string) {
		put(t, in, map[string]string{"a.txt": "ONE\n", "new/n/n.txt": "n\n", "merge.txt": "1\nTWO\n3\n4\n5\n6\n7\n", "deep/er/y": "y\n", "nl": "->new"})
		for _, p := range []string{"gone.txt", "tree/d", "file", "dir", "again"} {
			w.must(os.RemoveAll(filepath.Join(in, p)))
		}
		w.must(os.Rename(filepath.Join(in, "old/x"), filepath.Join(in, "old/y")))
		put(t, in, map[string]string{"file/now": "dir\n", "dir": "now a file\n", "again/new": "n\n"})
	})
	put(t, dir, map[string]string{"merge.txt": "1\n2\n3\n4\n5\n6\nSEVEN\n", "hosts": "h\n"})
	w.must(os.Chown(filepath.Join(dir, "merge.txt"), hostUID, hostUID))
	b := w.commands(sh("look", "echo leaves > trace; rm -rf a.txt tree"))
	var saw map[string]string
	var modes [2]os.FileMode
	b.inside = func(in string) {
		saw = have(t, in)
		for i, p := range []string{"deep", "new"} {
			fi, err := os.Stat(filepath.Join(in, p))
			w.must(err)
			modes[i] = fi.Mode().Perm()
		}
	}
	receipt, err := w.sync(ws, pick(t, w.review(ws)))
	w.must(err)
	after := have(t, dir)
	delete(after, ".env")
	for p, c := range after {
		if saw[p] != c {
			t.Errorf("%s was %q for the command, and is %q", p, saw[p], c)
		}
	}
	for p := range saw {
		if _, ok := after[p]; !ok {
			t.Errorf("the command saw %s", p)
		}
	}
	if modes != [2]os.FileMode{0o750, 0o755} {
		t.Errorf("modes %o", modes)
	}
	if !slices.Contains(receipt.Checks, "command look") || !slices.Contains(receipt.Checks, "secret") {
		t.Errorf("checks %q", receipt.Checks)
	}
	if r := b.last; r.Policy == nil || len(r.Policy.Rules) > 0 || r.Models != nil || r.Assigned != nil || !r.NoPool || *r.HardTTL == 0 || r.Image != "" {
		t.Errorf("%+v", r)
	}
	w.nothingLeft(t, ws)
}

// TestCommandFails: whatever fails, nothing is applied, the answer contains the reason, and nothing remains.
func TestCommandFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cmds   []workspaces.Command
		refuse error
		want   string
		made   int
	}{
		"status":   {cmds: []workspaces.Command{sh("ok", "true"), sh("tests", "printf 'one\\n\\033[31mtwo\\n\\n' >&2; exit 3"), sh("never", "true")}, want: `the check tests exited with 3; it ended with: one | \x1b[31mtwo`, made: 2},
		"silent":   {cmds: []workspaces.Command{sh("tests", "exit 1")}, want: "the check tests exited with 1 and wrote nothing", made: 1},
		"signal":   {cmds: []workspaces.Command{sh("tests", "kill -9 $$")}, want: "the check tests ended by signal 9", made: 1},
		"missing":  {cmds: []workspaces.Command{{Name: "tests", Command: []string{"/no/such"}}}, want: "the check tests could not be run", made: 1},
		"long":     {cmds: []workspaces.Command{sh("tests", "yes | tr -d '\\n' | head -c 1000000; exit 1")}, want: "…", made: 1},
		"flood":    {cmds: []workspaces.Command{sh("tests", "yes | head -c 80000000; exit 0")}, want: "(output limit)", made: 1},
		"time":     {cmds: []workspaces.Command{{Name: "tests", Command: []string{"/bin/sh", "-c", "sleep 1000"}, Time: caisson.Duration(200 * time.Millisecond)}}, want: "(time limit)", made: 1},
		"refused":  {cmds: []workspaces.Command{sh("tests", "true")}, refuse: caisson.Errorf(caisson.Exhausted, "the host is full"), want: "could not be run: the host is full", made: 1},
		"internal": {cmds: []workspaces.Command{sh("tests", "true")}, refuse: unix.EIO, want: "could not be run: internal error", made: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			dir := w.tree(map[string]string{"f": "a"})
			ws := w.lay(dir)
			w.edit(ws, map[string]string{"f": "b"})
			b := w.commands(c.cmds...)
			b.refuse = c.refuse
			d := w.review(ws)
			_, err := w.sync(ws, pick(t, d))
			w.wants(err, caisson.Denied, c.want)
			if msg := caisson.MessageOf(err); !strings.HasPrefix(msg, "nothing was applied: ") || strings.ContainsAny(msg, "\n\x1b") || len(msg) > 1300 {
				t.Errorf("%q", msg)
			}
			w.wantFiles(dir, map[string]string{"f": "a"})
			w.nothingLeft(t, ws)
			if b.made != c.made {
				t.Errorf("%d sandboxes", b.made)
			}
			// The next review reports it, and a person may try again.
			if ch := w.review(ws).Changes[0]; ch.Verdict != caisson.VerdictPass || len(ch.Finding) != 1 || ch.Finding[0].Check != "command" || !strings.Contains(ch.Finding[0].Message, "tests") {
				t.Errorf("%+v", ch)
			}
			if n := len(w.saw("sync.refused")); n != 1 {
				t.Errorf("%d events", n)
			}
			w.commands(sh("tests", "grep -q b f"))
			receipt, err := w.sync(ws, pick(t, d))
			w.must(err)
			if !slices.Equal(receipt.Checks[len(receipt.Checks)-1:], []string{"command tests"}) {
				t.Errorf("%q", receipt.Checks)
			}
			w.wantFiles(dir, map[string]string{"f": "b"})
		})
	}
}

// TestCommandAutomatic: changes that a command refuses are not retried every 30 seconds.
func TestCommandAutomatic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"f": "a"})
	ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Mode = caisson.SyncYolo })
	b := w.commands(sh("tests", "grep -q good f"))
	w.edit(ws, map[string]string{"f": "bad"})
	w.autoApply(func() bool { return len(w.saw("sync.refused")) == 1 })
	w.must(w.core.Close()) // also waits for it
	w.open()
	for range 3 {
		w.core.ApplyAll(t.Context())
	}
	w.must(w.core.Close())
	if b.made != 1 {
		t.Errorf("%d sandboxes", b.made)
	}
	w.open()
	w.wantFiles(dir, map[string]string{"f": "a"})
	// At the end, new changes are tried once more.
	w.edit(ws, map[string]string{"f": "good"})
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	poll.Until(t, patience, func() bool { return !w.get(ws).SyncedAt.IsZero() })
	w.wantFiles(dir, map[string]string{"f": "good"})
	w.must(w.core.Close())
	w.open()
	w.nothingLeft(t, ws)
}

// TestCommandRemains: leftovers of a daemon that was killed are removed by the next one.
func TestCommandRemains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"f": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"f": "b"})
	b := w.commands(sh("tests", "true"))
	b.stays = true
	_, err := w.sync(ws, pick(t, w.review(ws)))
	w.must(err)
	b.stays = false
	w.must(w.core.Close())
	w.open()
	w.must(w.core.Reconcile(t.Context()))
	w.nothingLeft(t, ws)
}

// TestCommandLabels: the layers of a check cannot be accessed with its label.
func TestCommandLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"f": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"f": "b"})
	b := w.commands(sh("tests", "true"))
	var err error
	b.inside = func(string) {
		sb := w.sandbox()
		sb.Labels = b.last.Labels
		_, err = w.core.Layers().Create(w.ctx(), sb, caisson.WorkspaceRequest{Source: dir, Directory: handle(t, dir)})
	}
	_, serr := w.sync(ws, pick(t, w.review(ws)))
	w.must(serr)
	w.wants(err, caisson.Denied, "Caisson's own")
}

func TestValidateCommands(t *testing.T) {
	t.Parallel()
	ok := []string{"true"}
	for _, bad := range [][]workspaces.Command{
		{{Command: ok}}, {{Name: "a b", Command: ok}}, {{Name: "a"}}, {{Name: "a", Command: []string{""}}}, {{Name: "a", Command: []string{"a\x00"}}},
		{{Name: "a", Command: ok, Time: -1}}, {{Name: "a", Command: ok, Time: caisson.Duration(2 * time.Hour)}}, {{Name: "a", Command: ok}, {Name: "a", Command: ok}},
		make([]workspaces.Command, 21),
	} {
		if err := workspaces.ValidateCommands(bad); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%+v: %v", bad[:1], err)
		}
	}
	if err := workspaces.ValidateCommands([]workspaces.Command{{Name: "unit-tests_1.2", Command: ok}, {Name: "b", Command: ok, Time: caisson.Duration(time.Hour)}}); err != nil {
		t.Error(err)
	}
}
