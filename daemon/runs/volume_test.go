package runs_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/daemon/volumes"
)

// places is the gate of a daemon without host directories: warm snapshots have a placeholder for a workspace
// nevertheless.
type places struct{ runs.Workspaces }

// withVolumes returns a world with the real implementation of volumes. Prompts that begin with keep write a file in the
// workspace, those that begin with look answer with its size.
func withVolumes(t *testing.T) (*world, *volumes.Service) {
	t.Helper()
	return plan{}.withVolumes(t)
}

func (p plan) withVolumes(t *testing.T) (*world, *volumes.Service) {
	t.Helper()
	w := p.world(t)
	core, err := volumes.New(volumes.Config{Dir: w.lconf.Dir, Store: w.store, Events: w.config.Events})
	must(t, err)
	w.volumes = core
	w.down()
	w.lconf.Volumes, w.config.Work.Workspaces = core.Attachments(), places{}
	w.up()
	w.on("keep", func(v *turn) int {
		if _, err := v.WriteFile("/workspace/kept", []byte(v.task.Prompt), false); err != nil {
			v.text(err.Error())
		}
		v.text("kept")
		return v.end(nil)
	})
	w.on("look", func(v *turn) int {
		found := "nothing"
		if f, err := v.Lstat("/workspace/kept"); err == nil && f.Size > 0 {
			found = "it"
		}
		v.text(found)
		return v.end(nil)
	})
	return w, core.Volumes()
}

func inVolume(prompt, name string) caisson.RunRequest {
	return caisson.RunRequest{Agent: "echo", Prompt: prompt, Kind: caisson.WorkspaceVolume, Source: name}
}

// TestVolume: files that a run leaves in a volume exist for the next run, of any user; they are not reported as changes
// of a directory.
func TestVolume(t *testing.T) {
	t.Parallel()
	w, v := withVolumes(t)
	w.put(caisson.Agent{ID: "user", User: "1000"})
	first := w.do(inVolume("keep", "data"))
	wantAnswer(t, first, "kept")
	if first.HasWorkspace || first.Workspace != "" || first.Request.Source != "data" || len(first.Result.Changes) > 0 {
		t.Errorf("the run is %+v", first)
	}
	w.empty()
	wantAnswer(t, w.do(inVolume("look", "other")), "nothing")
	as := inVolume("look", "data")
	as.Agent = "user"
	wantAnswer(t, w.ended(got(w.Runs().StartRun(w.as("local"), as))(t).ID), "it") // also over TCP
	w.empty()
	if v := got(v.GetVolume(w.ctx(), "data"))(t); v.Sandbox != "" || v.Files != 1 {
		t.Errorf("the volume is %+v", v)
	}
}

