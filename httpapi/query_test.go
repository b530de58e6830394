package httpapi

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func FuzzParams(f *testing.F) {
	for _, s := range []string{"", "a=b", "=b", "a", "a=b=c", "0644", "7777", "10000", "-1", "0x1", "/", "/a\x00", "a/b", "sb-aaaaaaaaaaaaaaaa", "sn-aaaaaaaaaaaaaaaa"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if k, v, err := parseLabel(s); err == nil && (k == "" || k+"="+v != s || strings.Contains(k, "=")) {
			t.Errorf("label %q is %q, %q", s, k, v)
		} else if err != nil && caisson.KindOf(err) != caisson.Invalid {
			t.Error(err)
		}
		if m, err := parseMode(s); err == nil && m > 0o7777 {
			t.Errorf("mode %q is %o", s, m)
		} else if err != nil && caisson.FieldOf(err) != "mode" {
			t.Error(err)
		}
		if err := checkPath("path", s); err == nil && (s[0] != '/' || strings.ContainsRune(s, 0) || len(s) > 4096) {
			t.Errorf("path %q", s)
		}
		filter, err := PageParams{After: s, Label: []string{s}}.filter(caisson.SandboxPrefix)
		if err == nil && filter.After != "" && !strings.HasPrefix(string(filter.After), "sb-") {
			t.Errorf("%+v", filter)
		}
		if req, err := parseExecRequest([]byte(s)); err == nil && len(req.Command) == 0 {
			t.Errorf("request %q", s)
		}
	})
}

func FuzzExecRequest(f *testing.F) {
	for _, s := range []string{`{"command":["a"]}`, `{"command":[]}`, `{"command":["a"],"timeout":"x"}`, `{"comand":["a"]}`, `{"command":["a"],"rows":70000}`, `null`, `[]`, `{"command":["a"]}{}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		req, err := parseExecRequest(b)
		if err == nil && len(req.Command) == 0 || err != nil && caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%q: %+v, %v", b, req, err)
		}
	})
}

func TestExecRequestFields(t *testing.T) {
	for body, field := range map[string]string{
		`{"comand":["a"]}`:                 "comand",
		`{"command":["a"],"rows":70000}`:   "rows",
		`{"command":"a"}`:                  "command",
		`{}`:                               "command",
		`{"command":["a"],"timeout":"1x"}`: "",
	} {
		if _, err := parseExecRequest([]byte(body)); caisson.FieldOf(err) != field || caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %v about %q", body, err, caisson.FieldOf(err))
		}
	}
}
