package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

func TestParse(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`[`, n) + strings.Repeat(`]`, n) }
	for _, tt := range []struct{ name, body, param, message string }{
		{"object", ` {"a":1,"b":[{"a":2},{"a":3}]} `, "", ""},
		{"empty", " \n", "", "empty"},
		{"twice", `{"a":1,"a":2}`, "a", "twice"},
		{"twice escaped", `{"model":1,"\u006dodel":2}`, "model", "twice"},
		{"twice deep", `{"a":[{"b":1},{"b":{"c":1,"c":2}}]}`, "a[1].b.c", "twice"},
		{"bad utf-8", "{\"a\":\"\xff\"}", "a", "not valid"},
		{"lone surrogate", `{"a":"\ud800"}`, "a", "not valid"},
		{"overlong", "{\"a\":\"\xc0\xaf\"}", "a", "not valid"},
		{"trailing value", `{"a":1} {"a":2}`, "", "more than one"},
		{"trailing garbage", `{"a":1}x`, "", "not valid"},
		{"cut off", `{"a":1`, "", "ends in the middle"},
		{"cut off in string", `{"a":"`, "", "ends in the middle"},
		{"at the limit", deep(MaxDepth), "", ""},
		{"too deep", deep(MaxDepth + 1), "", "nests deeper"},
		{"brackets in strings", `["` + strings.Repeat("[", 500) + `\"["]`, "", ""},
		{"too deep and cut off", strings.Repeat(`[`, 1e6), "", "nests deeper"},
		{"control character", "[\"\x01\"]", "[0]", "not valid"},
		{"comment", `{"a":1/**/}`, "", "not valid"},
		{"byte order mark", "\ufeff{}", "", "not valid"},
		{"NaN", `[NaN]`, "[0]", "not valid"},
		{"leading zero", `[01]`, "", "not valid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.body))
			if tt.message == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			r, ok := errors.AsType[*dialect.Refusal](err)
			if !ok || !strings.Contains(r.Message, tt.message) || r.Status != 400 {
				t.Fatalf("%v, want %q", err, tt.message)
			}
			if tt.param != "" && r.Param != tt.param {
				t.Errorf("param %q, want %q", r.Param, tt.param)
			}
		})
	}
}

func TestValue(t *testing.T) {
	v := Value(`{ "a" : "x\n\"y\"" , "\u0062":[1, -2,"3" ,{}, [ ]],"n":null,"t":true,"f":1.5, "e" : "" }`)
	var names []string
	for n := range v.Members() {
		names = append(names, string(n))
	}
	if got := strings.Join(names, " "); got != "a b n t f e" {
		t.Errorf("names %q", got)
	}
	if s, ok := v.Get("a").Text(); !ok || s != "x\n\"y\"" || !v.Get("a").Is(s) {
		t.Errorf("a is %q", s)
	}
	if s, ok := v.Get("e").Text(); !ok || s != "" || !v.Get("e").Is("") {
		t.Error("the empty string is one")
	}
	var elements []string
	for i, x := range v.Get("b").Elements() {
		if i != len(elements) {
			t.Errorf("position %d", i)
		}
		elements = append(elements, string(x))
	}
	if got := strings.Join(elements, "|"); got != `1|-2|"3"|{}|[ ]` {
		t.Errorf("elements %q", got)
	}
	if _, ok := v.Get("f").Int(); ok {
		t.Error("1.5 is no integer")
	}
	if b, ok := v.Get("t").Bool(); !b || !ok {
		t.Error("t is true")
	}
	if !v.Get("n").IsNull() || v.Get("missing") != nil || v.Get("missing").IsNull() {
		t.Error("null and missing are not the same")
	}
	for in, want := range map[string]int64{"0": 0, "-7": -7, "9223372036854775807": 1<<63 - 1} {
		if n, ok := Value(in).Int(); !ok || n != want {
			t.Errorf("%s is %d", in, n)
		}
	}
	for _, in := range []string{"9223372036854775808", "1e3", "1.0", `"1"`, "", "-", "true", "00000000000000000000001"} {
		if n, ok := Value(in).Int(); ok {
			t.Errorf("%s is %d", in, n)
		}
	}
}

