package openclaw

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseJSON5(t *testing.T) {
	for _, c := range []struct {
		in   string
		want any // nil: an error
	}{
		{`{a: 1, 'b': "x", /* c */ "c": [1, 2,], // d
		}`, map[string]any{"a": 1.0, "b": "x", "c": []any{1.0, 2.0}}},
		{"\ufeff{}", map[string]any{}},
		{`"\u00e9\ud83d\ude00\x41\n\q\
b"`, "é😀A\nqb"},
		{`{$_x1: -0x1F, y: .5, z: +3, t: true}`, map[string]any{"$_x1": -31.0, "y": 0.5, "z": 3.0, "t": true}},
		{`'it''s'`, nil}, {`{a 1}`, nil}, {`{a: 1 b: 2}`, nil}, {`[1`, nil}, {`{"a`, nil}, {`/* `, nil}, {``, nil}, {`1 2`, nil}, {"'a\nb'", nil},
		{`NaN`, nil}, {`Infinity`, nil}, {`0x`, nil}, {`"\u12"`, nil}, {`--1`, nil}, {`{,}`, nil}, {"\xff", nil},
		{strings.Repeat("[", 100), nil},
		{"[" + strings.Repeat("1,", maxJSON5Values) + "]", nil},
	} {
		got, err := parseJSON5([]byte(c.in))
		if c.want == nil {
			if err == nil {
				t.Errorf("%.60q is taken as %.60v", c.in, got)
			}
			continue
		}
		if err != nil || !cmp.Equal(got, c.want) {
			t.Errorf("%.60q: %#v, %v; want %#v", c.in, got, err, c.want)
		}
	}
}

func FuzzParseJSON5(f *testing.F) {
	for _, s := range []string{`{a:[1,'b',null],}`, `"\ud800"`, `{"a":{"b":[{}]}}`, "// x\n1", `-0x10`, `"\`, `[1e9]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseJSON5([]byte(s))
		if err != nil {
			return
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("%q is not JSON: %v", s, err)
		}
		again, err := parseJSON5(b)
		if err != nil || !cmp.Equal(again, mustJSON(t, b)) {
			t.Errorf("%q: read again as %#v, %v", s, again, err)
		}
	})
}

func mustJSON(t *testing.T, b []byte) (v any) {
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
