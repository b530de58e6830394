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

// Limits of the protocol between the host, which is the client, and the supervisor, which is the server. Each connection is used
// for one request. A message consists of its length in four bytes (big endian) and JSON of that length. The client sends one
// request. The server sends one answer; for opWatch, one answer at once and one after each change; for opLogs, as many answers as
// the output needs. While more answers may follow, the server sends an empty answer at intervals, to detect that the client is
// gone. It closes the connection after the last answer.
const (
	maxRequest = 8 << 20   // maximum size of a request, in bytes: an environment of 1 MiB with each byte escaped, and the services
	maxAnswer  = 128 << 10 // maximum size of an answer, in bytes
	chunkSize  = 32 << 10  // maximum size of the output in one answer, in bytes
	maxMessage = 300       // maximum length of the message of a condition or an error, in bytes
)

// The operations of a request to the supervisor.
const (
	opApply   = "apply"   // replace the set of services; uses Revision, Env and Services
	opList    = "list"    // return the conditions of all services
	opWatch   = "watch"   // return the conditions of all services, at once and after each change, until the connection ends
	opRestart = "restart" // restart the service whose id is ID
	opLogs    = "logs"    // return the output of the service whose id is ID; Follow: also output that it writes later
)

// A request requests one operation of the supervisor. Op determines which other fields are used.
type request struct {
	Op       string            `json:"op"`                 // the operation, such as opApply
	Revision int64             `json:"revision,omitempty"` // for opApply: number of the set of services; later sets have higher ones
	Env      map[string]string `json:"env,omitempty"`      // for opApply: added to the environment of all services
	Services []caisson.Service `json:"services,omitempty"` // for opApply: the services
	ID       string            `json:"id,omitempty"`       // for opRestart and opLogs: id of the service
	Follow   bool              `json:"follow,omitempty"`   // for opLogs: also return output that is written later
}

// An answer is one message of the supervisor.
type answer struct {
	Kind       caisson.Kind `json:"kind,omitempty"`       // kind of the error; "" for success
	Message    string       `json:"message,omitempty"`    // error message
	Conditions []Condition  `json:"conditions,omitempty"` // for opList and opWatch: the conditions of all services
	Output     []byte       `json:"output,omitempty"`     // for opLogs: the next part of the output
}

// A Condition is the condition of one service of a sandbox.
type Condition struct {
	ID string `json:"id"` // id of the service
	caisson.ServiceCondition
}

// errProtocol is the error for data that violates the protocol between host and supervisor.
var errProtocol = errors.New("protocol error")

// writeMessage sends v as one message.
func writeMessage(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

// readMessage receives a message of at most limit bytes into v. The error is io.EOF if the connection ended between two messages.
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