func TestVolumeRefused(t *testing.T) {
	t.Parallel()
	w, v := withVolumes(t)
	for name, c := range map[string]struct {
		change func(*caisson.RunRequest)
		field  string
	}{
		"no name":      {func(r *caisson.RunRequest) { r.Source = "" }, "source"},
		"a path":       {func(r *caisson.RunRequest) { r.Source = "/srv" }, "source"},
		"an upload":    {func(r *caisson.RunRequest) { r.Workspace = io.NopCloser(strings.NewReader("")) }, "kind"},
		"a repository": {func(r *caisson.RunRequest) { r.Repo = &caisson.RepoRequest{Name: "r"} }, "kind"},
		"sync":         {func(r *caisson.RunRequest) { r.Sync = caisson.SyncSecure }, "kind"},
		"show":         {func(r *caisson.RunRequest) { r.Show = []string{"*"} }, "kind"},
	} {
		req := inVolume("look", "data")
		c.change(&req)
		_, err := w.Runs().StartRun(w.ctx(), req)
		if wantKind(t, err, caisson.Invalid); caisson.FieldOf(err) != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantFailed(t, w.do(inVolume("look", "vl-aaaaaaaaaaaaaaaa")), caisson.RunNotFound, "vl-aaaaaaaaaaaaaaaa")
	if list, _, err := v.ListVolumes(w.ctx(), caisson.Filter{}); err != nil || len(list) > 0 {
		t.Errorf("there are %v, %v", list, err)
	}
}

// TestVolumeHeld: a run does not wait for another run that has the volume attached, and the warm snapshot is not
// removed because of it.
func TestVolumeHeld(t *testing.T) {
	t.Parallel()
	w, _ := withVolumes(t)
	w.put(warmAgent())
	got(w.Agents().WarmAgent(w.ctx(), "claw", func(caisson.Progress) {}))(t)
	snaps := w.snapshots()
	began, goOn := w.hangs("wait")
	first := w.start(inVolume("wait", "data"))
	receive(t, began)
	holder := string(w.waitState(first.ID, caisson.RunRunning).Sandbox)
	for _, agent := range []string{"echo", "claw"} {
		req := inVolume("look", "data")
		req.Agent = agent
		wantFailed(t, w.do(req), caisson.RunInvalid, holder)
	}
	if now := w.snapshots(); len(now) != 1 || now[0] != snaps[0] {
		t.Errorf("the snapshots were %v and are %v", snaps, now)
	}
	goOn()
	wantAnswer(t, w.ended(first.ID), "begun done")
	req := inVolume("keep", "data")
	req.Agent = "claw"
	warm := w.do(req)
	wantAnswer(t, warm, "kept")
	if !warm.Result.Warm {
		t.Errorf("the agent was started cold; events %s", types(w.events(warm.ID)))
	}
	wantAnswer(t, w.do(inVolume("look", "data")), "it")
	w.empty()
}

// TestVolumeHandsOver: the end of a run is reported before its sandbox is removed, and the next run gets the volume.
func TestVolumeHandsOver(t *testing.T) {
	t.Parallel()
	w, _ := withVolumes(t)
	asked := make(chan struct{})
	var mu sync.Mutex
	creates, removes := 0, 0
	w.boxes.on(func(ctx context.Context, op string) error {
		mu.Lock()
		wait := false
		switch op {
		case "create":
			if creates++; creates == 2 {
				close(asked)
			}
		case "remove":
			removes++
			wait = removes == 1
		}
		mu.Unlock()
		if wait {
			<-asked
		}
		return nil
	})
	wantAnswer(t, w.do(inVolume("keep", "data")), "kept")
	wantAnswer(t, w.do(inVolume("look", "data")), "it")
	w.boxes.on(nil)
	w.empty()
}

func TestVolumeRetry(t *testing.T) {
	t.Parallel()
	w, v := withVolumes(t)
	mend := w.failing("try")
	r := w.do(inVolume("try", "data"))
	wantFailed(t, r, caisson.RunAgentError, "no luck")
	mend()
	again := got(w.Runs().RetryRun(w.ctx(), r.ID))(t)
	wantAnswer(t, w.ended(again.ID), "whole")
	w.empty()
	if v := got(v.GetVolume(w.ctx(), "data"))(t); v.Sandbox != "" {
		t.Errorf("the volume is %+v", v)
	}
	// A kept sandbox keeps its volume attached, and a retry reports this.
	req := inVolume("fail", "data")
	req.Keep = true
	w.failing("fail")
	kept := w.do(req)
	got(w.Runs().RetryRun(w.ctx(), kept.ID))(t)
	wantFailed(t, w.ended(kept.ID), caisson.RunInvalid, string(kept.Sandbox))
}

// TestVolumeSession: a session works in one volume, even after its sandbox was removed.
func TestVolumeSession(t *testing.T) {
	t.Parallel()
	w, v := withVolumes(t)
	in := func(prompt, name string) *caisson.Run {
		req := caisson.RunRequest{Prompt: prompt, Session: "s"}
		if name != "" {
			req.Kind, req.Source = caisson.WorkspaceVolume, name
		}
		return w.do(req)
	}
	first := in("keep", "data")
	wantAnswer(t, first, "kept")
	vol := got(v.GetVolume(w.ctx(), "data"))(t)
	if s := w.session("s"); s.Volume != vol.ID || vol.Sandbox != s.Sandbox {
		t.Errorf("the session is %+v, the volume %+v", s, vol)
	}
	for _, name := range []string{"", "data", string(vol.ID)} {
		r := in("look", name)
		if wantAnswer(t, r, "it"); r.Sandbox != first.Sandbox {
			t.Errorf("with %q it goes on in %s", name, r.Sandbox)
		}
	}
	wantFailed(t, in("look", "other"), caisson.RunInvalid, "volume data")
	upload := w.do(caisson.RunRequest{Prompt: "look", Session: "s", Workspace: io.NopCloser(strings.NewReader(""))})
	wantFailed(t, upload, caisson.RunInvalid, "volume data")
	wantFailed(t, w.do(inVolume("look", "data")), caisson.RunInvalid, string(first.Sandbox)) // not a run of the session

	must(t, w.life.Sandboxes().Remove(w.ctx(), string(w.session("s").Sandbox)))
	again := in("look", "")
	if wantAnswer(t, again, "it"); again.Sandbox == first.Sandbox || w.session("s").Volume != vol.ID {
		t.Errorf("the session goes on in %s, %+v", again.Sandbox, w.session("s"))
	}
	must(t, w.life.Sandboxes().Remove(w.ctx(), string(again.Sandbox)))
	must(t, v.RemoveVolume(w.ctx(), "data"))
	wantFailed(t, in("look", ""), caisson.RunNotFound, "begin another session")
	wantAnswer(t, in("look", "data"), "nothing") // a new one, by name

	none := w.do(caisson.RunRequest{Prompt: "look", Session: "without"})
	wantAnswer(t, none, "nothing")
	wantFailed(t, w.do(caisson.RunRequest{Prompt: "look", Session: "without", Kind: caisson.WorkspaceVolume, Source: "two"}), caisson.RunInvalid, "no volume")
	must(t, w.Runs().RemoveSession(w.ctx(), w.session("s").ID))
	if vol := got(v.GetVolume(w.ctx(), "data"))(t); vol.Sandbox != "" {
		t.Errorf("the volume is %+v", vol)
	}
}

// TestVolumeAfterCrash: a daemon that finds a run in progress detaches its volume.
func TestVolumeAfterCrash(t *testing.T) {
	t.Parallel()
	w, v := withVolumes(t)
	began, _ := w.hangs("wait")
	r := w.start(inVolume("wait", "data"))
	receive(t, began)
	w.restart()
	wantFailed(t, w.ended(r.ID), caisson.RunInternal, "")
	w.empty()
	if v := got(v.GetVolume(w.ctx(), "data"))(t); v.Sandbox != "" {
		t.Errorf("the volume is %+v", v)
	}
	wantAnswer(t, w.do(inVolume("look", "data")), "nothing")
}
