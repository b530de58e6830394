package service

import (
	"bytes"
	"strings"
	"testing"
)

// readAll returns all that is kept from position at.
func readAll(r *ring, at int64, limit int) (string, int64) {
	var all bytes.Buffer
	for {
		b, next, _ := r.read(at, limit)
		if len(b) == 0 {
			return all.String(), next
		}
		all.Write(b)
		at = next
	}
}

func TestRing(t *testing.T) {
	t.Parallel()
	r := newRing()
	_, _, changed := r.read(0, 10)
	r.Write([]byte("hello "))
	r.Write([]byte("world"))
	select {
	case <-changed:
	default:
		t.Error("a follower is not woken")
	}
	if got, next := readAll(r, 0, 4); got != "hello world" || next != 11 {
		t.Errorf("%q, %d", got, next)
	}
	if got, _ := readAll(r, 6, 100); got != "world" {
		t.Errorf("%q", got)
	}
	for _, chunk := range []int{1, 1000, logSize - 1, logSize + 1, 5 * logSize} {
		r, want := newRing(), ""
		for i := 0; i < 3*logSize+1; i += chunk {
			if chunk == 1 {
				i += 999
			}
			part := strings.Repeat(string(rune('a'+i%26)), max(chunk, 1000))
			r.Write([]byte(part))
			want += part
		}
		got, next := readAll(r, 0, 777)
		note, rest, _ := strings.Cut(got, "\n")
		if !strings.HasPrefix(note, "[caisson: ") || rest != want[len(want)-logSize:] || next != int64(len(want)) {
			t.Errorf("chunks of %d: %q and %d bytes", chunk, note, len(rest))
		}
		if len(r.buf) > 2*logSize {
			t.Errorf("chunks of %d: %d bytes are kept", chunk, len(r.buf))
		}
	}
}
