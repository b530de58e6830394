package workspaces_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/worker"
)

// lying returns a starter whose comparisons return writers, which they cannot have.
func lying(jobs worker.Starter) worker.Starter {
	return starter(func(ctx context.Context, req worker.Request, reply any) error {
		err := jobs.Run(ctx, req, reply)
		if err != nil || req.Job != "gate.compare" {
			return err
		}
		out := req.Files[len(req.Files)-1]
		found, err := worker.ReadRows[compare.Difference](io.NewSectionReader(out, 0, 1<<20), 1000, 1<<20)
		if err != nil {
			return err
		}
		for i := range found {
			found[i].Change.Process = "1 innocent"
		}
		if _, err := out.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return worker.WriteRows(out, found)
	})
}

// processes returns the process of each change, and requires its event to contain the same.
func (w *world) processes(ws *caisson.Workspace) map[string]string {
	w.t.Helper()
	by := map[string]string{}
	for _, ch := range w.review(ws).Changes {
		by[ch.Path] = ch.Process
	}
	for _, e := range w.saw("workspace.changed") {
		if e.Subject == string(ws.ID) && e.Data["process"] != by[e.Data["path"]] {
			w.t.Errorf("of %q the event says %q, the review %q", e.Data["path"], e.Data["process"], by[e.Data["path"]])
		}
	}
	return by
}

func (w *world) wantProcesses(ws *caisson.Workspace, want map[string]string) {
	w.t.Helper()
	got := w.processes(ws)
	for name := range got {
		if got[name] != want[name] {
			w.t.Errorf("%q was changed by %q, want %q", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		w.t.Errorf("%v, want %v", got, want)
	}
}

func (w *world) setWriters(f func(caisson.ID) (*caisson.Writers, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writers = f
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.jobs = lying(w.jobs)
	w.open()
	dir := w.tree(map[string]string{"edit": "edit\n", "gone": "gone\n", "from": "a text that is found again\n", "mode": "mode\n", "early": "early\n"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{
		"edit": "new\n", "new": "new\n", "moved/in/deep": "deep\n", "moved/later": "later\n", "b\xff": "x", "unknown": "x", "same/a": "a", "nomove/a": "x",
	})
	w.inside(ws, func(in string) {
		w.must(errors.Join(os.Remove(filepath.Join(in, "gone")), os.Rename(filepath.Join(in, "from"), filepath.Join(in, "to"))))
		w.must(os.Chmod(filepath.Join(in, "mode"), 0o600))
	})
	all := &caisson.Writers{List: []caisson.Writer{
		{Path: "moved/in/deep", PID: 7, Command: "before"}, {Path: "edit", PID: 2, Command: "bash"}, {Path: "new", PID: 3, Command: "cc1"},
		{Path: "moved", Moved: true, PID: 4, Command: "mv"}, {Path: "moved/later", PID: 5, Command: "vi"}, {Path: "gone", PID: 6, Command: "rm"},
		{Path: "from", Moved: true, PID: 8, Command: "git"}, {Path: `b\xff`, PID: 9, Command: "x"}, {Path: "mode", PID: 10, Command: `a\u000ab`},
		{Path: "same", PID: 11, Command: "mkdir"}, {Path: "nomove", PID: 12, Command: "mkdir"}, {Path: "early", PID: 13, Command: "sed"},
	}}
	asked := caisson.ID("")
	w.setWriters(func(id caisson.ID) (*caisson.Writers, error) { asked = id; return all, nil })
	want := map[string]string{
		"edit": "2 bash", "new": "3 cc1", "moved": "4 mv", "moved/in": "4 mv", "moved/in/deep": "4 mv", "moved/later": "5 vi", "gone": "6 rm",
		"to": "8 git", `b\xff`: "9 x", "mode": `10 a\u000ab`, "unknown": "", "same": "11 mkdir", "same/a": "", "nomove": "12 mkdir", "nomove/a": "",
	}
	w.wantProcesses(ws, want)
	if asked != ws.Sandbox {
		t.Errorf("%q was asked", asked)
	}
	// A sandbox that does not respond does not prevent a review.
	w.setWriters(func(caisson.ID) (*caisson.Writers, error) { return nil, errors.New("hangs") })
	if d := w.review(ws); len(d.Changes) != len(want) || d.Changes[0].Process != "" {
		t.Errorf("%d changes, %+v", len(d.Changes), d.Changes[0])
	}
	// Changes that were not reviewed before the sandbox was removed have their processes too, also in later reviews.
	w.edit(ws, map[string]string{"early": "late\n"})
	w.setWriters(func(caisson.ID) (*caisson.Writers, error) { return all, nil })
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	w.setWriters(func(caisson.ID) (*caisson.Writers, error) {
		return nil, caisson.Errorf(caisson.NotFound, "no such sandbox")
	})
	want["early"] = "13 sed"
	poll.Until(t, patience, func() bool { return w.get(ws).Changes == len(want) })
	w.wantProcesses(ws, want)
	w.open()
	w.wantProcesses(ws, want)
	w.must(unix.Access(filepath.Join(w.data, "workspaces", string(ws.ID), "writers.json"), unix.F_OK))
}

// TestProcessesUnknown: for a sandbox that is not in the store yet, or a runtime that does not record writers, no
// process is reported.
func TestProcessesUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.lay(w.tree(nil))
	w.edit(ws, map[string]string{"a": "a"})
	w.wantProcesses(ws, map[string]string{"a": ""})
	w.setWriters(func(caisson.ID) (*caisson.Writers, error) {
		return nil, caisson.Errorf(caisson.NotFound, "no such sandbox")
	})
	w.wantProcesses(ws, map[string]string{"a": ""})
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	w.wantProcesses(ws, map[string]string{"a": ""})
}

// TestProcessesOfTheDead: the writers that a sandbox reported before it died are kept, however it died.
func TestProcessesOfTheDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.every = time.Millisecond
	w.open()
	ws := w.lay(w.tree(nil))
	w.edit(ws, map[string]string{"a": "a", "b": "b"})
	tell := func(by ...caisson.Writer) {
		w.setWriters(func(caisson.ID) (*caisson.Writers, error) { return &caisson.Writers{List: by, Dropped: 7}, nil })
	}
	kept := func() string {
		data, _ := os.ReadFile(filepath.Join(w.data, "workspaces", string(ws.ID), "writers.json"))
		return string(data)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- w.core.Run(ctx) }()
	tell(caisson.Writer{Path: "a", PID: 1, Command: "x"}, caisson.Writer{Path: "b", PID: 1, Command: "x"})
	poll.Until(t, patience, func() bool { return strings.Contains(kept(), `"b"`) })
	tell(caisson.Writer{Path: "b", PID: 2, Command: "y"}) // records of a restarted sandbox
	poll.Until(t, patience, func() bool { return strings.Contains(kept(), `"y"`) })
	tell()
	stop()
	w.must(<-ran)
	w.wantProcesses(ws, map[string]string{"a": "1 x", "b": "2 y"})
	w.setWriters(func(caisson.ID) (*caisson.Writers, error) { return nil, errors.New("hangs") })
	w.wantProcesses(ws, map[string]string{"a": "1 x", "b": "2 y"})
	if !strings.HasSuffix(strings.TrimSpace(kept()), `"dropped":7}`) {
		t.Error(kept())
	}
}
