package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	caisson "github.com/caisson-dev/caisson"
)

// An op is the type of a message of the control protocol. The engine sends a request, the wire process a reply, one at a time,
// each in one packet of a SOCK_SEQPACKET pair. The wire process sends the first packet, an opHello that reports its confinement.
// Integers are big-endian, bodies are JSON. The fields of a request and of a reply, with their sizes in bytes:
//
//	request  op(1) seq(4) id(19) body   and, for some types, file descriptors; see [op.descriptors]
//	reply    op(1) seq(4) status(1) body
//
// In the other direction there is the feed, on a separate pair; see feed.go.
type op byte

const (
	opHello     op = iota + 1 // is never requested; its reply has a Confinement
	opAttach                  // body: a caisson.WireSpec; attached: the TAP and, if Record is set, a file for recordings
	opDetach                  // removes the wire and closes its TAP
	opStats                   // body: none; the reply has Stats
	opConfigure               // body: a caisson.WireSpec; attached if Record is set and was not before: a file for recordings
	opRecent                  // body: none; the reply has []caisson.Decision: recent refusals
	opSettings                // no id; attached: a memory file with a caisson.GatewayConfig
	opJournal                 // no id; body: a journalBody; attached: the journal's file
	opForget                  // no id; body: a forgetBody with budgets that have changed
	opRuns                    // no id; attached: a memory file with a caisson.GatewayRunChange
	opListen                  // no id; attached: a listening TCP socket, for the model gateway
	opIngress                 // no id; attached: a listening TCP socket, for the ingress
	opDrop                    // no id; body: a dropBody; closes connections of the ingress to a sandbox
	lastOp      = opDrop
)

// A status is the result of a request.
type status byte

const (
	statusOK      status = iota
	statusUnknown        // there is no such wire
	statusExists         // the wire exists already
	statusFull           // no capacity for another wire
	statusFailed         // any other failure; the body is a message for the log
)

const (
	idSize        = 19             // bytes of a caisson.ID
	requestHeader = 1 + 4 + idSize // bytes of a request before its body
	replyHeader   = 1 + 4 + 1      // bytes of a reply before its body
	// maxBody is the maximum size of a body in bytes. It is limited so that the kernel need not allocate a large contiguous
	// buffer for a packet of a unix socket.
	maxBody      = 120 << 10
	maxRequest   = requestHeader + maxBody // bytes of a request
	maxReply     = replyHeader + maxBody   // bytes of a reply
	maxErrorText = 200                     // bytes of the body of a reply with statusFailed
)

// A request is a message from the engine.
type request struct {
	op   op
	seq  uint32     // number of the request, which its reply repeats
	id   caisson.ID // "" for requests that concern all wires
	body []byte
}

// A reply is a message from the wire process.
type reply struct {
	op     op     // of the request
	seq    uint32 // of the request
	status status
	body   []byte // untrusted
}

// journalBody is the body of an opJournal request, which passes a new journal to the wire process.
type journalBody struct {
	ID caisson.ID `json:"id"` // of the journal
}

// forgetBody is the body of an opForget request, which makes the wire process return its leases of budgets.
type forgetBody struct {
	Budgets []string `json:"budgets"` // keys of the budgets
}

// dropBody is the body of an opDrop request, which closes the connections of the ingress to a sandbox.
type dropBody struct {
	Sandbox caisson.ID `json:"sandbox"`
}

// perWire reports whether requests of this type concern one wire.
func (o op) perWire() bool { return o < opSettings }

// descriptors returns the minimum and maximum number of descriptors attached to a request.
func (o op) descriptors() (least, most int) {
	switch o {
	case opAttach:
		return 1, 2
	case opConfigure:
		return 0, 1
	case opSettings, opJournal, opRuns, opListen, opIngress:
		return 1, 1
	default:
		return 0, 0
	}
}

// Stats are the traffic counters of a wire since the wire process attached it. Out is from the sandbox, In is to it.
type Stats struct {
	FramesOut  uint64 `json:"framesOut"`  // frames from the sandbox
	BytesOut   uint64 `json:"bytesOut"`   // bytes of these frames
	FramesIn   uint64 `json:"framesIn"`   // frames to the sandbox
	BytesIn    uint64 `json:"bytesIn"`    // bytes of these frames
	DroppedOut uint64 `json:"droppedOut"` // frames of the sandbox that the filter rejected
	Flows      Flows  `json:"flows"`
}

