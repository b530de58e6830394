package remote

import (
	"fmt"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func run(id string) caisson.WireSpec {
	return caisson.WireSpec{Guest: caisson.Guest{Run: id, Account: "a"}, Models: &caisson.ModelGrant{Models: []string{"m"}}}
}

func TestRegistry(t *testing.T) {
	now := time.Unix(1e9, 0)
	r := NewRegistry(RegistryConfig{Max: 3, Now: func() time.Time { return now }})
	for i := range 3 {
		if err := r.Put(run(fmt.Sprint(i)), now.Add(time.Duration(i+1)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Put(run("3"), now.Add(time.Hour)); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("a fourth of three: %v", err)
	}
	if err := r.Put(run("2"), now.Add(time.Hour)); err != nil {
		t.Errorf("one again: %v", err)
	}
	now = now.Add(time.Minute)
	if _, err := r.Run(t.Context(), "0"); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("an expired run: %v", err)
	}
	if err := r.Put(run("3"), now.Add(time.Hour)); err != nil || r.Len() != 3 {
		t.Errorf("in place of one that expired: %v, %d", err, r.Len())
	}
	for _, id := range []string{"1", "2", "3"} {
		if s, err := r.Run(t.Context(), id); err != nil || s.Guest.Run != id {
			t.Errorf("%s: %+v, %v", id, s, err)
		}
	}
	for _, c := range []struct {
		name  string
		guest caisson.Guest
		found bool
	}{
		{"itself", caisson.Guest{Run: "1", Account: "a"}, true},
		{"other account", caisson.Guest{Run: "1", Account: "b"}, false},
		{"other attempt", caisson.Guest{Run: "1", Account: "a", Attempt: 1}, false},
		{"expired", caisson.Guest{Run: "0", Account: "a"}, false},
		{"nobody", caisson.Guest{}, false},
	} {
		if got := r.Grant(t.Context(), c.guest); (got != nil) != c.found {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	r.Remove("1")
	if r.Grant(t.Context(), caisson.Guest{Run: "1", Account: "a"}) != nil {
		t.Error("removed, and still there")
	}
	for _, bad := range []caisson.WireSpec{
		{}, {Guest: caisson.Guest{Run: "x", Account: "a"}},
		{Guest: caisson.Guest{Run: "x"}, Models: &caisson.ModelGrant{}}, {Guest: caisson.Guest{Account: "a"}, Models: &caisson.ModelGrant{}},
	} {
		if err := r.Put(bad, now.Add(time.Hour)); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	sandbox := run("")
	sandbox.Guest.Sandbox = "sb-1"
	if err := r.Put(sandbox, now.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if _, err := r.Run(t.Context(), "sb-1"); err != nil {
		t.Error(err)
	}
}

// TestRegistryForgets checks that expired runs are removed.
func TestRegistryForgets(t *testing.T) {
	now := time.Unix(1e9, 0)
	r := NewRegistry(RegistryConfig{Now: func() time.Time { return now }})
	for i := range 100_000 {
		if err := r.Put(run(fmt.Sprint(i)), now.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Millisecond)
	}
	if r.Len() > 4096 {
		t.Errorf("%d runs, of which 1000 have not expired", r.Len())
	}
}

func TestFailures(t *testing.T) {
	now := time.Unix(1e9, 0)
	f := newFailureLimiter()
	f.now = func() time.Time { return now }
	times := func(n int, addr string) (waited int) {
		for range n {
			if f.add(addr) > 0 {
				waited++
			}
		}
		return waited
	}
	if w := times(25, "192.0.2.1:1"); w != 5 {
		t.Errorf("%d of 25 had to wait", w)
	}
	if w := times(1, "192.0.2.2:1"); w != 0 {
		t.Error("a neighbour had to wait")
	}
	if w := times(1, "[::ffff:192.0.2.1]:2"); w != 1 {
		t.Error("the same address in another form is another source")
	}
	now = now.Add(2 * failureDecay)
	if w := times(4, "192.0.2.1:1"); w != 2 {
		t.Errorf("after two were forgotten, %d of 4 had to wait", w)
	}
	now = now.Add(time.Hour)
	if w := times(20, "192.0.2.1:1"); w != 0 {
		t.Errorf("after an hour %d of 20 had to wait", w)
	}
	if w := times(20, "[2001:db8::1]:1") + times(1, "[2001:db8::ffff]:1"); w != 1 {
		t.Error("a network of 64 bits is more than one source")
	}
	if w := times(1, "[2001:db8:0:1::1]:1"); w != 0 {
		t.Error("another network is the same source")
	}
	if w := times(21, "@") + times(1, ""); w != 2 {
		t.Errorf("nameless sources: %d", w)
	}
	for i := range 3 * maxSources {
		f.add(fmt.Sprintf("10.%d.%d.1:1", i/256, i%256))
	}
	if f.sources.Len() > maxSources {
		t.Errorf("%d sources are remembered", f.sources.Len())
	}
}
