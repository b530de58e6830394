package apitest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// createWithVolume creates a running sandbox with the volume name at the path target; "" is the default path.
func createWithVolume(t *testing.T, ctx context.Context, c Cores, name, target string) *caisson.Sandbox {
	t.Helper()
	return createSandbox(t, ctx, c, caisson.CreateRequest{
		Workspace: &caisson.WorkspaceRequest{Kind: caisson.WorkspaceVolume, Source: name, Target: target},
	})
}

func testVolumes(t *testing.T, ctx context.Context, c Cores) {
	v := must(c.Volumes.CreateVolume(ctx, caisson.VolumeRequest{Name: "b.1_x-y", Labels: map[string]string{"k": "v"}}))(t)
	if caller := must(caisson.CallerOf(ctx))(t); v.Account != caller.Account || v.Name != "b.1_x-y" || v.Labels["k"] != "v" || v.Sandbox != "" ||
		v.CreatedAt.IsZero() || !v.UsedAt.IsZero() {
		t.Errorf("%+v", v)
	}
	_, err := c.Volumes.CreateVolume(ctx, caisson.VolumeRequest{Name: v.Name})
	Fails(t, err, caisson.Conflict, "")
	for _, name := range []string{"", "-x", "A", "a/b", "../x", "ü", "a b", string(caisson.NewID(caisson.VolumePrefix)), strings.Repeat("x", 65)} {
		_, err := c.Volumes.CreateVolume(ctx, caisson.VolumeRequest{Name: name})
		Fails(t, err, caisson.Invalid, "name")
	}
	for _, ref := range []string{string(v.ID), v.Name} {
		if got := must(c.Volumes.GetVolume(ctx, ref))(t); got.ID != v.ID || got.CountedAt.IsZero() {
			t.Errorf("%+v", got)
		}
	}
	succeeds(t, c.Volumes.RemoveVolume(ctx, v.Name))
	for _, ref := range []string{v.Name, string(v.ID), "nowhere", "ü/ %2e?#&="} {
		_, err := c.Volumes.GetVolume(ctx, ref)
		Fails(t, err, caisson.NotFound, "")
		Fails(t, c.Volumes.RemoveVolume(ctx, ref), caisson.NotFound, "")
	}
	// The name can be used again, for another volume.
	if again := must(c.Volumes.CreateVolume(ctx, caisson.VolumeRequest{Name: v.Name}))(t); again.ID == v.ID || again.Labels != nil {
		t.Errorf("%+v", again)
	}
}

func testVolumePages(t *testing.T, ctx context.Context, c Cores) {
	var ids []caisson.ID
	for _, name := range []string{"c", "a", "b"} {
		v := must(c.Volumes.CreateVolume(ctx, caisson.VolumeRequest{Name: name, Labels: map[string]string{"of": name}}))(t)
		ids = append(ids, v.ID)
	}
	for _, tt := range []struct {
		f    caisson.Filter
		want []caisson.ID
		more bool
	}{
		{caisson.Filter{}, ids, false},
		{caisson.Filter{Limit: 2}, ids[:2], true},
		{caisson.Filter{Limit: 2, After: ids[1]}, ids[2:], false},
		{caisson.Filter{Name: "a"}, ids[1:2], false},
		{caisson.Filter{Labels: map[string]string{"of": "b"}}, ids[2:], false},
		{caisson.Filter{Labels: map[string]string{"of": "d"}}, nil, false},
	} {
		page, more, err := c.Volumes.ListVolumes(ctx, tt.f)
		var got []caisson.ID
		for _, v := range page {
			got = append(got, v.ID)
		}
		if err != nil || more != tt.more || !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v, %t, %v; want %v", tt.f, got, more, err, tt.want)
		}
	}
}

