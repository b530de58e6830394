package models

import (
	"context"
	"errors"
	"testing"

	"github.com/caisson-dev/caisson"
)

// rows is a ledger with these calls.
type rows struct {
	page []caisson.Call
	err  error
}

func (r rows) Calls(context.Context, caisson.UsageQuery, caisson.ID, int) ([]caisson.Call, bool, error) {
	return r.page, false, r.err
}

// TestRemoteCalls checks that the calls of a run are read from the ledger that has them.
func TestRemoteCalls(t *testing.T) {
	t.Parallel()
	down, unknown := caisson.Errorf(caisson.Unavailable, "down"), caisson.Invalidf("after", "no such call")
	there, here := []caisson.Call{{ID: "there"}}, []caisson.Call{{ID: "here"}}
	for _, c := range []struct {
		name string
		far  rows
		want caisson.ID
		err  error
	}{
		{"there", rows{page: there}, "there", nil},
		{"here", rows{}, "here", nil},
		{"the next page here", rows{err: unknown}, "here", nil},
		{"not to be reached", rows{err: down}, "", down},
	} {
		t.Run(c.name, func(t *testing.T) {
			settings := GatewaySettings{RemoteToken: "env:NONE"}
			r := NewRemoteClient(GatewayConfig{GatewaySettings: settings, Remote: func(caisson.Secret) (RemoteGateway, error) {
				return struct {
					caisson.GatewayRuns
					rows
				}{rows: c.far}, nil
			}}, nil, rows{page: here}.Calls)
			page, _, err := r.Calls(t.Context(), caisson.UsageQuery{Run: "run"}, "", 10)
			if !errors.Is(err, c.err) || c.want != "" && (len(page) != 1 || page[0].ID != c.want) {
				t.Errorf("%+v, %v", page, err)
			}
		})
	}
}
