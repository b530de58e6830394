package jsonscan

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

var paths = []string{"usage", "id", "response.usage", "*.usage", "*.candidates.*.finishReason", "candidates.*.finishReason"}

func scan(pieces ...string) *Scanner {
	s := New(paths...)
	for _, p := range pieces {
		s.Write([]byte(p))
	}
	return s
}

func (s *Scanner) String() string {
	return fmt.Sprintf("%q %v %d %d", s.found, s.done, s.stringBytes, s.size)
}

func TestScanner(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     [6]string
		done     bool
	}{
		{"plain", `{"id":"a\"b", "usage": {"x":[1,{"usage":2}], "y":"}"}, "z":[{"usage":1}]}`, [6]string{`{"x":[1,{"usage":2}],"y":"}"}`, `"a\"b"`}, true},
		{"numbers", `{"id":12,"usage":null}`, [6]string{"null", "12"}, true},
		{"number at the end", `{"usage":-1.5e3}`, [6]string{"-1.5e3"}, true},
		{"not a name", `{"x":"usage","y":["id",{"id":1}],"response":{"id":1,"usage":2}}`, [6]string{2: "2"}, true},
		{"the last one", `[{"usage":1,"candidates":[{"finishReason":null}]},{"usage":{"n":2},"candidates":[{"x":1,"finishReason":"STOP"}]}]`, [6]string{3: `{"n":2}`, 4: `"STOP"`}, true},
		{"in an array", `{"candidates":[{"content":{"parts":[{"text":"finishReason"}]},"finishReason":"A"},{"finishReason":"B"}]}`, [6]string{5: `"B"`}, true},
		{"cut off", `{"id":"x","usage":{"a":1`, [6]string{1: `"x"`}, false},
		{"only the first value", `{"id":1}{"id":2}`, [6]string{1: "1"}, true},
		{"deep", strings.Repeat(`{"usage":`, 50) + "1" + strings.Repeat("}", 50), [6]string{strings.Repeat(`{"usage":`, 49) + "1" + strings.Repeat("}", 49)}, true},
		{"too long", `{"usage":"` + strings.Repeat("x", maxKeep) + `","id":1}`, [6]string{1: "1"}, true},
		{"escapes", `{"a\\":"\\","b\"":"\"","usage":"\\\"","id":"\\"}`, [6]string{`"\\\""`, `"\\"`}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			whole, bytes := scan(tt.in), scan(strings.Split(tt.in, "")...)
			if whole.String() != bytes.String() {
				t.Errorf("whole %s\nbytes %s", whole, bytes)
			}
			for i, want := range tt.want {
				if got := string(whole.Get(i)); got != want {
					t.Errorf("%s is %.200q, want %.200q", paths[i], got, want)
				}
			}
			if whole.Done() != tt.done {
				t.Errorf("done is %v", whole.Done())
			}
		})
	}
}

func FuzzScanner(f *testing.F) {
	f.Add(`{"id":"a\"b","usage":{"x":[1,{"usage":2}]},"response":{"usage":3}}`, uint16(3), uint16(9))
	f.Add(`[{"usage":1,"candidates":[{"finishReason":"STOP"}]},{"usage":2}]`, uint16(1), uint16(30))
	f.Add(`{"a":"\\","b":"\"{","usage":[]}`, uint16(6), uint16(1))
	f.Fuzz(func(t *testing.T, in string, a, b uint16) {
		i := int(a) % (len(in) + 1)
		j := i + int(b)%(len(in)-i+1)
		want := scan(in)
		if got := scan(in[:i], in[i:j], "", in[j:]); got.String() != want.String() {
			t.Fatalf("in pieces %s\nwhole     %s", got, want)
		}
		var m map[string]any
		if len(in) > maxKeep || strings.Contains(in, `\u`) || json.Unmarshal([]byte(in), &m) != nil || m == nil {
			return // the scanner does not find escaped names
		}
		if want.Size() != int64(len(strings.TrimRight(in, " \t\r\n"))) {
			t.Fatalf("%q has %d bytes", in, want.Size())
		}
		if !want.Done() {
			t.Fatalf("%q is over", in)
		}
		var got any
		if v := want.Get(0); v != nil {
			if err := json.Unmarshal(v, &got); err != nil {
				t.Fatalf("usage of %q is %q", in, v)
			}
		}
		if !reflect.DeepEqual(got, m["usage"]) && strings.Count(in, `"usage"`) == 1 {
			t.Fatalf("usage of %q is %v, want %v", in, got, m["usage"])
		}
	})
}

func BenchmarkScanner(b *testing.B) {
	in := []byte(`{"id":"msg_1","content":[{"type":"text","text":"` + strings.Repeat("Words and words. ", 3000) + `"}],"usage":{"input_tokens":1}}`)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		s := New(paths...)
		s.Write(in)
		if s.Get(0) == nil {
			b.Fatal("no usage")
		}
	}
}