// testVolumeAttach checks that files in a volume persist from one sandbox to the next, and that a volume is attached to at most
// one sandbox.
func testVolumeAttach(t *testing.T, ctx context.Context, c Cores) {
	sb := createWithVolume(t, ctx, c, "data", "/srv/data")
	list, _, err := c.Volumes.ListVolumes(ctx, caisson.Filter{Name: "data"}) // unlike GetVolume, ListVolumes does not count files
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	v := list[0]
	if diff := cmp.Diff(&caisson.VolumeMount{ID: v.ID, Name: "data", Target: "/srv/data"}, sb.Spec.Volume); diff != "" || v.Sandbox != sb.ID || v.UsedAt.IsZero() {
		t.Errorf("%+v %s", v, diff)
	}
	if sb.Spec.Workspace != "" {
		t.Errorf("a volume is the workspace %s", sb.Spec.Workspace)
	}
	must(c.Files.WriteFile(ctx, string(sb.ID), "/srv/data/dir/file", 0, strings.NewReader("kept")))(t)
	before := len(listSandboxes(t, ctx, c))
	_, err = c.Sandboxes.Create(ctx, caisson.CreateRequest{Workspace: &caisson.WorkspaceRequest{Kind: caisson.WorkspaceVolume, Source: string(v.ID)}})
	checkHolder(t, err, "workspace.source", sb.ID)
	req := caisson.RunRequest{Agent: "caisson", Prompt: "files", Kind: caisson.WorkspaceVolume, Source: "data"}
	run := must(c.Runs.StartRun(ctx, req))(t)
	if e := waitForEnd(t, ctx, c, run.ID).Result.Error; e == nil || e.Code != caisson.RunInvalid || !strings.Contains(e.Message, string(sb.ID)) {
		t.Errorf("a run with a volume that sandbox %s has: %v", sb.ID, e)
	}
	checkHolder(t, c.Volumes.RemoveVolume(ctx, "data"), "", sb.ID)
	if after := len(listSandboxes(t, ctx, c)); after != before {
		t.Errorf("%d sandboxes, then %d", before, after)
	}
	succeeds(t, c.Sandboxes.Remove(ctx, string(sb.ID)))
	if v := must(c.Volumes.GetVolume(ctx, "data"))(t); v.Sandbox != "" || v.Files != 2 || v.Bytes < 4 {
		t.Errorf("left as %+v", v)
	}
	next := createWithVolume(t, ctx, c, string(v.ID), "")
	if next.Spec.Volume == nil || next.Spec.Volume.ID != v.ID || next.Spec.Volume.Target != "/workspace" {
		t.Errorf("%+v", next.Spec.Volume)
	}
	must(c.Files.StatFile(ctx, string(next.ID), "/workspace/dir/file"))(t)
	succeeds(t, c.Sandboxes.Remove(ctx, string(next.ID)))
	run = must(c.Runs.StartRun(ctx, req))(t)
	if got := waitForEnd(t, ctx, c, run.ID); got.Result.Answer != "dir/ dir/file" || got.Workspace != "" || got.Request.Source != "data" {
		t.Errorf("%+v", got)
	}
	poll.Until(t, Timeout, func() bool { // the sandbox of a run is removed some time after the run has ended
		list, _, err := c.Volumes.ListVolumes(ctx, caisson.Filter{Name: "data"})
		return err == nil && list[0].Sandbox == ""
	})
	succeeds(t, c.Volumes.RemoveVolume(ctx, "data"))
	testVolumeRequests(t, ctx, c)
	testVolumeEvents(t, ctx, c, v.ID)
}

// testVolumeRequests checks that requests with invalid volume names fail and create no volume.
func testVolumeRequests(t *testing.T, ctx context.Context, c Cores) {
	for _, name := range []string{"", "/etc", "../x", "A", ".", "a:b", strings.Repeat("x", 65)} {
		_, err := c.Sandboxes.Create(ctx, caisson.CreateRequest{Workspace: &caisson.WorkspaceRequest{Kind: caisson.WorkspaceVolume, Source: name}})
		if caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("a sandbox with %q: %v", name, err)
		}
		_, err = c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Prompt: "files", Kind: caisson.WorkspaceVolume, Source: name})
		if caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("a run in %q: %v", name, err)
		}
	}
	if list, _, err := c.Volumes.ListVolumes(ctx, caisson.Filter{}); len(list) > 0 || err != nil {
		t.Error(list, err)
	}
}

// testVolumeEvents checks the events about attaching and detaching a volume.
func testVolumeEvents(t *testing.T, ctx context.Context, c Cores, id caisson.ID) {
	want := []string{"created", "taken", "left", "taken", "left", "taken", "left", "removed"}
	ctx, stop := context.WithCancel(ctx)
	events := must(c.Events.Watch(ctx, string(id), 0))(t)
	for _, what := range want {
		if e := <-events; e.Type != "volume."+what || e.Subject != string(id) {
			t.Errorf("%+v, want volume.%s", e, what)
		}
	}
	stop()
	for range events { // the channel is closed when the context ends
	}
}

// listSandboxes returns the first page of all sandboxes.
func listSandboxes(t *testing.T, ctx context.Context, c Cores) []*caisson.Sandbox {
	t.Helper()
	list, _, err := c.Sandboxes.List(ctx, caisson.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// checkHolder checks that err is a Conflict on this field whose message contains the id of the sandbox to which the volume is
// attached.
func checkHolder(t *testing.T, err error, field string, holder caisson.ID) {
	t.Helper()
	Fails(t, err, caisson.Conflict, field)
	if !strings.Contains(caisson.MessageOf(err), string(holder)) {
		t.Errorf("%v does not name %s", err, holder)
	}
}