func TestObject(t *testing.T) {
	o := Value(`{"model":"a","\u0073tream":false,"user":"me","x":{"y":[1]}}`).Object()
	c := o.Clone()
	c.SetText("model", `up"stream`)
	c.Set("stream", Value("true"))
	c.SetInt("max_tokens", 7)
	if got, want := string(c.Value()), `{"model":"up\"stream","stream":true,"user":"me","x":{"y":[1]},"max_tokens":7}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := string(o.Value()), `{"model":"a","stream":false,"user":"me","x":{"y":[1]}}`; got != want {
		t.Errorf("the original changed: %s", got)
	}
	if got := string(Value(`{}`).Object().Value()); got != "{}" {
		t.Error(got)
	}
}

func TestIn(t *testing.T) {
	err := InField(InElement(InField(InElement(Refuse("type", "no"), 3), "content"), 12), "messages")
	if got := dialect.AsRefusal(err).Param; got != "messages[12].content[3].type" {
		t.Error(got)
	}
	if InField(nil, "x") != nil || InElement(nil, 1) != nil {
		t.Error("nil stays nil")
	}
}

// FuzzParse compares with encoding/json: an accepted body must have the same values there.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"a":1}`, `{"a":"\u00e9\ud83d\ude00","b":[true,false,null,-1.5e9]}`, `[[],{},""]`, `{"a":{"a":{"a":[{"a":1}]}}}`,
		`{"\u0061":1,"a":2}`, `"\\\""`, ` { "x" : [ 1 , 2 ] } `, `{"a":1}{`, "\xff", `{"a":"\\"}`,
	} {
		f.Add([]byte(s))
	}
	f.Add([]byte("18" + strings.Repeat("0", 400))) // exceeds float64

	f.Fuzz(func(t *testing.T, body []byte) {
		walk(Value(body), 0) // must not panic, for valid and invalid bodies
		once(Value(body).Walk(), 0)
		v, err := Parse(body)
		if err != nil {
			return
		}
		var want any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			t.Fatalf("accepted %q, which encoding/json does not: %v", body, err)
		}
		if got := walk(v, 0); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is %#v, want %#v", body, got, want)
		}
		if got := once(v.Walk(), 0); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is %#v for a Walker, want %#v", body, got, want)
		}
		if v.Kind() == '{' {
			again, err := Parse(v.Object().Value())
			if err != nil || !reflect.DeepEqual(walk(again, 0), want) {
				t.Fatalf("written again as %q: %v", again, err)
			}
		}
	})
}

func walk(v Value, depth int) any {
	if depth > 2*MaxDepth {
		return nil
	}
	switch v.Kind() {
	case '{':
		m := map[string]any{}
		for name, x := range v.Members() {
			m[string(name)] = walk(x, depth+1)
		}
		return m
	case '[':
		a := []any{}
		for _, x := range v.Elements() {
			a = append(a, walk(x, depth+1))
		}
		return a
	case '"':
		s, _ := v.Text()
		return s
	case 't', 'f':
		b, _ := v.Bool()
		return b
	case '0':
		return json.Number(v)
	}
	return nil
}

// once is like walk, but uses a Walker.
func once(w *Walker, depth int) any {
	if depth > 2*MaxDepth {
		return nil
	}
	switch w.Kind() {
	case '{':
		m := map[string]any{}
		_ = w.Object(func(name []byte) error {
			m[string(name)] = once(w, depth+1)
			return nil
		})
		return m
	case '[':
		a := []any{}
		_ = w.Array(func(int) error {
			a = append(a, once(w, depth+1))
			return nil
		})
		return a
	}
	return walk(w.Skip(), depth)
}

func TestWalker(t *testing.T) {
	w := Value(`{"a":[1,{"x":2},"3"],"b":{"type":"t","y":[]},"c":4}`).Walk()
	var got []string
	err := w.Object(func(name []byte) error {
		switch string(name) {
		case "a":
			return w.Array(func(i int) error {
				if i != 1 { // other elements are skipped
					got = append(got, string(w.Skip()))
				}
				return nil
			})
		case "b":
			got = append(got, string(w.Peek("type")), string(w.Skip()))
		}
		return nil
	})
	if want := []string{"1", `"3"`, `"t"`, `{"type":"t","y":[]}`}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %q", err, got)
	}
	w = Value(`[1,2]`).Walk()
	if err := w.Array(func(i int) error { return Refuse("", "no") }); err == nil {
		t.Error("the error is lost")
	}
}

func BenchmarkParse50K(b *testing.B) {
	body := []byte(`{"messages":[` + strings.Repeat(`{"role":"user","content":[{"type":"text","text":"`+strings.Repeat("Words and \\\"more\\\" words.\\n", 30)+`"}]},`, 60) + `{}]}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := Parse(body); err != nil {
			b.Fatal(err)
		}
	}
}

// TestTooMany checks that bodies that are cheap to send and expensive to validate are rejected before validation.
func TestTooMany(t *testing.T) {
	var members strings.Builder
	for i := range MaxMembers + 1 {
		fmt.Fprintf(&members, `,"%x":0`, i)
	}
	for name, body := range map[string]string{
		"members":  "{" + members.String()[1:] + "}",
		"elements": "[0" + strings.Repeat(",0", MaxElements+1) + "]",
	} {
		if _, err := Parse([]byte(body)); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Parse([]byte(`["` + strings.Repeat(":,", MaxElements) + `"]`)); err != nil {
		t.Errorf("punctuation in a string: %v", err)
	}
}
