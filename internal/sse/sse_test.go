package sse

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func show(e Event) string { return fmt.Sprintf("%s|%s|%s|%d", e.ID, e.Name, e.Data, e.Lost) }

// split returns the events that a Splitter parses from pieces.
func split(t testing.TB, limit int, pieces ...string) (events []string) {
	t.Helper()
	s := Splitter{Max: limit}
	for _, p := range pieces {
		s.Write([]byte(p), func(e Event) { events = append(events, show(e)) })
	}
	s.bounded(t)
	return events
}

func (s *Splitter) bounded(t testing.TB) {
	t.Helper()
	for _, kept := range [][]byte{s.line, s.event.Data, s.event.Name, s.event.ID} {
		if cap(kept) > 4*(s.Max+maxField) {
			t.Fatalf("keeps %d bytes with a bound of %d", cap(kept), s.Max)
		}
	}
}

// read returns the events that a Reader parses, and its error.
func read(t testing.TB, limit int, from io.Reader) (events []string, err error) {
	t.Helper()
	r := NewReader(from, limit)
	for {
		e, err := r.Next()
		if err != nil {
			r.s.bounded(t)
			return events, err
		}
		events = append(events, show(e))
	}
}

func TestEvents(t *testing.T) {
	cut, long := io.ErrUnexpectedEOF, strings.Repeat("x", 1000)
	for _, tt := range []struct {
		name, in string
		want     []string
		err      error
	}{
		{"line feeds", "event: a\ndata: 1\n\ndata: 2\n\n", []string{"|a|1|0", "||2|0"}, io.EOF},
		{"both", "event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", []string{"|a|1|0", "||2|0"}, io.EOF},
		{"carriage returns", "event: a\rdata: 1\r\rdata: 2\r\r", []string{"|a|1|0", "||2|0"}, io.EOF},
		{"mixed", "data: 1\r\n\rdata: 2\n\r\ndata: 3\r\r\n", []string{"||1|0", "||2|0", "||3|0"}, io.EOF},
		{"comments", ": hi\n\n:\ndata: 1\n: more\n\n:\n", []string{"||1|0"}, io.EOF},
		{"several lines", "data: 1\ndata:2\ndata:  3\n\n", []string{"||1\n2\n 3|0"}, io.EOF},
		{"no colon", "data\n\ndata\ndata\n\n", []string{"|||0", "||\n|0"}, io.EOF},
		{"byte order mark", "\ufeffdata: 1\n\n", []string{"||1|0"}, io.EOF},
		{"byte order mark and comment", "\ufeff:\r\rdata: 1\n\n", []string{"||1|0"}, io.EOF},
		{"only one byte order mark", "\ufeff\ufeffdata: 1\n\ndata: 2\n\n", []string{"||2|0"}, io.EOF},
		{"a byte order mark is all", "\ufeff\n", nil, io.EOF},
		{"id", "id: 7\ndata: 1\n\ndata: 2\n\nid: x\nid\ndata: 3\n\n", []string{"7||1|0", "||2|0", "||3|0"}, io.EOF},
		{"id with NUL", "id: 7\nid: 8\x00\ndata: 1\n\n", []string{"7||1|0"}, io.EOF},
		{"retry", "retry: 10\ndata: 1\nretry: x\n\nretry: 5\n\n", []string{"||1|0"}, io.EOF},
		{"later fields", "data: 1\nx\nx: y\ndatas: z\n data: z\nData: z\n\n", []string{"||1|0"}, io.EOF},
		{"no data", "id: 1\nevent: a\n\ndata: 1\n\nevent: b\n\n\n", []string{"||1|0"}, io.EOF},
		{"the last name counts", "event: a\nevent: b\ndata: 1\n\n", []string{"|b|1|0"}, io.EOF},
		{"long name", "event: " + long + "\ndata\n\n", []string{"|" + long[:maxField] + "||0"}, io.EOF},
		{"no end", "data: 1\n\ndata: 2\n", []string{"||1|0"}, cut},
		{"no end of a line", "data: 1\n\ndata: 2", []string{"||1|0"}, cut},
		{"no end of a comment", "data: 1\n\n: x", []string{"||1|0"}, cut},
		{"no end of an id", "id: 7\r", nil, cut},
		{"nothing", "", nil, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := split(t, 1000, tt.in); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			for name, r := range map[string]io.Reader{
				"whole": strings.NewReader(tt.in), "bytes": iotest.OneByteReader(strings.NewReader(tt.in)),
				"data with EOF": iotest.DataErrReader(strings.NewReader(tt.in)),
			} {
				if got, err := read(t, 1000, r); !slices.Equal(got, tt.want) || err != tt.err {
					t.Errorf("%s: got %q, %v; want %q, %v", name, got, err, tt.want, tt.err)
				}
			}
		})
	}
}

