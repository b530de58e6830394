package relay

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/refname"
)

func TestPktLines(t *testing.T) {
	var b bytes.Buffer
	writePktf(&b, "hello\n")
	writeFlush(&b)
	b.WriteString("00010002")
	writePkt(&b, nil)
	writeBand(&b, bandProgress, bytes.Repeat([]byte("x"), pktData+10))
	r := newPktReader(&b, 1<<20)
	want := []struct {
		kind pktKind
		n    int
	}{{pktLine, 6}, {pktFlush, 0}, {pktDelim, 0}, {pktResponse, 0}, {pktLine, 0}, {pktLine, pktData}, {pktLine, 12}}
	for i, w := range want {
		line, kind, err := r.next()
		if err != nil || kind != w.kind || len(line) != w.n {
			t.Errorf("%d: %d bytes of kind %d, %v", i, len(line), kind, err)
		}
	}
	if _, _, err := r.next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	for _, bad := range []string{"0003", "+00a", "0x0a", "fff1", "00_5", "gggg", " 005x"} {
		if _, kind, err := newPktReader(strings.NewReader(bad+"xxxxxxxxx"), 1<<20).next(); err == nil || kind != 0 {
			t.Errorf("%q is accepted", bad)
		}
	}
	if _, _, err := newPktReader(strings.NewReader("000ahello\n"), 9).next(); !errors.Is(err, errPkt) {
		t.Errorf("more than allowed: %v", err)
	}
	if err := writePkt(io.Discard, make([]byte, pktData+1)); err == nil {
		t.Error("a line that is too long was written")
	}
}

func FuzzPktLines(f *testing.F) {
	f.Add([]byte("000ahello\n0000"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newPktReader(bytes.NewReader(data), 4096)
		total := 0
		for {
			line, _, err := r.next()
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

func FuzzListing(f *testing.F) {
	id := strings.Repeat("1", 40)
	f.Add([]byte("001e# service=git-upload-pack\n0000000eversion 2\n0000"), []byte("003d"+id+" refs/heads/main\n0000"))
	f.Add([]byte("001e# service=git-upload-pack\n0000003f"+id+" refs/heads/main\x00\n0000"), []byte(nil))
	f.Add([]byte("000eversion 1\n0000"), []byte("0000"))
	f.Fuzz(func(t *testing.T, adv, answer []byte) {
		l := &listing{max: 3}
		ask, err := l.advertisement(newPktReader(bytes.NewReader(adv), 1<<16))
		if err == nil && ask {
			err = l.answer(newPktReader(bytes.NewReader(answer), 1<<16))
		}
		if err != nil || l.finish() != nil {
			return
		}
		if len(l.refs) > l.max || checkRefs(l.refs) != nil || l.head != "" && !refname.ValidFull(l.head) {
			t.Errorf("%+v", l)
		}
	})
}

func FuzzGitRequest(f *testing.F) {
	f.Add([]byte("git-upload-pack /repo\x00host=x\x00\x00version=2\x00"))
	f.Fuzz(func(t *testing.T, line []byte) {
		service, protocol, ok := parseGitRequest(line)
		if ok && (service != UploadPack && service != ReceivePack || !ValidProtocol(protocol)) {
			t.Errorf("%q, %q", service, protocol)
		}
	})
}

func FuzzPushResult(f *testing.F) {
	f.Add("To http://x\n!\tabc:refs/heads/x\t[rejected] (stale info)\nDone\n", "remote: no\x1b[31m\n")
	f.Fuzz(func(t *testing.T, out, said string) {
		r := parsePush(out, "refs/heads/x")
		text := &tail{limit: maxGitErrors}
		text.Write([]byte(said))
		err := r.refusal(PushRequest{Branch: "x"}, text)
		if msg := err.Error(); strings.ContainsAny(msg, "\n\x1b") || len(msg) > 600 {
			t.Errorf("%q", msg)
		}
	})
}
