package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestParseNamed(t *testing.T) {
	for _, c := range []struct {
		in, name, target string
		bad              bool
	}{
		{in: "data", name: "data"},
		{in: "a.b_c-1:/srv", name: "a.b_c-1", target: "/srv"},
		{in: "data:/srv/./x/../y/", name: "data", target: "/srv/y"},
		{in: "data:/with:colon", name: "data", target: "/with:colon"},
		{in: "vl-abcdefghijklmnop", name: "vl-abcdefghijklmnop"},
		{in: strings.Repeat("x", 64), name: strings.Repeat("x", 64)},
		{in: "", bad: true},
		{in: ":/srv", bad: true},
		{in: "data:", bad: true},
		{in: "data:srv", bad: true},
		{in: "data:/", bad: true},
		{in: "data:/..", bad: true},
		{in: "data:/a\x00b", bad: true},
		{in: "Data", bad: true},
		{in: "./data", bad: true},
		{in: "-data", bad: true},
		{in: "data\n", bad: true},
		{in: "../data:/srv", bad: true},
		{in: strings.Repeat("x", 65), bad: true},
	} {
		name, target, err := parseNameTarget("volume", c.in)
		if (err != nil) != c.bad || name != c.name || target != c.target {
			t.Errorf("%q: %q at %q, %v", c.in, name, target, err)
		}
		if err != nil && (caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "volume") {
			t.Errorf("%q: %v has kind %s and field %q", c.in, err, caisson.KindOf(err), caisson.FieldOf(err))
		}
	}
}

func FuzzParseNamed(f *testing.F) {
	for _, s := range []string{"data", "data:/srv", "a:b", ":", "x:/..", "x:/\x00", "../x:/y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, target, err := parseNameTarget("volume", s)
		if err != nil {
			return
		}
		if !namePattern.MatchString(name) || strings.ContainsAny(name, "/:\x00") {
			t.Fatalf("%q is the name %q", s, name)
		}
		if target != "" && (!filepath.IsAbs(target) || target == "/" || filepath.Clean(target) != target || strings.ContainsRune(target, 0)) {
			t.Fatalf("%q is at %q", s, target)
		}
	})
}

func TestCloneFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		f       cloneFlags
		n       sandboxFlags
		noStart bool
		want    string // repository and directory
		bad     string
	}{
		"none":               {},
		"nothing with these": {n: sandboxFlags{Volume: "data", Workspace: "."}, noStart: true},
		"repo":               {f: cloneFlags{Repo: "r"}, want: "r /workspace"},
		"directory":          {f: cloneFlags{Repo: "r:/src/"}, want: "r /src"},
		"branches":           {f: cloneFlags{Repo: "r", branchFlags: branchFlags{Base: "a", Branch: "b", Read: []string{"c"}}}, want: "r /workspace"},
		"base of none":       {f: cloneFlags{branchFlags: branchFlags{Base: "a"}}, bad: "need --repo"},
		"read of none":       {f: cloneFlags{branchFlags: branchFlags{Read: []string{"a"}}}, bad: "need --repo"},
		"volume":             {f: cloneFlags{Repo: "r"}, n: sandboxFlags{Volume: "data"}, bad: "exclude each other"},
		"workspace":          {f: cloneFlags{Repo: "r"}, n: sandboxFlags{Workspace: "."}, bad: "exclude each other"},
		"not started":        {f: cloneFlags{Repo: "r"}, noStart: true, bad: "leave out --no-start"},
		"an address":         {f: cloneFlags{Repo: "https://host/r"}, bad: "is not NAME"},
		"no directory":       {f: cloneFlags{Repo: "r:src"}, bad: "is not NAME"},
	} {
		got, err := tt.f.clone(&tt.n, tt.noStart)
		switch {
		case tt.bad != "":
			if err == nil || !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("%s: %v, want %q", name, err, tt.bad)
			}
		case err != nil, (got == nil) != (tt.want == ""):
			t.Errorf("%s: %+v, %v", name, got, err)
		case got != nil && (got.repo.Name+" "+got.dir != tt.want || got.repo.Base != tt.f.Base || got.repo.Branch != tt.f.Branch || len(got.repo.Read) != len(tt.f.Read)):
			t.Errorf("%s: %+v", name, got)
		}
	}
}
