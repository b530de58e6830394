package sandboxes_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
)

// writes returns the methods that change files.
func writes(w *world, ref string) map[string]func() error {
	f := w.Files()
	return map[string]func() error{
		"write": func() error {
			_, err := f.WriteFile(w.ctx(), ref, "/root/new", 0, strings.NewReader("new"))
			return err
		},
		"mkdir":  func() error { return f.MakeDir(w.ctx(), ref, "/root/dir/sub", true) },
		"move":   func() error { return f.MoveFile(w.ctx(), ref, "/root/old", "/root/moved") },
		"remove": func() error { return f.RemoveFile(w.ctx(), ref, "/root/gone", false) },
		"tree":   func() error { return f.WriteTree(w.ctx(), ref, "/root", archive("tree/leaf", "leaf")) },
	}
}

// archive returns a tar archive of one file.
func archive(name, content string) io.Reader {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	_ = tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg})
	_, _ = io.WriteString(tw, content)
	_ = tw.Close()
	return &b
}

// reads checks every method that reads files.
func (w *world) reads(ref, content string) {
	w.t.Helper()
	f := w.Files()
	if s := w.read(ref, "/root/new"); s != content {
		w.t.Errorf("read %q, want %q", s, content)
	}
	r := got(f.ReadFile(w.ctx(), ref, "/root/new", 1, 1))(w.t)
	if b := got(io.ReadAll(r))(w.t); string(b) != content[1:2] {
		w.t.Errorf("read a part: %q", b)
	}
	must(w.t, r.Close())
	var names []string
	for _, i := range got(f.ListFiles(w.ctx(), ref, "/root"))(w.t) {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	if want := []string{".keep", "dir", "moved", "new", "tree"}; !slices.Equal(names, want) {
		w.t.Errorf("listed %v, want %v", names, want)
	}
	if i := got(f.StatFile(w.ctx(), ref, "/root/tree/leaf"))(w.t); i.Size != 4 || i.Type != "file" {
		w.t.Errorf("stat %+v", i)
	}
	r = got(f.ReadTree(w.ctx(), ref, "/root/tree"))(w.t)
	defer r.Close()
	var tree []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		must(w.t, err)
		tree = append(tree, strings.TrimSuffix(h.Name, "/"))
	}
	if want := []string{"tree", "tree/leaf"}; !slices.Equal(tree, want) {
		w.t.Errorf("tree %v, want %v", tree, want)
	}
	_, err := f.StatFile(w.ctx(), ref, "/root/gone")
	wantKind(w.t, err, caisson.NotFound)
}

func TestFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	id := string(sb.ID)
	w.write(id, "/root/old", "old")
	w.write(id, "/root/gone", "gone")
	for name, write := range writes(w, id) {
		if err := write(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.reads(id, "new")
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	changes := got(w.Files().WatchFiles(ctx, id, "/root", true))(t)
	w.write(id, "/root/new", "new")
	for e := range changes {
		if e.Path == "/root/new" {
			break
		}
	}
	cancel()
	for range changes { // the channel is closed
	}
	l := w.Sandboxes()
	for _, next := range []struct {
		state caisson.State
		do    func() error
	}{
		{caisson.Paused, func() error { _, err := l.Pause(w.ctx(), id); return err }},
		{caisson.Stopped, func() error { _, err := l.Stop(w.ctx(), id, 0); return err }},
	} {
		must(t, next.do())
		var wg sync.WaitGroup
		for range 4 { // all calls use one stand-in
			wg.Go(func() { w.reads(id, "new") })
		}
		wg.Wait()
		if n := len(w.running()); n != 1 {
			t.Errorf("%s: %d stand-ins", next.state, n)
		}
		for name, write := range writes(w, id) {
			if err := write(); caisson.KindOf(err) != caisson.Conflict || !strings.Contains(caisson.MessageOf(err), "can be read but not written") {
				t.Errorf("%s: %s: %v", next.state, name, err)
			}
		}
		_, err := w.Files().WatchFiles(w.ctx(), id, "/", true)
		wantKind(t, err, caisson.Conflict)
	}
	got(l.Start(w.ctx(), id))(t)
	w.holds(sb.ID) // the stand-in is removed
	w.reads(id, "new")
}

func TestStandInEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(w *world, id string)
	}{
		{"idle", func(w *world, _ string) {
			deadline := time.Now().Add(3 * time.Second)
			w.settles()
			if time.Now().Before(deadline) {
				w.t.Error("it was not kept for the next use")
			}
		}},
		{"close", func(w *world, _ string) { w.restart() }},
		{"remove", func(w *world, id string) { must(w.t, w.Sandboxes().Remove(w.ctx(), id)) }},
		{"crash", func(w *world, _ string) {
			// For another core on the same directory, the stand-ins that the first one has not removed are garbage.
			next := got(sandboxes.New(w.config))(w.t)
			garbage := got(next.CollectGarbage(w.ctx()))(w.t)
			if len(garbage) != 2 {
				w.t.Errorf("garbage %v, want the stand-in and its directory", garbage)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			id := string(w.in(caisson.Paused).ID)
			got(w.Files().ListFiles(w.ctx(), id, "/"))(t)
			if n := len(w.running()); n != 1 {
				t.Fatalf("%d stand-ins", n)
			}
			c.do(w, id)
			w.holds()
		})
	}
}

// TestStandInInUse: a resume does not interrupt readers of the paused sandbox.
func TestStandInInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	id := string(sb.ID)
	content := strings.Repeat("x", 1<<20)
	w.write(id, "/root/a", content)
	got(w.Sandboxes().Pause(w.ctx(), id))(t)
	r := got(w.Files().ReadFile(w.ctx(), id, "/root/a", 0, 0))(t)
	got(w.Sandboxes().Resume(w.ctx(), id))(t)
	w.write(id, "/root/a", "short")
	if b := got(io.ReadAll(r))(t); string(b) != content {
		t.Errorf("read %d bytes, want %d", len(b), len(content))
	}
	must(t, r.Close())
	w.settles(sb.ID)
}

// TestFilesWhileChanging: readers that race with pause and resume get the files or a Conflict, and no written file is
// lost.
func TestFilesWhileChanging(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	id := string(sb.ID)
	w.write(id, "/root/a", "0")
	ctx, stop := context.WithCancel(w.ctx())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, err := w.Files().StatFile(ctx, id, "/root/a")
				if k := caisson.KindOf(err); err != nil && ctx.Err() == nil && k != caisson.Conflict && k != caisson.Unavailable {
					t.Errorf("stat: %v", err)
				}
			}
		})
	}
	change := func(f func(context.Context, string) (*caisson.Sandbox, error)) {
		waitFor(t, func() bool {
			_, err := f(w.ctx(), id)
			if err != nil && caisson.KindOf(err) != caisson.Conflict {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	for i := range 15 {
		content := strings.Repeat("x", i+1)
		w.write(id, "/root/a", content)
		change(w.Sandboxes().Pause)
		change(w.Sandboxes().Resume)
		if s := w.read(id, "/root/a"); s != content {
			t.Errorf("got %q, want %q", s, content)
		}
	}
	stop()
	wg.Wait()
	w.settles(sb.ID)
}
