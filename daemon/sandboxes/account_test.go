package sandboxes_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
)

// TestAccountsAreApart calls every method of every service with another account's objects.
func TestAccountsAreApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{Name: "box"})
	id := string(sb.ID)
	snap := got(w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{Name: "snap"}))(t)
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "debian:12"}))(t)
	got(w.ImageService().Pull(w.ctx(), caisson.PullRequest{Reference: "debian:12"}, nil))(t)
	l, s, p, f, tp, im := w.Sandboxes(), w.Snapshots(), w.Processes(), w.Files(), w.Templates(), w.ImageService()
	calls := map[string]func(ctx context.Context, box, snap string) error{
		"Get":    func(ctx context.Context, box, _ string) error { _, err := l.Get(ctx, box); return err },
		"Start":  func(ctx context.Context, box, _ string) error { _, err := l.Start(ctx, box); return err },
		"Stop":   func(ctx context.Context, box, _ string) error { _, err := l.Stop(ctx, box, 0); return err },
		"Pause":  func(ctx context.Context, box, _ string) error { _, err := l.Pause(ctx, box); return err },
		"Resume": func(ctx context.Context, box, _ string) error { _, err := l.Resume(ctx, box); return err },
		"Extend": func(ctx context.Context, box, _ string) error {
			_, err := l.Extend(ctx, box, caisson.ExtendRequest{})
			return err
		},
		"Remove": func(ctx context.Context, box, _ string) error { return l.Remove(ctx, box) },
		"Snapshot": func(ctx context.Context, box, _ string) error {
			_, err := s.Snapshot(ctx, box, caisson.SnapshotRequest{})
			return err
		},
		"Fork": func(ctx context.Context, box, _ string) error {
			_, err := s.Fork(ctx, box, caisson.ForkRequest{})
			return err
		},
		"Fork snap": func(ctx context.Context, _, snap string) error {
			_, err := s.Fork(ctx, snap, caisson.ForkRequest{})
			return err
		},
		"Create": func(ctx context.Context, _, _ string) error {
			_, err := l.Create(ctx, caisson.CreateRequest{Snapshot: snap.ID})
			return err
		},
		"Create tpl": func(ctx context.Context, _, _ string) error {
			_, err := l.Create(ctx, caisson.CreateRequest{Template: "tpl"})
			return err
		},
		"GetSnap":    func(ctx context.Context, _, snap string) error { _, err := s.GetSnapshot(ctx, snap); return err },
		"RemoveSnap": func(ctx context.Context, _, snap string) error { return s.RemoveSnapshot(ctx, snap) },
		"Exec": func(ctx context.Context, box, _ string) error {
			_, err := p.Exec(ctx, box, caisson.ExecRequest{Command: []string{"x"}})
			return err
		},
		"Connect": func(ctx context.Context, box, _ string) error {
			_, err := sandboxes.NewConnections(w.Core, w.runtime).Connect(ctx, box, caisson.ConnectRequest{Port: 80})
			return err
		},
		"CreateTerminal": func(ctx context.Context, box, _ string) error {
			_, err := sandboxes.NewTerminals(w.Core, w.runtime).CreateTerminal(ctx, box, caisson.TerminalRequest{Command: []string{"x"}})
			return err
		},
		"ListTerminals": func(ctx context.Context, box, _ string) error {
			_, err := sandboxes.NewTerminals(w.Core, w.runtime).ListTerminals(ctx, box)
			return err
		},
		"AttachTerminal": func(ctx context.Context, box, _ string) error {
			_, err := sandboxes.NewTerminals(w.Core, w.runtime).AttachTerminal(ctx, box, "tm-aaaaaaaaaaaaaaaa", caisson.AttachRequest{})
			return err
		},
		"RemoveTerminal": func(ctx context.Context, box, _ string) error {
			return sandboxes.NewTerminals(w.Core, w.runtime).RemoveTerminal(ctx, box, "tm-aaaaaaaaaaaaaaaa")
		},
		"Processes": func(ctx context.Context, box, _ string) error { _, err := p.ListProcesses(ctx, box); return err },
		"Kill":      func(ctx context.Context, box, _ string) error { return p.Kill(ctx, box, -1, 9) },
		"Stats":     func(ctx context.Context, box, _ string) error { _, err := p.Stats(ctx, box); return err },
		"Logs":      func(ctx context.Context, box, _ string) error { _, err := p.Logs(ctx, box, false); return err },
		"ReadFile": func(ctx context.Context, box, _ string) error {
			_, err := f.ReadFile(ctx, box, "/image", 0, 0)
			return err
		},
		"WriteFile": func(ctx context.Context, box, _ string) error {
			_, err := f.WriteFile(ctx, box, "/x", 0, strings.NewReader(""))
			return err
		},
		"ListFiles":  func(ctx context.Context, box, _ string) error { _, err := f.ListFiles(ctx, box, "/"); return err },
		"StatFile":   func(ctx context.Context, box, _ string) error { _, err := f.StatFile(ctx, box, "/image"); return err },
		"MakeDir":    func(ctx context.Context, box, _ string) error { return f.MakeDir(ctx, box, "/x", true) },
		"MoveFile":   func(ctx context.Context, box, _ string) error { return f.MoveFile(ctx, box, "/image", "/y") },
		"RemoveFile": func(ctx context.Context, box, _ string) error { return f.RemoveFile(ctx, box, "/image", true) },
		"WatchFiles": func(ctx context.Context, box, _ string) error {
			_, err := f.WatchFiles(ctx, box, "/", true)
			return err
		},
		"ReadTree": func(ctx context.Context, box, _ string) error { _, err := f.ReadTree(ctx, box, "/root"); return err },
		"WriteTree": func(ctx context.Context, box, _ string) error {
			return f.WriteTree(ctx, box, "/root", io.LimitReader(strings.NewReader(""), 0))
		},
		"GetTemplate":    func(ctx context.Context, _, _ string) error { _, err := tp.GetTemplate(ctx, "tpl"); return err },
		"RemoveTemplate": func(ctx context.Context, _, _ string) error { return tp.RemoveTemplate(ctx, "tpl") },
		"BuildTemplate": func(ctx context.Context, _, _ string) error {
			_, err := tp.BuildTemplate(ctx, "tpl", caisson.RegistryAuth{}, nil)
			return err
		},
		"RemoveImage": func(ctx context.Context, _, _ string) error { return im.RemoveImage(ctx, "debian:12") },
	}
	for name, call := range calls {
		for _, ref := range [][2]string{{id, string(snap.ID)}, {"box", "snap"}} {
			if err := call(w.as("other"), ref[0], ref[1]); caisson.KindOf(err) != caisson.NotFound {
				t.Errorf("%s(%s): %v, want NotFound", name, ref, err)
			}
			if err := call(t.Context(), ref[0], ref[1]); caisson.KindOf(err) != caisson.Unauthed {
				t.Errorf("%s(%s) without a caller: %v, want Unauthed", name, ref, err)
			}
		}
	}
	boxes, _, err := l.List(w.as("other"), caisson.Filter{})
	must(t, err)
	snaps, _, err := s.ListSnapshots(w.as("other"), caisson.Filter{})
	must(t, err)
	tpls := got(tp.ListTemplates(w.as("other")))(t)
	imgs := got(im.ListImages(w.as("other")))(t)
	if len(boxes)+len(snaps) != 0 || len(tpls) != 1 || len(imgs) != 1 {
		t.Errorf("another account sees %v, %v, %v, %v", boxes, snaps, tpls, imgs)
	}
	for _, err := range []error{
		second(l.List(t.Context(), caisson.Filter{})), second(s.ListSnapshots(t.Context(), caisson.Filter{})),
		last(tp.ListTemplates(t.Context())), last(im.ListImages(t.Context())), last(im.PruneImages(t.Context())),
		last(tp.PutTemplate(t.Context(), caisson.Template{Name: "x", Image: "host"})),
		last(im.Pull(t.Context(), caisson.PullRequest{Reference: "debian:12"}, nil)),
	} {
		wantKind(t, err, caisson.Unauthed)
	}
	// Both accounts may use the same names.
	got(l.Create(w.as("other"), caisson.CreateRequest{Name: "box"}))(t)
	got(tp.PutTemplate(w.as("other"), caisson.Template{Name: "tpl", Image: "alpine:3"}))(t)
	if got(tp.GetTemplate(w.ctx(), "tpl"))(t).Image != "debian:12" {
		t.Error("another account has changed the template")
	}
	w.wantState(sb.ID, caisson.Running)
}

func last[T any](_ T, err error) error         { return err }
func second[T any](_ T, _ bool, e error) error { return e }
