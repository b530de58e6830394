package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

func volumeAs(name string, dir caisson.Handle) *caisson.WorkspaceRequest {
	return &caisson.WorkspaceRequest{Kind: caisson.WorkspaceVolume, Source: name, Directory: dir}
}

// TestVolumesOverTCP: a volume shows nothing of the host, so tokens may use them; each account has its own.
func TestVolumesOverTCP(t *testing.T) {
	s := serve(t)
	alice, bob := s.remote(t, "alice"), s.remote(t, "bob")
	sb, err := alice.Create(t.Context(), caisson.CreateRequest{Workspace: volumeAs("data", nil)})
	if err != nil {
		t.Fatal(err)
	}
	v, err := alice.GetVolume(t.Context(), "data")
	if err != nil || v.Sandbox != sb.ID || v.Account != "alice" {
		t.Fatalf("%+v, %v", v, err)
	}
	run, err := alice.StartRun(t.Context(), caisson.RunRequest{Agent: "caisson", Prompt: "files", Kind: caisson.WorkspaceVolume, Source: "other"})
	if err != nil || run.Request.Source != "other" {
		t.Errorf("%+v, %v", run, err)
	}
	for _, other := range []*client.Client{bob, s.local(t, "bob"), s.local(t, "")} {
		for _, ref := range []string{"data", string(v.ID)} {
			_, err := other.GetVolume(t.Context(), ref)
			apitest.Fails(t, err, caisson.NotFound, "")
			apitest.Fails(t, other.RemoveVolume(t.Context(), ref), caisson.NotFound, "")
		}
		if list, _, err := other.ListVolumes(t.Context(), caisson.Filter{}); len(list) > 0 || err != nil {
			t.Error(list, err)
		}
	}
	// The same name is another volume, and the id is nobody else's to use.
	if _, err := bob.Create(t.Context(), caisson.CreateRequest{Workspace: volumeAs("data", nil)}); err != nil {
		t.Error(err)
	}
	if b, err := bob.GetVolume(t.Context(), "data"); err != nil || b.ID == v.ID {
		t.Errorf("%+v, %v", b, err)
	}
	if _, err := bob.Create(t.Context(), caisson.CreateRequest{Workspace: volumeAs(string(v.ID), nil)}); err == nil {
		t.Error("another account's id was taken")
	}
}

