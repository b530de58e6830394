package sandboxes_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestStoredPlan: a sandbox has its plan in the store while it is made, and not afterwards.
func TestStoredPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	var during []*caisson.Plan
	w.runtime.restore = func() {
		list, _, err := w.store.Store.Sandboxes().List(context.Background(), caisson.AllAccounts(), caisson.Filter{Limit: 10})
		must(t, err)
		for _, b := range list {
			if b.State == caisson.Creating {
				during = append(during, b.Plan)
			}
		}
	}
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	forks := got(w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{}))(t)
	forks = append(forks, got(w.Snapshots().Fork(w.ctx(), string(sb.ID), caisson.ForkRequest{}))(t)...)
	forks = append(forks, w.create(caisson.CreateRequest{Snapshot: snap.ID}))
	from := []caisson.ID{snap.ID, sb.ID, snap.ID}
	if len(during) != len(from) {
		t.Fatalf("the plans are %v", during)
	}
	for i, p := range during {
		captured := i == 1 // only a fork of a running sandbox needs a capture
		if p == nil || p.Version != caisson.PlanVersion || p.From != from[i] || !p.Memory || !p.Start || (p.Capture != "") != captured {
			t.Errorf("plan %d is %+v", i, p)
		}
	}
	for _, f := range append(forks, sb) {
		stored := got(w.store.Store.Sandboxes().Get(context.Background(), caisson.AllAccounts(), string(f.ID)))(t)
		if f.Plan != nil || stored.Plan != nil {
			t.Errorf("%s has been made and still has the plan %+v", f.ID, stored.Plan)
		}
	}
}

// TestInterruptedPlan: after a crash during a fork, the stored plan says which capture belongs to it. A plan of another version,
// or none, as of earlier builds, is not followed: the capture is then garbage.
func TestInterruptedPlan(t *testing.T) {
	t.Parallel()
	capture := caisson.NewID(caisson.SnapshotPrefix)
	for name, c := range map[string]struct {
		plan    *caisson.Plan
		garbage bool
	}{
		"of this build":       {&caisson.Plan{Version: caisson.PlanVersion, Capture: capture}, false},
		"of a later build":    {&caisson.Plan{Version: caisson.PlanVersion + 1, Capture: capture}, true},
		"of an earlier build": {nil, true},
		"without a capture":   {&caisson.Plan{Version: caisson.PlanVersion}, true},
		"broken":              {&caisson.Plan{Version: caisson.PlanVersion, Capture: "../sandboxes"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			kept, sb := w.create(caisson.CreateRequest{}), w.create(caisson.CreateRequest{})
			got(w.store.Store.Sandboxes().Update(w.ctx(), caisson.AllAccounts(), string(sb.ID), func(s *caisson.Sandbox) error {
				s.State, s.Plan = caisson.Creating, c.plan
				return nil
			}))(t)
			must(t, os.MkdirAll(filepath.Join(w.dir, "snapshots", string(capture), "files"), 0o700))
			found := w.restart()
			if is := slices.Contains(found, caisson.Garbage{Kind: "directory", Name: "snapshots/" + string(capture)}); is != c.garbage {
				t.Errorf("garbage is %v", found)
			}
			w.holds(kept.ID)
		})
	}
}

// revocable is a gateway whose models can be taken away.
type revocable struct {
	gateway
	revoked *atomic.Bool
}

func (r revocable) Check(ctx context.Context, g *caisson.ModelGrant) error {
	if r.revoked.Load() {
		return caisson.Invalidf("models", "there are no models any more")
	}
	return r.gateway.Check(ctx, g)
}

// TestRevokedWhilePlanned: what is revoked while a sandbox waits for its image is not granted.
func TestRevokedWhilePlanned(t *testing.T) {
	t.Parallel()
	w := online(t)
	must(t, w.Close())
	var revoked atomic.Bool
	w.config.Network.Gateway = revocable{revoked: &revoked}
	w.boot()
	w.images.Find = func(context.Context, caisson.PullRequest) (caisson.ImageConfig, error) {
		revoked.Store(true)
		return caisson.ImageConfig{}, nil
	}
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{
		Image: "debian:12", Models: &caisson.ModelGrant{Models: []string{"small"}}, Policy: allowOnly("example.com"),
	})
	wantKind(t, err, caisson.Invalid)
	w.holds()
	if b := w.budgets(); len(b) > 0 {
		t.Errorf("budgets are left: %v", b)
	}
	if n := w.images.Held(); n != 0 {
		t.Errorf("layers are held %d times", n)
	}
}