func TestSplitterLimit(t *testing.T) {
	long := strings.Repeat("x", 1000)
	in := "data: " + long + "\n\ndata: ok\n\n" + strings.Repeat("data: 0123456789\n", 100) + "\n: " + long + "\ndata: end\n\n"
	want := []string{"||" + long[:100] + "|900", "||ok|0", "||" + strings.Repeat("0123456789\n", 10)[:100] + "|999", "||end|0"}
	if got := split(t, 100, in); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestReaderLimit checks that an endless event fails as soon as it exceeds the bound.
func TestReaderLimit(t *testing.T) {
	const limit = 100
	x := strings.Repeat("x", limit)
	for _, start := range []string{"", "\ufeff", ": c\n", "id: 1\n"} {
		if got, err := read(t, limit, strings.NewReader(start+"data: "+x+"\n\n")); len(got) != 1 || err != io.EOF {
			t.Errorf("%q: got %q, %v", start, got, err)
		}
		for _, data := range []string{"data: " + x + "x\n\n", "data:" + x + x, "data: " + x + "\ndata\n", "data: " + x + "x\n"} {
			if got, err := read(t, limit, strings.NewReader(start+data)); len(got) != 0 || err != ErrTooLong {
				t.Errorf("%q: got %q, %v", start+data, got, err)
			}
			if got, err := read(t, limit, iotest.OneByteReader(strings.NewReader(start+data))); len(got) != 0 || err != ErrTooLong {
				t.Errorf("%q, by bytes: got %q, %v", start+data, got, err)
			}
		}
		got, err := read(t, limit, io.MultiReader(strings.NewReader(start+"data: "), endless('x')))
		if len(got) != 0 || err != ErrTooLong {
			t.Errorf("%q and data without end: got %q, %v", start, got, err)
		}
	}
}

// TestReaderSkips checks that any number of skipped lines neither ends a stream nor exhausts the memory.
func TestReaderSkips(t *testing.T) {
	for _, text := range []string{":\n", ": still here\n\n", ":x", "retry: 1\n", "x", "event: e\n", "id: 1\n", "\n", "\r"} {
		got, err := read(t, 1000, strings.NewReader(strings.Repeat(text, 100_000)+"\ndata: 1\n\n"))
		if len(got) != 1 || !strings.HasSuffix(got[0], "|1|0") || err != io.EOF {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}

func TestReaderFails(t *testing.T) {
	broken := errors.New("broken")
	got, err := read(t, 1000, io.MultiReader(strings.NewReader("data: 1\n\ndata: 2\n"), iotest.ErrReader(broken)))
	if !slices.Equal(got, []string{"||1|0"}) || err != broken {
		t.Errorf("got %q, %v", got, err)
	}
}

// endless is an endless stream of one byte.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

func FuzzEvents(f *testing.F) {
	f.Add("event: a\r\ndata: 1\r\n\r\ndata: 2\n\n", uint16(3), uint16(7))
	f.Add("\ufeffdata: 1\r\r: c\ndata\n\ndata: 12345678901234567890123456789012345678901234567890\n\n", uint16(1), uint16(20))
	f.Add("data: 1\n\n\ufeffdata: 12345678901234567890123456789012345678901234567890\ndata\n\n", uint16(0), uint16(20))
	f.Add("id: 1\nretry: 1\n: 12345678901234567890123456789012345678901234567890\n\nid: 2\x00\ndata\n\n", uint16(1), uint16(20))
	f.Fuzz(func(t *testing.T, in string, a, b uint16) {
		i := int(a) % (len(in) + 1)
		j := i + int(b)%(len(in)-i+1)
		for _, limit := range []int{1 << 20, 32} {
			want := split(t, limit, in)
			if got := split(t, limit, in[:i], in[i:j], "", in[j:]); !slices.Equal(got, want) {
				t.Fatalf("in pieces %q, whole %q", got, want)
			}
			if got := split(t, limit, strings.Split(in, "")...); !slices.Equal(got, want) {
				t.Fatalf("by runes %q, whole %q", got, want)
			}
			// A Reader returns the same events up to the first one that is too long.
			until := slices.IndexFunc(want, func(e string) bool { return !strings.HasSuffix(e, "|0") })
			got, err := read(t, limit, strings.NewReader(in))
			if until >= 0 && (err != ErrTooLong || !slices.Equal(got, want[:until])) || until < 0 && !slices.Equal(got, want) {
				t.Fatalf("read %q, %v; want %q", got, err, want)
			}
			if again, other := read(t, limit, iotest.OneByteReader(strings.NewReader(in))); !slices.Equal(again, got) || other != err {
				t.Fatalf("by bytes %q, %v; whole %q, %v", again, other, got, err)
			}
		}
	})
}

func BenchmarkSplitter(b *testing.B) {
	event := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n")
	s := Splitter{Max: 1 << 20}
	n := 0
	b.SetBytes(int64(len(event)))
	for b.Loop() {
		s.Write(event, func(Event) { n++ })
	}
}
