package apitest

import (
	"bytes"
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testModels(t *testing.T, ctx context.Context, c Cores) {
	list := must(c.Models.ListModels(ctx))(t)
	if diff := cmp.Diff(gatewayModels(), list); diff != "" {
		t.Error(diff)
	}
	names := func(match string) (out []string) {
		for _, p := range must(c.Models.ListPrices(ctx, match))(t) {
			if p.Prices.Input != 1 || p.Prices.Output != 2 || p.At.IsZero() {
				t.Errorf("%+v", p)
			}
			out = append(out, p.Source+" "+p.Model)
		}
		return out
	}
	if got := names(""); got != nil {
		t.Errorf("prices before there are any: %q", got)
	}
	if caller := must(caisson.CallerOf(ctx))(t); !caller.Local {
		_, err := c.Models.ImportPrices(ctx, "one", []byte("a"))
		Fails(t, err, caisson.Denied, "")
		_, err = c.Models.ImportPrices(ctx, "one", bytes.Repeat([]byte("a"), 8<<20))
		Fails(t, err, caisson.Denied, "")
		return
	}
	_, err := c.Models.ImportPrices(ctx, "one", nil)
	Fails(t, err, caisson.Invalid, "data")
	for _, imp := range []struct {
		source, data string
		want         int
	}{{"https://example.com/a?b=c&d", "b/x\na y\n", 2}, {"two", "a z", 1}, {"two", "a&z", 1}} {
		if n := must(c.Models.ImportPrices(ctx, imp.source, []byte(imp.data)))(t); n != imp.want {
			t.Errorf("%d models of %q", n, imp.data)
		}
	}
	if got := names(""); !cmp.Equal(got, []string{"https://example.com/a?b=c&d a y", "two a&z", "https://example.com/a?b=c&d b/x"}) {
		t.Errorf("%q", got)
	}
	if got := names("a&"); !cmp.Equal(got, []string{"two a&z"}) {
		t.Errorf("%q", got)
	}
	line := append(bytes.Repeat([]byte("m"), 1<<20-1), '\n')
	if n := must(c.Models.ImportPrices(ctx, "large", bytes.Repeat(line, 16)))(t); n != 16 {
		t.Errorf("of 16 MiB %d arrived", n)
	}
}
