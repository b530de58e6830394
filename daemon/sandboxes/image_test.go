package sandboxes_test

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestImages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	im := w.ImageService()
	img := got(im.Pull(w.ctx(), caisson.PullRequest{Reference: "debian:12"}, nil))(t)
	if img.Reference != "docker.io/library/debian:12" || img.Account != "local" || img.CreatedAt.IsZero() || img.UsedAt.IsZero() {
		t.Errorf("pulled %+v", img)
	}
	got(im.Pull(w.ctx(), caisson.PullRequest{Reference: "debian:12"}, nil))(t) // again: the same record
	pulls := w.images.Pulls()
	sb := w.create(caisson.CreateRequest{Image: "debian:12"})
	if w.images.Pulls() != pulls {
		t.Error("an image that is present was pulled for a sandbox")
	}
	w.create(caisson.CreateRequest{Image: "alpine:3"})
	if w.images.Pulls() != pulls+1 {
		t.Error("an image that is not present was not pulled")
	}
	refs := func() (refs []string) {
		for _, i := range got(im.ListImages(w.ctx()))(t) {
			refs = append(refs, strings.TrimPrefix(i.Reference, "docker.io/library/"))
		}
		return refs
	}
	if list := refs(); !slices.Equal(list, []string{"host", "alpine:3", "debian:12"}) {
		t.Errorf("listed %v", list)
	}
	err := im.RemoveImage(w.ctx(), "debian:12")
	wantKind(t, err, caisson.Conflict)
	if !strings.Contains(caisson.MessageOf(err), string(sb.ID)) {
		t.Errorf("%q does not say by whom it is used", caisson.MessageOf(err))
	}
	wantKind(t, im.RemoveImage(w.ctx(), "host"), caisson.Denied)
	wantKind(t, im.RemoveImage(w.ctx(), "nothing"), caisson.NotFound)
	wantKind(t, im.RemoveImage(w.ctx(), "A"), caisson.Invalid)

	// Images that a snapshot or a built template uses stay, with their layers.
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	wantKind(t, im.RemoveImage(w.ctx(), "debian:12"), caisson.Conflict)
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host", Setup: steps("/srv/a")}))(t)
	w.build(w.ctx(), "tpl")
	wantKind(t, last(im.Pull(w.as("other"), caisson.PullRequest{Reference: "busybox:1"}, nil)), caisson.NotFound)
	w.images.Registry["docker.io/library/busybox:1"] = caisson.ImageConfig{}
	got(im.Pull(w.as("other"), caisson.PullRequest{Reference: "busybox:1"}, nil))(t)
	present := func() int { return len(got(w.images.Layers())(t)) }
	layers := present()
	if freed := got(im.PruneImages(w.ctx()))(t); freed != 0 || present() != layers {
		t.Errorf("pruned %v that something uses", freed)
	}
	got(w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{}))(t)
	boxes, _, err := w.Sandboxes().List(w.ctx(), caisson.Filter{})
	must(t, err)
	for _, b := range boxes {
		must(t, w.Sandboxes().Remove(w.ctx(), string(b.ID)))
	}
	must(t, w.Snapshots().RemoveSnapshot(w.ctx(), string(snap.ID)))
	must(t, im.RemoveImage(w.ctx(), "debian:12"))
	must(t, w.Templates().RemoveTemplate(w.ctx(), "tpl"))
	release := w.images.ProtectLayers()
	got(im.PruneImages(w.ctx()))(t)
	if n := present(); n != layers {
		t.Errorf("%d of %d layers are left while they are held", n, layers)
	}
	release()
	if freed := got(im.PruneImages(w.ctx()))(t); freed == 0 || present() != 2 { // the host's, and the other account's
		t.Errorf("%v freed, %d layers left", freed, present())
	}
	if list := refs(); !slices.Equal(list, []string{"host"}) {
		t.Errorf("listed %v", list)
	}
	if n := w.images.Held(); n != 0 {
		t.Errorf("%d holds are left", n)
	}
}

// TestPullAtOnce pulls the same image concurrently: none of the pulls fails because another one has stored the image.
func TestPullAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 5 {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := w.ImageService().Pull(w.ctx(), caisson.PullRequest{Reference: "debian:12"}, nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		must(t, w.ImageService().RemoveImage(w.ctx(), "debian:12"))
	}
}

func TestImagesOfPaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	source := func() *handle { return &handle{File: got(os.Open(dir))(t)} }
	req := caisson.PullRequest{Reference: "dir:" + dir}
	h := source()
	req.Source = h
	_, err := w.ImageService().Pull(w.as("local"), req, nil)
	wantKind(t, err, caisson.Denied)
	if !h.closed {
		t.Error("the descriptor was not closed")
	}
	req.Source = nil
	_, err = w.ImageService().Pull(w.ctx(), req, nil)
	wantKind(t, err, caisson.NotFound)
	h = source()
	req.Source = h
	got(w.ImageService().Pull(w.ctx(), req, nil))(t)
	if !h.closed {
		t.Error("the descriptor was not closed")
	}
	req.Source = nil
	got(w.ImageService().Pull(w.ctx(), req, nil))(t) // an image that was imported earlier
	got(w.Sandboxes().Create(w.as("local"), caisson.CreateRequest{Image: "dir:" + dir}))(t)
	h = source()
	_, err = w.ImageService().Pull(w.ctx(), caisson.PullRequest{Reference: "A", Source: h}, nil)
	wantKind(t, err, caisson.Invalid)
	h2 := source()
	got(w.ImageService().Pull(w.ctx(), caisson.PullRequest{Reference: "host", Source: h2}, nil))(t)
	if !h.closed || !h2.closed {
		t.Errorf("descriptors were not closed: %v, %v", h.closed, h2.closed)
	}
}
