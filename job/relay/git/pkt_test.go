package git

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestPktLines(t *testing.T) {
	var b bytes.Buffer
	WritePktf(&b, "hello\n")
	WriteFlush(&b)
	b.WriteString("00010002")
	writePkt(&b, nil)
	WriteBand(&b, BandProgress, bytes.Repeat([]byte("x"), pktData+10))
	r := NewPktReader(&b, 1<<20)
	want := []struct {
		kind PktKind
		n    int
	}{{PktLine, 6}, {PktFlush, 0}, {pktDelim, 0}, {pktResponse, 0}, {PktLine, 0}, {PktLine, pktData}, {PktLine, 12}}
	for i, w := range want {
		line, kind, err := r.Next()
		if err != nil || kind != w.kind || len(line) != w.n {
			t.Errorf("%d: %d bytes of kind %d, %v", i, len(line), kind, err)
		}
	}
	if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	for _, bad := range []string{"0003", "+00a", "0x0a", "fff1", "00_5", "gggg", " 005x"} {
		if _, kind, err := NewPktReader(strings.NewReader(bad+"xxxxxxxxx"), 1<<20).Next(); err == nil || kind != 0 {
			t.Errorf("%q is accepted", bad)
		}
	}
	if _, _, err := NewPktReader(strings.NewReader("000ahello\n"), 9).Next(); !errors.Is(err, ErrPkt) {
		t.Errorf("more than allowed: %v", err)
	}
	if err := writePkt(io.Discard, make([]byte, pktData+1)); err == nil {
		t.Error("a line that is too long was written")
	}
}

func FuzzPktLines(f *testing.F) {
	f.Add([]byte("000ahello\n0000"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewPktReader(bytes.NewReader(data), 4096)
		total := 0
		for {
			line, _, err := r.Next()
			if err != nil {
				break
			}
			total += len(line) + pktHeader
		}
		if total > 4096 || total > len(data) {
			t.Errorf("%d bytes of %d", total, len(data))
		}
	})
}
