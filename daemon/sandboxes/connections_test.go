package sandboxes_test

import (
	"context"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
)

// TestPromise9Connections tests that an account has its part of the connections to sandboxes, and each of its sandboxes a part of
// that, and that connections of others do not count towards it.
func TestPromise9Connections(t *testing.T) {
	t.Parallel()
	const perSandbox, perAccount = 512, 2048
	w := newWorld(t)
	s := sandboxes.NewConnections(w.Core, pairDialer{})
	other := w.as("other")
	theirs := got(w.Sandboxes().Create(other, caisson.CreateRequest{Image: "debian:12"}))(t)
	var open []caisson.Conn
	defer func() {
		for _, c := range open {
			must(t, c.Close())
		}
	}()
	connect := func(ctx context.Context, id caisson.ID) error {
		c, err := s.Connect(ctx, string(id), caisson.ConnectRequest{Port: 80})
		if err == nil {
			open = append(open, c)
		}
		return err
	}
	var own []caisson.ID
	for range perAccount/perSandbox + 1 {
		own = append(own, w.create(caisson.CreateRequest{}).ID)
	}
	for i, id := range own {
		for n := 0; n < perSandbox && len(open) < perAccount; n++ {
			must(t, connect(w.ctx(), id))
		}
		wantKind(t, connect(w.ctx(), id), caisson.Exhausted)
		if i < len(own)-1 && len(open) != (i+1)*perSandbox {
			t.Fatalf("%d connections are open", len(open))
		}
	}
	must(t, connect(other, theirs.ID))
	wantKind(t, connect(other, own[0]), caisson.NotFound)
	// A connection that is closed makes room for one.
	must(t, open[0].Close())
	open = open[1:]
	must(t, connect(w.ctx(), own[0]))
	wantKind(t, connect(w.ctx(), own[0]), caisson.Exhausted)
}