// Flows are the connection counters of a wire.
type Flows struct {
	Allowed int64 `json:"allowed"` // connections and datagram flows that the policy allowed
	Denied  int64 `json:"denied"`  // connections, names and requests that the policy denied
	Limited int64 `json:"limited"` // connections and datagram flows refused because of a limit
	Open    int   `json:"open"`    // connections and datagram flows that are open
}

// Confinement reports which optional protections of the kernel apply to the wire process. The other protections (a separate user,
// no capabilities, no_new_privs, not dumpable) always apply.
type Confinement struct {
	Landlock int  `json:"landlock"` // version of the Landlock ABI in use; 0 if the kernel has no Landlock
	Seccomp  bool `json:"seccomp"`  // system calls are filtered
}

// errMessage reports a message that does not conform to the protocol of the control connection or of the feed.
var errMessage = errors.New("malformed control message")

func (r request) encode() ([]byte, error) {
	if len(r.body) > maxBody {
		return nil, caisson.Errorf(caisson.Invalid, "the policy and models of one sandbox take more than %s together; shorten them", caisson.Size(maxBody))
	}
	b := make([]byte, 0, requestHeader+len(r.body))
	b = append(b, byte(r.op))
	b = binary.BigEndian.AppendUint32(b, r.seq)
	id := r.id
	if id == "" {
		id = caisson.ID(make([]byte, idSize))
	}
	b = append(b, id...)
	return append(b, r.body...), nil
}

func decodeRequest(b []byte) (request, error) {
	if len(b) < requestHeader || len(b) > maxRequest {
		return request{}, fmt.Errorf("%w: request of %d bytes", errMessage, len(b))
	}
	r := request{op: op(b[0]), seq: binary.BigEndian.Uint32(b[1:]), body: b[requestHeader:]}
	if r.op < opAttach || r.op > lastOp {
		return request{}, fmt.Errorf("%w: op %d", errMessage, r.op)
	}
	if !r.op.perWire() {
		if !bytes.Equal(b[5:requestHeader], make([]byte, idSize)) {
			return request{}, fmt.Errorf("%w: id", errMessage)
		}
		return r, nil
	}
	id, err := caisson.ParseID(caisson.SandboxPrefix, string(b[5:requestHeader]))
	if err != nil {
		return request{}, fmt.Errorf("%w: id", errMessage)
	}
	r.id = id
	return r, nil
}

func (r reply) encode() []byte {
	most := maxBody
	if r.status == statusFailed {
		most = maxErrorText
	}
	b := make([]byte, 0, replyHeader+len(r.body))
	b = append(b, byte(r.op))
	b = binary.BigEndian.AppendUint32(b, r.seq)
	b = append(b, byte(r.status))
	return append(b, r.body[:min(len(r.body), most)]...)
}

// decodeReply accepts only replies that reply.encode can produce; the caller decodes the body with unmarshal.
func decodeReply(b []byte) (reply, error) {
	if len(b) < replyHeader || len(b) > maxReply {
		return reply{}, fmt.Errorf("%w: reply of %d bytes", errMessage, len(b))
	}
	r := reply{op: op(b[0]), seq: binary.BigEndian.Uint32(b[1:]), status: status(b[5]), body: b[replyHeader:]}
	switch {
	case r.op < opHello || r.op > lastOp || r.status > statusFailed:
		return reply{}, fmt.Errorf("%w: op %d, status %d", errMessage, r.op, r.status)
	case r.status == statusFailed && len(r.body) > maxErrorText, r.status != statusOK && r.status != statusFailed && len(r.body) > 0:
		return reply{}, fmt.Errorf("%w: body of %d bytes", errMessage, len(r.body))
	}
	return r, nil
}

// unmarshal decodes exactly one JSON value and rejects unknown fields.
func unmarshal(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", errMessage, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: more than one value", errMessage)
	}
	return nil
}
