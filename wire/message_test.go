package wire

import (
	"bytes"
	"testing"

	caisson "github.com/caisson-dev/caisson"
)

func TestIDSize(t *testing.T) {
	t.Parallel()
	if id := caisson.NewID(caisson.SandboxPrefix); len(id) != idSize {
		t.Fatalf("ids have %d characters, the protocol %d", len(id), idSize)
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	t.Parallel()
	for _, want := range []request{
		{op: opAttach, seq: 1, id: "sb-aaaaaaaaaaaaaaaa", body: []byte(`{"policy":{}}`)},
		{op: opDetach, seq: 1<<32 - 1, id: "sb-7777777777777777"},
		{op: opStats, id: "sb-abcdefghijklmnop"},
		{op: opSettings, seq: 3},
		{op: opForget, seq: 3, body: bytes.Repeat([]byte("x"), maxBody)},
	} {
		b, err := want.encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeRequest(b); err != nil || !sameRequest(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	for _, want := range []reply{
		{op: opHello, body: []byte(`{"landlock":7,"seccomp":true}`)},
		{op: opAttach, seq: 5},
		{op: opAttach, seq: 6, status: statusFull},
		{op: opDetach, seq: 7, status: statusUnknown},
		{op: opAttach, seq: 8, status: statusFailed, body: []byte("no \x1b[31m luck")},
		{op: opStats, seq: 9, body: bytes.Repeat([]byte("x"), maxBody)},
	} {
		if got, err := decodeReply(want.encode()); err != nil || !bytes.Equal(got.body, want.body) || got.seq != want.seq || got.op != want.op || got.status != want.status {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func sameRequest(a, b request) bool {
	return a.op == b.op && a.seq == b.seq && a.id == b.id && bytes.Equal(a.body, b.body)
}

func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	long := reply{op: opAttach, status: statusFailed, body: bytes.Repeat([]byte("x"), 10_000)}
	if got, err := decodeReply(long.encode()); err != nil || len(got.body) != maxErrorText {
		t.Fatalf("%d characters, %v", len(got.body), err)
	}
	if _, err := (request{op: opConfigure, id: "sb-aaaaaaaaaaaaaaaa", body: make([]byte, maxBody+1)}).encode(); caisson.KindOf(err) != caisson.Invalid {
		t.Error(err)
	}
}

func TestUnmarshalIsStrict(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "{", `{"landlock":1,"more":1}`, `{"landlock":1}{}`, `{"landlock":"x"}`} {
		var c Confinement
		if err := unmarshal([]byte(bad), &c); err == nil {
			t.Errorf("%q was read as %+v", bad, c)
		}
	}
}

func FuzzDecodeReply(f *testing.F) {
	f.Add([]byte{})
	f.Add(reply{op: opHello, body: []byte("{}")}.encode())
	f.Add(reply{op: opAttach, status: statusFailed, body: []byte("text")}.encode())
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
	for _, r := range []request{
		{op: opAttach, seq: 1, id: "sb-aaaaaaaaaaaaaaaa"}, {op: opHello, id: "sb-aaaaaaaaaaaaaaaa"},
		{op: opStats, id: "ac-aaaaaaaaaaaaaaaa"}, {op: opJournal, body: []byte("{}")},
	} {
		b, err := r.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRequest(b)
		if err != nil {
			return
		}
		if again, err := r.encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x was read as %+v", b, r)
		}
	})
}

// Messages of the wire process over the feed are untrusted.
func FuzzFeedMessage(f *testing.F) {
	f.Add([]byte(`{"n":1,"lease":{"budget":"account/local","need":{"usd":0.1,"tokens":1,"calls":1},"want":{"usd":1,"tokens":1,"calls":1}}}`))
	f.Add([]byte(`{"sandbox":"sb-aaaaaaaaaaaaaaaa","decisions":[{"kind":"flow"}]}`))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var m feedMessage
		unmarshal(b, &m) // must not panic
	})
}
