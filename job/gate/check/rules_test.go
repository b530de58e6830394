package check

import (
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

func TestMatchPath(t *testing.T) {
	for _, c := range []struct {
		pattern  string
		yes, not []string
	}{
		{"*.go", []string{"a.go", "x/y/a.go", "x.go/y"}, []string{"a.goo", "go"}},
		{"/*.go", []string{"a.go"}, []string{"x/a.go"}},
		{"docs", []string{"docs", "docs/a/b", "x/docs/a"}, []string{"docs2", "xdocs"}},
		{"docs/", []string{"docs", "docs/a/b", "x/docs/a"}, []string{"docs2"}},
		{"/docs", []string{"docs", "docs/a"}, []string{"x/docs"}},
		{"docs/*", []string{"docs/a", "docs/a/b"}, []string{"x/docs/a", "docs"}},
		{"docs/**", []string{"docs/a", "docs/a/b"}, []string{"x/docs/a"}},
		{"**/a", []string{"a", "x/a", "x/y/a", "a/b"}, []string{"b", "xa"}},
		{"a/**/b", []string{"a/b", "a/x/b", "a/x/y/b", "a/b/b", "a/b/c"}, []string{"a", "x/a/b", "a/xb"}},
		{"a/**/b/**/c", []string{"a/b/c", "a/b/b/b/c", "a/x/b/y/c"}, []string{"a/c/b", "b/c"}},
		{"**", []string{"a", "a/b"}, nil},
		{"a?c", []string{"abc"}, []string{"a/c", "ac"}},
		{"[ab].x", []string{"a.x"}, []string{"c.x"}},
		{"[^a].x", []string{"b.x"}, []string{"a.x"}},
		{`\*`, []string{"*"}, []string{"a"}},
		{"ä*", []string{"äb"}, nil},
	} {
		for _, name := range c.yes {
			if !MatchPath(c.pattern, name) {
				t.Errorf("%s does not match %s", c.pattern, name)
			}
		}
		for _, name := range c.not {
			if MatchPath(c.pattern, name) {
				t.Errorf("%s matches %s", c.pattern, name)
			}
		}
	}
	for _, bad := range []string{"", "/", "a//b", "a/../b", "./a", "[a", "[a/b]", `a\`, "\xff", strings.Repeat("a", 2000)} {
		if ValidPattern(bad) == nil {
			t.Errorf("%.20q is valid", bad)
		}
		if MatchPath(bad, "a") || MatchPath(bad, "") {
			t.Errorf("%.20q matches something", bad)
		}
	}
	// There are many ways to match, all of which fail.
	if MatchPath(strings.Repeat("**/a/", 40)+"b", strings.Repeat("a/", 1000)+"c") || MatchPath(strings.Repeat("*a", 100)+"b", strings.Repeat("a", 4000)) {
		t.Error("matches")
	}
}

func FuzzMatchPath(f *testing.F) {
	for _, c := range [][2]string{{"**/a/*", "x/a/b"}, {"/a/**/b", "a/b"}, {"*.go", "a/b.go"}, {"a/b/", "a/b/c"}, {"**/**", "a"}} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		got := MatchPath(pattern, name)
		if ValidPattern(pattern) != nil {
			if got {
				t.Fatal("a malformed pattern matches")
			}
			return
		}
		if strings.ContainsAny(pattern, `[\?`) || !fsat.ValidPath(name) || len(name) > 100 || strings.Count(pattern, "*") > 8 {
			return
		}
		if want := regexp.MustCompile(globRegexp(pattern)).MatchString(name); got != want {
			t.Fatalf("%q matches %q: %v, want %v", pattern, name, got, want)
		}
	})
}

// globRegexp is another implementation of a pattern of stars.
func globRegexp(pattern string) string {
	rooted := strings.Contains(strings.TrimSuffix(pattern, "/"), "/")
	parts := strings.Split(strings.Trim(pattern, "/"), "/")
	if !rooted {
		parts = append([]string{"**"}, parts...)
	}
	var b strings.Builder
	b.WriteString("(?s)^")
	for i, p := range parts {
		if p == "**" {
			b.WriteString("(?:[^/]+/)*")
			if i == len(parts)-1 {
				return strings.TrimSuffix(b.String(), "(?:[^/]+/)*") + "(?:.*/)?.*$"
			}
			continue
		}
		b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, "[^/]*"))
		if i < len(parts)-1 {
			b.WriteString("/")
		}
	}
	return b.String() + "(?:/.*)?$"
}

func TestRules(t *testing.T) {
	var r Rules
	text := "only: [src/**]\ndeny: ['*.pem']\nallow: [.github/workflows/lint.yml]\nmaxFile: 1MiB\nmaxTotal: 2g\nmaxFiles: 3\nmaxScan: 8M\nscanTime: 5s\n"
	dec := yaml.NewDecoder(strings.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&r); err != nil {
		t.Fatal(err)
	}
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
	if r.MaxFile != 1<<20 || r.MaxTotal != 2<<30 || r.MaxFiles != 3 || r.MaxScan != 8<<20 || len(r.Only) != 1 {
		t.Errorf("read %+v", r)
	}
	for field, bad := range map[string]Rules{
		"only":     {Only: make([]string, maxRulePatterns+1)},
		"deny[1]":  {Deny: []string{"a", "["}},
		"allow[0]": {Allow: []string{"../x"}},
		"maxFile":  {MaxFile: -1},
		"maxFiles": {MaxFiles: -1},
		"maxScan":  {MaxScan: maxScan + 1},
		"scanTime": {ScanTime: -1},
	} {
		if err := bad.Validate(); caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != field {
			t.Errorf("%s: %v (field %q)", field, err, caisson.FieldOf(err))
		}
	}
}
