package main

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestDelivered: every state is told, with what to do next.
func TestDelivered(t *testing.T) {
	for name, tt := range map[string]struct {
		d    *caisson.RunDelivery
		want string
	}{
		"none":          {nil, ""},
		"nothing":       {&caisson.RunDelivery{Repo: "r"}, "there is nothing new for r\n"},
		"taken not":     {&caisson.RunDelivery{Repo: "r", State: caisson.DeliveryFailed, Error: "no\ngit"}, "nothing was delivered to r (no git)\n"},
		"delivered":     {&caisson.RunDelivery{ID: "dl-1", Repo: "r", State: caisson.DeliveryDelivered, Branch: "b", URL: "https://h/1"}, "delivered to branch b of r: https://h/1\n"},
		"without forge": {&caisson.RunDelivery{ID: "dl-1", Repo: "r", State: caisson.DeliveryDelivered, Branch: "b"}, "delivered to branch b of r\n"},
		"partly": {&caisson.RunDelivery{ID: "dl-1", Repo: "r", State: caisson.DeliveryDelivered, Branch: "b", Left: "why"},
			"some of what was done for r is not delivered (why)\ndelivered to branch b of r\n"},
		"hostile": {&caisson.RunDelivery{Repo: "r", State: caisson.DeliveryDelivered, Branch: "b", URL: "\x1b[2J\u202e"}, "delivered to branch b of r: \\x1b[2J\\u202e\n"},
		"dropped": {&caisson.RunDelivery{ID: "dl-1", Repo: "r", State: caisson.DeliveryDropped, Branch: "b"},
			"delivery dl-1 to branch b of r is dropped; caisson relay show dl-1 shows its progress\n"},
	} {
		var b strings.Builder
		v := newRunView(&app{stdio: stdio{out: new(strings.Builder), err: &b}})
		v.printDelivery(tt.d)
		if b.String() != tt.want {
			t.Errorf("%s: %q, want %q", name, b.String(), tt.want)
		}
	}
}

func TestRepoFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		f         repoFlags
		directory string
		bad       string
	}{
		"none":         {repoFlags{}, "", ""},
		"directory":    {repoFlags{}, "/d", ""},
		"repo":         {repoFlags{Repo: "r", pullFlags: pullFlags{PR: true, Ready: true, Title: "t"}}, "", ""},
		"both":         {repoFlags{Repo: "r"}, "/d", "not on both"},
		"read":         {repoFlags{branchFlags: branchFlags{Read: []string{"x"}}}, "", "need --repo"},
		"branch":       {repoFlags{branchFlags: branchFlags{Branch: "x"}}, "/d", "need --repo"},
		"title":        {repoFlags{Repo: "r", pullFlags: pullFlags{Title: "t"}}, "", ""},
		"ready":        {repoFlags{Repo: "r", pullFlags: pullFlags{Ready: true}}, "", "needs --pr"},
		"pull of none": {repoFlags{pullFlags: pullFlags{PR: true}}, "", "need --repo"},
	} {
		req, err := tt.f.request(tt.directory)
		switch {
		case tt.bad == "" && (err != nil || (req != nil) != (tt.f.Repo != "")):
			t.Errorf("%s: %+v, %v", name, req, err)
		case tt.bad != "" && (err == nil || !strings.Contains(err.Error(), tt.bad)):
			t.Errorf("%s: %v, want %q", name, err, tt.bad)
		}
	}
}
