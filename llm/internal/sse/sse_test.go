package sse

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func split(t testing.TB, limit int, pieces ...string) (events []string) {
	t.Helper()
	s := Splitter{Max: limit}
	for _, p := range pieces {
		s.Write([]byte(p), func(e Event) {
			events = append(events, fmt.Sprintf("%s|%s|%d", e.Name, e.Data, e.Lost))
		})
	}
	if limit > 0 && (cap(s.line) > 4*(limit+64) || cap(s.data) > 4*(limit+64)) {
		t.Fatalf("keeps %d and %d bytes with a bound of %d", cap(s.line), cap(s.data), limit)
	}
	return events
}

func TestSplitter(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"line feeds", "event: a\ndata: 1\n\ndata: 2\n\n", []string{"a|1|0", "|2|0"}},
		{"both", "event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", []string{"a|1|0", "|2|0"}},
		{"carriage returns", "event: a\rdata: 1\r\rdata: 2\r\r", []string{"a|1|0", "|2|0"}},
		{"mixed", "data: 1\r\n\rdata: 2\n\r\ndata: 3\r\r\n", []string{"|1|0", "|2|0", "|3|0"}},
		{"comments", ": hi\n\n:\ndata: 1\n: more\n\n", []string{"|1|0"}},
		{"several lines", "data: 1\ndata:2\ndata:  3\n\n", []string{"|1\n2\n 3|0"}},
		{"no colon", "data\n\ndata\ndata\n\n", []string{"||0", "|\n|0"}},
		{"byte order mark", "\ufeffdata: 1\n\n", []string{"|1|0"}},
		{"only one byte order mark", "\ufeff\ufeffdata: 1\n\ndata: 2\n\n", []string{"|2|0"}},
		{"other fields", "id: 7\nretry: 10\ndata: 1\n\n", []string{"|1|0"}},
		{"name only", "event: a\n\ndata: 1\n\n", []string{"|1|0"}},
		{"the last name counts", "event: a\nevent: b\ndata: 1\n\n", []string{"b|1|0"}},
		{"no end", "data: 1\n\ndata: 2\n", []string{"|1|0"}},
		{"nothing", "", nil},
		{"Data", "Data: 1\n\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := split(t, 0, tt.in); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if got := split(t, 0, strings.Split(tt.in, "")...); !slices.Equal(got, tt.want) {
				t.Errorf("by runes: got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestSplitterBound(t *testing.T) {
	long := strings.Repeat("x", 1000)
	in := "data: " + long + "\n\ndata: ok\n\n" + strings.Repeat("data: 0123456789\n", 100) + "\n: " + long + "\ndata: end\n\n"
	got := split(t, 100, in)
	if len(got) != 4 || got[1] != "|ok|0" || got[3] != "|end|0" {
		t.Fatalf("got %q", got)
	}
	if want := "|" + long[:100] + "|900"; got[0] != want {
		t.Errorf("got %q, want %q", got[0], want)
	}
	if !strings.HasSuffix(got[2], fmt.Sprintf("|%d", 100*11-1-100)) {
		t.Errorf("got %q", got[2])
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add("event: a\r\ndata: 1\r\n\r\ndata: 2\n\n", uint16(3), uint16(7))
	f.Add("\ufeffdata: 1\r\r: c\ndata\n\ndata: 12345678901234567890123456789012345678901234567890\n\n", uint16(1), uint16(20))
	f.Fuzz(func(t *testing.T, in string, a, b uint16) {
		i := int(a) % (len(in) + 1)
		j := i + int(b)%(len(in)-i+1)
		for _, limit := range []int{0, 32} {
			want := split(t, limit, in)
			if got := split(t, limit, in[:i], in[i:j], "", in[j:]); !slices.Equal(got, want) {
				t.Fatalf("in pieces %q, whole %q", got, want)
			}
			var bytes []string
			for k := range len(in) {
				bytes = append(bytes, in[k:k+1])
			}
			if got := split(t, limit, bytes...); !slices.Equal(got, want) {
				t.Fatalf("by bytes %q, whole %q", got, want)
			}
		}
	})
}

func BenchmarkSplitter(b *testing.B) {
	event := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n")
	var s Splitter
	n := 0
	b.SetBytes(int64(len(event)))
	for b.Loop() {
		s.Write(event, func(Event) { n++ })
	}
}
