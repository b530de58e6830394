package main

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func TestParseLimits(t *testing.T) {
	for _, tt := range []struct {
		usd, tokens, calls string
		want               caisson.Amount // -1: no limit
		field              bool
	}{
		{"", "", "", caisson.Amount{USD: -1, Tokens: -1, Calls: -1}, true},
		{"5", "1M", "100", caisson.Amount{USD: 5 * caisson.Dollar, Tokens: 1_000_000, Calls: 100}, true},
		{"0.25USD", "20k", "0", caisson.Amount{USD: caisson.Dollar / 4, Tokens: 20_000, Calls: 0}, true},
		{"$3", "", "", caisson.Amount{USD: 3 * caisson.Dollar, Tokens: -1, Calls: -1}, true},
		{usd: "five"}, {usd: "-1"}, {tokens: "1.5M"}, {tokens: "-1"}, {tokens: "1G"}, {tokens: "M"}, {calls: "99999999999999999999"}, {calls: "+1"},
	} {
		l, err := parseLimits(limitFlag{"--usd", tt.usd}, limitFlag{"--tokens", tt.tokens}, limitFlag{"--calls", tt.calls})
		if (err == nil) != tt.field {
			t.Errorf("%+v: %v", tt, err)
		}
		if err != nil || !tt.field {
			continue
		}
		got := caisson.Amount{USD: -1, Tokens: -1, Calls: -1}
		if l.USD != nil {
			got.USD = *l.USD
		}
		if l.Tokens != nil {
			got.Tokens = *l.Tokens
		}
		if l.Calls != nil {
			got.Calls = *l.Calls
		}
		if got != tt.want {
			t.Errorf("%+v: %+v", tt, got)
		}
	}
}

func TestUsageQuery(t *testing.T) {
	now := time.Date(2026, 5, 10, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		cmd  usageCmd
		want caisson.UsageQuery
		ok   bool
	}{
		{usageCmd{By: "model"}, caisson.UsageQuery{By: "model"}, true},
		{usageCmd{By: "total", All: true}, caisson.UsageQuery{Account: "*"}, true},
		{usageCmd{By: "day", Since: "2d", Until: "2026-05-09"}, caisson.UsageQuery{
			By: "day", Since: now.AddDate(0, 0, -2), Until: time.Date(2026, 5, 9, 0, 0, 0, 0, time.UTC),
		}, true},
		{usageCmd{By: "model", Calls: true, OfRun: "r"}, caisson.UsageQuery{Run: "r", Since: now.AddDate(0, 0, -1)}, true},
		{usageCmd{By: "agent", Under: "r", Agent: "shell"}, caisson.UsageQuery{By: "agent", Under: "r", Agent: "shell"}, true},
		{usageCmd{By: "model", Since: "yesterday"}, caisson.UsageQuery{}, false},
		{usageCmd{By: "model", Until: "2026-13-01"}, caisson.UsageQuery{}, false},
	} {
		q, err := tt.cmd.query(now)
		if (err == nil) != tt.ok || err == nil && q != tt.want {
			t.Errorf("%+v: %+v, %v", tt.cmd, q, err)
		}
	}
}

func TestModelFlags(t *testing.T) {
	if g, err := (&grantFlags{}).models(); g != nil || err != nil {
		t.Errorf("%+v, %v", g, err)
	}
	g, err := (&grantFlags{Model: []string{"a", "b"}, Budget: "5USD", MaxCalls: "3"}).models()
	if err != nil || len(g.Models) != 2 || *g.Budget.USD != 5*caisson.Dollar || *g.Budget.Calls != 3 || g.Budget.Tokens != nil {
		t.Errorf("%+v, %v", g, err)
	}
	g, err = (&grantFlags{Model: []string{"a"}, gatewayFlags: gatewayFlags{Grant: []string{"beta"}, MaxRate: "30", MaxTokenRate: "50k", RecordCalls: true}}).models()
	if err != nil || g.Rate != (caisson.Rate{Requests: 30, Tokens: 50_000}) || !slices.Equal(g.Allow, []string{"beta"}) || !g.Record {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err = (&grantFlags{gatewayFlags: gatewayFlags{RecordCalls: true}}).models(); caisson.FieldOf(err) != "model" {
		t.Error(err)
	}
	_, err = (&grantFlags{Budget: "5"}).models()
	if caisson.FieldOf(err) != "model" {
		t.Error(err)
	}
}

func TestGather(t *testing.T) {
	list, err := listAtMost(strconv.Itoa, func(after string, _ int) ([]int, bool, error) {
		n, _ := strconv.Atoi(after) // 0 for the first page
		return []int{n + 1, n + 2}, n < 4, nil
	})
	if err != nil || !slices.Equal(list, []int{1, 2, 3, 4, 5, 6}) {
		t.Error(list, err)
	}
	endless := func(_ string, limit int) ([]int, bool, error) { return make([]int, limit), true, nil }
	if _, err := listAtMost(strconv.Itoa, endless); err == nil {
		t.Error("a list without end was read")
	}
	if list, err := listAtMost(strconv.Itoa, func(after string, limit int) ([]int, bool, error) {
		n, _ := strconv.Atoi(after)
		return []int{n + 1}, n+1 < maxListed, nil
	}); err != nil || len(list) != maxListed {
		t.Errorf("of a list with as many items as are allowed %d were read: %v", len(list), err)
	}
}