// TestVolumeIsNoDirectory: with a volume no descriptor is passed, and one that is passed is closed.
func TestVolumeIsNoDirectory(t *testing.T) {
	s := serve(t)
	c := s.local(t, "")
	mount := mountable(t, "mounted")
	sb, err := c.Create(t.Context(), caisson.CreateRequest{
		Mounts: []caisson.Mount{{Source: mount, Target: "/m"}}, Workspace: volumeAs("data", nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StatFile(t.Context(), string(sb.ID), "/m/mounted"); err != nil {
		t.Error(err)
	}
	for _, from := range []*client.Client{c, s.remote(t, caisson.LocalAccount)} {
		dir := open(t, mount)
		_, err := from.Create(t.Context(), caisson.CreateRequest{Workspace: volumeAs("other", dir)})
		apitest.Fails(t, err, caisson.Invalid, "workspace")
		if dir.Close() == nil {
			t.Error("the client leaves the directory open")
		}
	}
	_, err = c.StartRun(t.Context(), caisson.RunRequest{Agent: "caisson", Prompt: "x", Kind: caisson.WorkspaceVolume, Source: "other", Directory: open(t, mount)})
	apitest.Fails(t, err, caisson.Invalid, "source")
	_, err = c.StartRun(t.Context(), caisson.RunRequest{Agent: "caisson", Prompt: "x", Kind: caisson.WorkspaceVolume, Source: "other", Workspace: strings.NewReader("")})
	apitest.Fails(t, err, caisson.Invalid, "kind")
	if _, err := c.GetVolume(t.Context(), "other"); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("a refused request has made a volume: %v", err)
	}
	// A directory is still for the unix socket only.
	status, _, answer := s.raw(t, true, http.MethodPost, protocol.Prefix+"/sandboxes", `{"workspace":{"kind":"overlay","source":"/etc"}}`, nil)
	if status != http.StatusBadRequest {
		t.Errorf("%d %s", status, answer)
	}
}

// TestVolumeBodies: what a client of another make may send.
func TestVolumeBodies(t *testing.T) {
	s := serve(t)
	long := strings.Repeat("x", 65)
	for _, tt := range []struct {
		path, body string
		status     int
		field      string
	}{
		{"/volumes", `{"name":"a"}`, http.StatusCreated, ""},
		{"/volumes", `{"name":"b","labels":{"k":"v"}}`, http.StatusCreated, ""},
		{"/volumes", `{"name":"a"}`, http.StatusConflict, ""},
		{"/volumes", `{}`, http.StatusBadRequest, "name"},
		{"/volumes", `{"name":""}`, http.StatusBadRequest, "name"},
		{"/volumes", `{"name":"A"}`, http.StatusBadRequest, "name"},
		{"/volumes", `{"name":"../a"}`, http.StatusBadRequest, "name"},
		{"/volumes", `{"name":"a\n"}`, http.StatusBadRequest, "name"},
		{"/volumes", `{"name":"` + long + `"}`, http.StatusBadRequest, "name"},
		{"/volumes", `{"name":["c"]}`, http.StatusBadRequest, "name"},
		{"/volumes", `{"name":"c","sandbox":"sb-aaaaaaaaaaaaaaaa"}`, http.StatusBadRequest, "sandbox"},
		{"/volumes", `{"name":"c","labels":{"caisson/x":"y"}}`, http.StatusBadRequest, "labels"},
		{"/volumes", `{"name":"vl-aaaaaaaaaaaaaaaa"}`, http.StatusBadRequest, "name"},
		{"/sandboxes", `{"workspace":{"kind":"volume","source":"c"}}`, http.StatusCreated, ""},
		{"/sandboxes", `{"workspace":{"kind":"volume"}}`, http.StatusBadRequest, "workspace.source"},
		{"/sandboxes", `{"workspace":{"kind":"volume","source":"/etc"}}`, http.StatusBadRequest, "workspace.source"},
		{"/sandboxes", `{"workspace":{"kind":"volume","source":"c"}}`, http.StatusConflict, "workspace.source"},
		{"/sandboxes/x/fork", `{"workspace":{"kind":"volume","source":"/etc"}}`, http.StatusBadRequest, "workspace.source"},
		{"/runs", `{"agent":"caisson","prompt":"x","kind":"volume"}`, http.StatusBadRequest, "source"},
		{"/runs", `{"agent":"caisson","prompt":"x","kind":"volume","source":"/etc"}`, http.StatusBadRequest, "source"},
		{"/runs", `{"agent":"caisson","prompt":"x","kind":"volume","source":"a"}`, http.StatusCreated, ""},
	} {
		status, _, answer := s.raw(t, true, http.MethodPost, protocol.Prefix+tt.path, tt.body, nil)
		var p protocol.Problem
		if err := json.Unmarshal([]byte(answer), &p); err != nil || status != tt.status || p.Field != tt.field {
			t.Errorf("%s %s: status %d about %q, want %d about %q: %s", tt.path, tt.body, status, p.Field, tt.status, tt.field, answer)
		}
	}
	for query, want := range map[string]int{"?limit=1": 200, "?after=x": 400, "?limit=1001": 400, "?state=live": 400, "?label=k%3Dv": 200, "?label=k": 400} {
		if status, _, answer := s.raw(t, true, http.MethodGet, protocol.Prefix+"/volumes"+query, "", nil); status != want {
			t.Errorf("%s: status %d, want %d: %s", query, status, want, answer)
		}
	}
}

// TestCreateVolumeOnce: a request that is repeated with its key is done once.
func TestCreateVolumeOnce(t *testing.T) {
	c := serve(t).local(t, "")
	ctx := client.WithIdempotencyKey(t.Context(), "k")
	var ids []caisson.ID
	for range 2 {
		v, err := c.CreateVolume(ctx, caisson.VolumeRequest{Name: "v"})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, v.ID)
	}
	if ids[0] != ids[1] {
		t.Error(ids)
	}
	_, err := c.CreateVolume(ctx, caisson.VolumeRequest{Name: "other"})
	apitest.Fails(t, err, caisson.Invalid, protocol.IdempotencyHeader)
	_, err = c.CreateVolume(t.Context(), caisson.VolumeRequest{Name: "v"})
	apitest.Fails(t, err, caisson.Conflict, "")
	_, _, err = c.ListVolumes(t.Context(), caisson.Filter{States: []caisson.State{caisson.Running}})
	apitest.Fails(t, err, caisson.Invalid, "state")
}
