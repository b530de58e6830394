package service

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"

	"github.com/caisson-dev/caisson"
)

// Socket is the path of the supervisor's socket in a sandbox.
const Socket = "/dev/.caisson/services"

// MaxServices is the maximum number of services of a sandbox.
const MaxServices = 32

// The protocol, on one connection for each request. Messages in both directions are a length in four bytes (big endian) and JSON
// of that length. The client sends one request. The server sends one answer; for opWatch one at once and one after each change;
// for opLogs as many as the output needs. While more answers may follow, it sends an empty answer at intervals, to detect a
// client that is gone. It closes the connection at the end.
const (
	maxRequest = 8 << 20 // an environment of 1 MiB, with each byte escaped, and the services
	maxAnswer  = 128 << 10
	chunkSize  = 32 << 10 // output in one answer, in bytes
	maxMessage = 300      // bytes of a condition's or an error's text
)

// The operations of a request.
const (
	opApply   = "apply"   // Revision, Env, Services
	opList    = "list"    // answered with Conditions
	opWatch   = "watch"   // answered with Conditions until the connection ends
	opRestart = "restart" // ID
	opLogs    = "logs"    // ID, Follow; answered with Output
)

// A request requests one operation.
type request struct {
	Op       string            `json:"op"`
	Revision int64             `json:"revision,omitempty"`
	Env      map[string]string `json:"env,omitempty"` // environment of all services
	Services []caisson.Service `json:"services,omitempty"`
	ID       string            `json:"id,omitempty"`
	Follow   bool              `json:"follow,omitempty"`
}

// An answer is one message of the server.
type answer struct {
	Kind       caisson.Kind `json:"kind,omitempty"` // kind of the error; "" for success
	Message    string       `json:"message,omitempty"`
	Conditions []Condition  `json:"conditions,omitempty"`
	Output     []byte       `json:"output,omitempty"`
}

// A Condition is the condition of one service.
type Condition struct {
	ID string `json:"id"`
	caisson.ServiceCondition
}

// errProtocol is the error for data that violates the protocol.
var errProtocol = errors.New("protocol error")

// writeMessage sends v.
func writeMessage(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

// readMessage receives a message of at most limit bytes into v. io.EOF means that the connection ended between messages.
func readMessage(r io.Reader, limit int, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > uint32(limit) {
		return errProtocol
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err == io.EOF {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return errors.Join(errProtocol, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errProtocol
	}
	return nil
}
