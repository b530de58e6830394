package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// TestPolicyBodies sends what people write: ports as numbers and as ranges, and faults, each of which is told by its field.
func TestPolicyBodies(t *testing.T) {
	s := serve(t)
	if _, err := s.local(t, "").Create(t.Context(), caisson.CreateRequest{Name: "web"}); err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]struct {
		status int
		field  string
	}{
		`{"rules":[{"action":"allow","host":"a.example","ports":[443,"80","8000-8010"]}]}`: {200, ""},
		`{"rules":[{"action":"allow","host":"A.example."}]}`:                               {200, ""},
		`{"rules":[]}`:   {200, ""},
		`{"rules":null}`: {200, ""},
		`{}`:             {400, "rules"},
		`{"rules":[{"action":"allow","host":"a.example","ports":[0]}]}`:       {400, "rules[0].ports[0]"},
		`{"rules":[{"action":"allow","host":"a.example","ports":[65536]}]}`:   {400, "rules[0].ports[0]"},
		`{"rules":[{"action":"allow","host":"a.example","ports":["http"]}]}`:  {400, "rules[0].ports[0]"},
		`{"rules":[{"action":"allow","host":"a.example","ports":[true]}]}`:    {400, "rules[0].ports[0]"},
		`{"rules":[{"action":"permit","host":"a.example"}]}`:                  {400, "rules[0].action"},
		`{"rules":[{"action":"allow","host":"a.example","proto":"tcp"}]}`:     {400, "rules[0].proto"},
		`{"rules":[{"action":"allow","host":"a.example","protocol":"icmp"}]}`: {400, "rules[0].protocol"},
		`{"rules":[{"action":"allow","host":"10.0.0.1/8"}]}`:                  {400, "rules[0].host"},
		`{"rules":[{"action":"allow"}]}`:                                      {400, "rules[0].host"},
	} {
		status, _, answer := s.raw(t, true, http.MethodPut, "/api/v1/sandboxes/web/policy", body, nil)
		var p protocol.Problem
		if err := json.Unmarshal([]byte(answer), &p); err != nil || status != want.status || status != 200 && p.Field != want.field {
			t.Errorf("%s: %d about %q: %s", body, status, p.Field, answer)
		}
		if status == 200 && strings.Contains(answer, "null") {
			t.Errorf("%s: %s", body, answer)
		}
	}
	status, _, answer := s.raw(t, true, http.MethodPut, "/api/v1/sandboxes/web/policy", `{"rules":[{"action":"allow","host":"a","ports":["x"]}]}`, nil)
	if status != 400 || !strings.Contains(answer, "is not a port or a range of ports") {
		t.Errorf("%d %s", status, answer)
	}
	status, _, answer = s.raw(t, true, http.MethodPost, "/api/v1/policy/test", `{"policy":{"rules":[]},"targets":[]}`, nil)
	if status != 400 {
		t.Errorf("no targets: %d %s", status, answer)
	}
}

// TestPoliciesAreTheAccounts: nobody sees or changes what another account's sandbox may reach.
func TestPoliciesAreTheAccounts(t *testing.T) {
	s := serve(t)
	alice, bob := s.remote(t, "alice"), s.remote(t, "bob")
	sb, err := alice.Create(t.Context(), caisson.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ref, open := string(sb.ID), caisson.Policy{Rules: []caisson.Rule{{Action: caisson.Allow, Host: "*"}}}
	_, err = bob.GetPolicy(t.Context(), ref)
	apitest.Fails(t, err, caisson.NotFound, "")
	_, err = bob.SetPolicy(t.Context(), ref, open)
	apitest.Fails(t, err, caisson.NotFound, "")
	_, err = bob.ExplainPolicy(t.Context(), ref, "")
	apitest.Fails(t, err, caisson.NotFound, "")
	if p, err := alice.GetPolicy(t.Context(), ref); err != nil || len(p.Rules) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}
