package sandboxes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// wantWriters fails the test unless these are the last writers in a sandbox's workspace: path=pid, oldest first.
func (w *world) wantWriters(id caisson.ID, want string) {
	w.t.Helper()
	all, err := w.Sandboxes().Writers(w.t.Context(), id)
	if err != nil {
		w.t.Errorf("%s: %v", id, err)
		return
	}
	var got []string
	if all != nil {
		for _, x := range all.List {
			got = append(got, fmt.Sprint(x.Path, "=", x.PID))
		}
	}
	if s := strings.Join(got, " "); s != want {
		w.t.Errorf("%q, want %q", s, want)
	}
}

// TestWriters: writers are kept however often a sandbox has ended, until its workspace is released.
func TestWriters(t *testing.T) {
	t.Parallel()
	w, l := withLayers(t)
	req, _ := asking(t, project(t))
	sb := got(w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Workspace: req, Command: command("sleep", "1h")}))(t)
	id := string(sb.ID)
	w.wantWriters(sb.ID, "")
	w.runtime.wrote(nil, map[string]int{"a": 1, "b": 1})
	w.wantWriters(sb.ID, "a=1 b=1")
	got(w.Sandboxes().Stop(w.ctx(), id, 0))(t)
	w.wantWriters(sb.ID, "a=1 b=1")
	w.runtime.wrote(nil, nil)
	got(w.Sandboxes().Start(w.ctx(), id))(t)
	w.wantWriters(sb.ID, "a=1 b=1")
	w.runtime.wrote(nil, map[string]int{"a": 2, "c": 2})
	w.wantWriters(sb.ID, "b=1 a=2 c=2")
	got(w.Sandboxes().Pause(w.ctx(), id))(t)
	w.wantWriters(sb.ID, "b=1 a=2 c=2")
	got(w.Sandboxes().Resume(w.ctx(), id))(t)
	w.runtime.wrote(nil, map[string]int{"d": 3})
	got(w.Sandboxes().Suspend(w.ctx(), id))(t)
	w.wantWriters(sb.ID, "b=1 a=2 c=2 d=3")
	if all, err := w.Sandboxes().Writers(t.Context(), sb.ID); err != nil || all.Dropped != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	// A query for the writers of a sandbox that does not respond returns an error, but stopping the sandbox succeeds.
	w.runtime.wrote(caisson.Errorf(caisson.Unavailable, "does not answer"), nil)
	if _, err := w.Sandboxes().Writers(t.Context(), sb.ID); caisson.KindOf(err) != caisson.Unavailable {
		t.Error(err)
	}
	w.runtime.wrote(nil, map[string]int{"last": 4})
	left := false
	l.leaving = func(id caisson.ID) { left = true; w.wantWriters(id, "b=1 a=2 c=2 last=4") }
	must(t, w.Sandboxes().Remove(w.ctx(), id))
	if _, err := w.Sandboxes().Writers(t.Context(), sb.ID); !left || caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("of a sandbox that is gone: %v", err)
	}
	w.holds()
}

// TestWritersLost: records that cannot be read do not prevent stopping a sandbox, and without a workspace there is no
// query.
func TestWritersLost(t *testing.T) {
	t.Parallel()
	w, _ := withLayers(t)
	w.runtime.wrote(errors.New("broken"), nil)
	sb := got(w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Command: command("sleep", "1h")}))(t)
	w.wantWriters(sb.ID, "")
	must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	for _, damage := range []func(dir string){
		func(string) {},
		func(dir string) { must(t, os.WriteFile(filepath.Join(dir, "writers.json"), []byte("{"), 0o600)) },
	} {
		req, _ := asking(t, project(t))
		sb := got(w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Workspace: req, Command: command("sleep", "1h")}))(t)
		damage(filepath.Join(w.dir, "sandboxes", string(sb.ID)))
		got(w.Sandboxes().Stop(w.ctx(), string(sb.ID), 0))(t)
		must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Sandboxes().Writers(ctx, sb.ID); err == nil {
		t.Error("a cancelled call succeeds")
	}
	w.holds()
}

// TestWritersBounded: however often a sandbox ends, the number of records is limited, and the newest are kept.
func TestWritersBounded(t *testing.T) {
	t.Parallel()
	w, _ := withLayers(t)
	req, _ := asking(t, project(t))
	sb := got(w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Workspace: req, Command: command("sleep", "1h")}))(t)
	for run := range 3 {
		by := map[string]int{}
		for i := range caisson.MaxWriters * 2 / 3 {
			by[fmt.Sprint(run, "-", i)] = run + 1
		}
		w.runtime.wrote(nil, by)
		got(w.Sandboxes().Stop(w.ctx(), string(sb.ID), 0))(t)
		got(w.Sandboxes().Start(w.ctx(), string(sb.ID)))(t)
	}
	all, err := w.Sandboxes().Writers(t.Context(), sb.ID)
	if err != nil || len(all.List) != caisson.MaxWriters || all.List[0].PID != 2 || all.List[caisson.MaxWriters-1].PID != 3 {
		t.Errorf("%d, %v", len(all.List), err)
	}
}
