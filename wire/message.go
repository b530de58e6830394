package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	caisson "github.com/caisson-dev/caisson"
)

// The control protocol: the engine asks, the wire process answers, one request at a time, one packet of a SOCK_SEQPACKET
// pair each. The wire process speaks first, with an opHello that says how it is confined. Integers are big-endian.
//
//	request  op(1) seq(4) id(19)           with one descriptor, the TAP, for opAttach
//	reply    op(1) seq(4) status(1) body   body: see below; text for statusFailed
type op byte

const (
	opHello  op = iota + 1 // never asked; body of the reply: Landlock ABI version(1), seccomp(1)
	opAttach               // no body
	opDetach               // no body
	opStats                // body: the five counters of Stats(8 each)
)

type status byte

const (
	statusOK      status = iota
	statusUnknown        // no such wire
	statusExists         // there is one already
	statusFull           // no room for another wire
	statusFailed         // anything else; the body says what, for the log
)

const (
	idSize      = 19 // of every caisson.ID
	requestSize = 1 + 4 + idSize
	replyHeader = 1 + 4 + 1
	statsSize   = 5 * 8
	maxText     = 200
	maxReply    = replyHeader + maxText
)

type request struct {
	op  op
	seq uint32
	id  caisson.ID
}

type reply struct {
	op          op
	seq         uint32
	status      status
	confinement Confinement // for opHello
	stats       Stats       // for opStats
	text        string      // for statusFailed; not to be trusted
}

// Stats counts what passed a wire since the wire process took it up.
type Stats struct {
	FramesOut  uint64 // from the sandbox
	BytesOut   uint64
	FramesIn   uint64 // to the sandbox
	BytesIn    uint64
	DroppedOut uint64 // frames of the sandbox that no stack was shown
}

// Confinement says which of the kernel's optional protections hold the wire process. The others (another user, no
// capabilities, no_new_privs, not dumpable) always hold.
type Confinement struct {
	Landlock int  // ABI version; 0 if the kernel has none
	Seccomp  bool // system calls are filtered
}

var errMessage = errors.New("malformed control message")

func (r request) encode() []byte {
	b := make([]byte, 0, requestSize)
	b = append(b, byte(r.op))
	b = binary.BigEndian.AppendUint32(b, r.seq)
	return append(b, r.id...)
}

func decodeRequest(b []byte) (request, error) {
	if len(b) != requestSize {
		return request{}, fmt.Errorf("%w: request of %d bytes", errMessage, len(b))
	}
	r := request{op: op(b[0]), seq: binary.BigEndian.Uint32(b[1:])}
	if r.op < opAttach || r.op > opStats {
		return request{}, fmt.Errorf("%w: op %d", errMessage, r.op)
	}
	id, err := caisson.ParseID(caisson.SandboxPrefix, string(b[5:]))
	if err != nil {
		return request{}, fmt.Errorf("%w: id", errMessage)
	}
	r.id = id
	return r, nil
}

func (r reply) encode() []byte {
	b := make([]byte, 0, maxReply)
	b = append(b, byte(r.op))
	b = binary.BigEndian.AppendUint32(b, r.seq)
	b = append(b, byte(r.status))
	switch {
	case r.status == statusFailed:
		b = append(b, r.text[:min(len(r.text), maxText)]...)
	case r.status != statusOK:
	case r.op == opHello:
		b = append(b, byte(r.confinement.Landlock), 0)
		if r.confinement.Seccomp {
			b[len(b)-1] = 1
		}
	case r.op == opStats:
		for _, n := range []uint64{r.stats.FramesOut, r.stats.BytesOut, r.stats.FramesIn, r.stats.BytesIn, r.stats.DroppedOut} {
			b = binary.BigEndian.AppendUint64(b, n)
		}
	}
	return b
}

// decodeReply accepts exactly what encode can produce.
func decodeReply(b []byte) (reply, error) {
	if len(b) < replyHeader || len(b) > maxReply {
		return reply{}, fmt.Errorf("%w: reply of %d bytes", errMessage, len(b))
	}
	r := reply{op: op(b[0]), seq: binary.BigEndian.Uint32(b[1:]), status: status(b[5])}
	body := b[replyHeader:]
	if r.op < opHello || r.op > opStats || r.status > statusFailed {
		return reply{}, fmt.Errorf("%w: op %d, status %d", errMessage, r.op, r.status)
	}
	want := 0
	switch {
	case r.status == statusFailed:
		r.text = string(body)
		return r, nil
	case r.status != statusOK:
	case r.op == opHello:
		want = 2
	case r.op == opStats:
		want = statsSize
	}
	if len(body) != want {
		return reply{}, fmt.Errorf("%w: body of %d bytes", errMessage, len(body))
	}
	switch {
	case want == 2 && body[1] > 1:
		return reply{}, fmt.Errorf("%w: flag", errMessage)
	case want == 2:
		r.confinement = Confinement{Landlock: int(body[0]), Seccomp: body[1] == 1}
	case want == statsSize:
		n := func(i int) uint64 { return binary.BigEndian.Uint64(body[8*i:]) }
		r.stats = Stats{FramesOut: n(0), BytesOut: n(1), FramesIn: n(2), BytesIn: n(3), DroppedOut: n(4)}
	}
	return r, nil
}
