package httpapi_test

import (
	"encoding/csv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/apitest"
)

func TestUsageAsCSV(t *testing.T) {
	s := serve(t)
	if err := s.world.Charge(t.Context(), apitest.Calls(caisson.LocalAccount)...); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]struct {
		lines int
		next  bool
		cell  string
	}{
		"/usage?format=csv&by=model":         {3, false, "0.25"},
		"/usage/calls?format=csv&limit=2":    {3, true, "small"},
		"/usage/receipts?format=csv&limit=3": {4, false, "0.125"},
		"/usage/receipts?format=csv&limit=1": {2, true, "r/1/0/ca-aaaaaaaaaaaaaaaa"},
	} {
		_, header, body := s.raw(t, true, "GET", "/api/v1"+target, "", nil)
		lines, err := csv.NewReader(strings.NewReader(body)).ReadAll()
		if err != nil || len(lines) != want.lines || !strings.HasPrefix(header.Get("Content-Type"), "text/csv") ||
			(header.Get("X-Caisson-Next") != "") != want.next || !strings.Contains(body, want.cell) {
			t.Errorf("%s: %v %v\n%s", target, err, header, body)
		}
	}
}

func TestUsageRequests(t *testing.T) {
	s := serve(t)
	for name, tt := range map[string]struct {
		method, target, body string
		status               int
		says                 string
	}{
		"by nonsense":       {"GET", "/usage?by=moon", "", 400, "by"},
		"since nonsense":    {"GET", "/usage?since=yesterday", "", 400, "since"},
		"after nonsense":    {"GET", "/usage/calls?after=x", "", 400, "after"},
		"too many":          {"GET", "/usage/calls?limit=5000", "", 400, "limit"},
		"unknown parameter": {"GET", "/usage?sandbx=x", "", 400, "sandbx"},
		"dollars":           {"PUT", "/budgets", `{"limits":{"usd":0.1}}`, 200, `"usd":0.1`},
		"dollars as text":   {"PUT", "/budgets", `{"limits":{"usd":"0.1"}}`, 400, "limits.usd"},
		"too exact":         {"PUT", "/budgets", `{"limits":{"usd":0.00000000001}}`, 400, "not an amount"},
		"negative":          {"PUT", "/budgets", `{"limits":{"usd":-1}}`, 400, "limits.usd"},
		"a year":            {"PUT", "/budgets", `{"limits":{},"period":"year"}`, 400, "period"},
		"without limits":    {"PUT", "/budgets", `{}`, 400, "limits"},
		"kind of budget":    {"DELETE", "/budgets/moon/x", "", 400, "kind"},
		"no provider":       {"POST", "/usage/reconcile", `{"provider":"","since":"2026-01-01T00:00:00Z"}`, 400, "provider"},
	} {
		status, _, body := s.raw(t, true, tt.method, "/api/v1"+tt.target, tt.body, nil)
		if status != tt.status || !strings.Contains(body, tt.says) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
}

// TestUsageOfOthers: an account sees its own calls, a local caller those of any.
func TestUsageOfOthers(t *testing.T) {
	s := serve(t)
	if err := s.world.Charge(t.Context(), apitest.Calls("bob")...); err != nil {
		t.Fatal(err)
	}
	_, err := s.remote(t, "alice").Usage(t.Context(), caisson.UsageQuery{Account: "bob"})
	apitest.Fails(t, err, caisson.Denied, "")
	if rows, err := s.local(t, "").Usage(t.Context(), caisson.UsageQuery{Account: "bob", By: "account"}); err != nil || rows[0].Key != "bob" {
		t.Error(rows, err)
	}
}
