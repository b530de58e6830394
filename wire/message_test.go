package wire

import (
	"bytes"
	"strings"
	"testing"

	caisson "github.com/caisson-dev/caisson"
)

func TestIDSize(t *testing.T) {
	if id := caisson.NewID(caisson.SandboxPrefix); len(id) != idSize {
		t.Fatalf("ids have %d characters, the protocol %d", len(id), idSize)
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	for _, want := range []request{
		{op: opAttach, seq: 1, id: "sb-aaaaaaaaaaaaaaaa"},
		{op: opDetach, seq: 1<<32 - 1, id: "sb-7777777777777777"},
		{op: opStats, id: "sb-abcdefghijklmnop"},
	} {
		if got, err := decodeRequest(want.encode()); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	for _, want := range []reply{
		{op: opHello, confinement: Confinement{Landlock: 7, Seccomp: true}},
		{op: opHello},
		{op: opAttach, seq: 5},
		{op: opAttach, seq: 6, status: statusFull},
		{op: opDetach, seq: 7, status: statusUnknown},
		{op: opAttach, seq: 8, status: statusFailed, text: "no \x1b[31m luck"},
		{op: opStats, seq: 9, stats: Stats{FramesOut: 1, BytesOut: 2, FramesIn: 3, BytesIn: 4, DroppedOut: 1<<64 - 1}},
	} {
		if got, err := decodeReply(want.encode()); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestReplyTextIsBounded(t *testing.T) {
	long := reply{op: opAttach, status: statusFailed, text: strings.Repeat("x", 10_000)}
	got, err := decodeReply(long.encode())
	if err != nil || len(got.text) != maxText {
		t.Fatalf("%d characters, %v", len(got.text), err)
	}
}

func FuzzDecodeReply(f *testing.F) {
	f.Add([]byte{})
	f.Add(reply{op: opHello, confinement: Confinement{Landlock: 1}}.encode())
	f.Add(reply{op: opStats, stats: Stats{BytesIn: 1}}.encode())
	f.Add(reply{op: opAttach, status: statusFailed, text: "text"}.encode())
	f.Add(reply{op: opDetach, status: statusUnknown}.encode())
	f.Add(bytes.Repeat([]byte{1}, maxReply+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeReply(b); err == nil && !bytes.Equal(r.encode(), b) {
			t.Errorf("%x was read as %+v", b, r)
		}
	})
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte{})
	f.Add(request{op: opAttach, seq: 1, id: "sb-aaaaaaaaaaaaaaaa"}.encode())
	f.Add(request{op: opHello, id: "sb-aaaaaaaaaaaaaaaa"}.encode())
	f.Add(request{op: opStats, id: "ac-aaaaaaaaaaaaaaaa"}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeRequest(b); err == nil && !bytes.Equal(r.encode(), b) {
			t.Errorf("%x was read as %+v", b, r)
		}
	})
}
