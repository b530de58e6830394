package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/caisson-dev/caisson"
)

// Channel identifies the kind of data in a frame of an exec session. A frame is one binary WebSocket message: the channel in
// the first byte, then its data.
//
// The session begins with one text message from the client, a [caisson.ExecRequest] or, to attach to a terminal, a
// [caisson.AttachRequest]. The server answers with a started or an error control frame. Data on each channel is limited by a
// window of [WindowSize] bytes: a sender must not send more than the receiver has granted, so neither end ever stops reading,
// and a signal is not delayed by input that the process does not read. An empty frame on an output channel is its end. The exit
// frame is the last one, sent exactly once, after all output.
type Channel byte

// The channels of an exec session.
const (
	Stdin   Channel = iota // standard input, client to server
	Stdout                 // standard output, server to client
	Stderr                 // standard error, server to client
	Control                // both ways: a [Message] as JSON
)

// Sizes in bytes of an exec session.
const (
	WindowSize = 256 << 10  // maximum amount of data in flight on one channel
	MaxData    = 32<<10 - 1 // maximum size of data in a sent frame, which then has 32 KiB; every WebSocket library accepts that
	MaxFrame   = 1 + 64<<10 // maximum size of a frame that is accepted, including the byte with its channel
)

// The types of control messages, each with the end that sends it and the fields that it uses.
const (
	MsgResize     = "resize"     // sent by the client with Rows and Cols
	MsgSignal     = "signal"     // sent by the client with Signal
	MsgCloseStdin = "closeStdin" // from the client: the input has ended; from the server: the process reads no further input
	MsgWindow     = "window"     // sent by both ends with Channel and Bytes: the receiver has room for more bytes
	MsgStarted    = "started"    // sent by the server with PID
	MsgExit       = "exit"       // sent by the server with Exit
	MsgError      = "error"      // sent by the server with Problem; ends the session
)

// Message is a control message of an exec session. Only the fields that its type uses are set.
type Message struct {
	Type    string              `json:"type"`              // one of the constants with the prefix Msg
	Rows    uint16              `json:"rows,omitempty"`    // new height of the terminal in characters
	Cols    uint16              `json:"cols,omitempty"`    // new width of the terminal in characters
	Signal  int                 `json:"signal,omitempty"`  // number of the signal to send to the process
	Channel Channel             `json:"channel,omitempty"` // channel on which the peer may send further bytes
	Bytes   int                 `json:"bytes,omitempty"`   // number of further bytes that the peer may send
	PID     int                 `json:"pid,omitempty"`     // id of the started process in the sandbox
	Exit    *caisson.ExitStatus `json:"exit,omitempty"`    // how the process has ended
	Problem *Problem            `json:"problem,omitempty"` // why the session cannot start or continue
}

// Frame returns m as a frame on the channel Control.
func (m Message) Frame() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		// This cannot happen: every field of a Message can be marshalled.
		b = []byte(`{"type":"error"}`)
	}
	return append([]byte{byte(Control)}, b...)
}

// errFrame is wrapped by the errors for frames and control messages that violate the protocol.
var errFrame = errors.New("malformed frame")

// ParseFrame splits a frame into its channel and its data, which shares memory with b.
func ParseFrame(b []byte) (Channel, []byte, error) {
	switch {
	case len(b) == 0:
		return 0, nil, fmt.Errorf("%w: empty", errFrame)
	case b[0] > byte(Control):
		return 0, nil, fmt.Errorf("%w: channel %d", errFrame, b[0])
	case len(b) > MaxFrame:
		return 0, nil, fmt.Errorf("%w: %d bytes", errFrame, len(b))
	}
	return Channel(b[0]), b[1:], nil
}

// ParseMessage decodes a control message and checks the fields of its type.
func ParseMessage(data []byte) (Message, error) {
	var m Message
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", errFrame, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Message{}, fmt.Errorf("%w: more than one message", errFrame)
	}
	ok := false
	switch m.Type {
	case MsgResize, MsgCloseStdin, MsgStarted:
		ok = true
	case MsgSignal:
		ok = m.Signal >= 1 && m.Signal <= 64
	case MsgWindow:
		ok = m.Channel < Control && m.Bytes > 0 && m.Bytes <= WindowSize
	case MsgExit:
		ok = m.Exit != nil
	case MsgError:
		ok = m.Problem != nil
	}
	if !ok {
		return Message{}, fmt.Errorf("%w: message %.40q", errFrame, m.Type)
	}
	return m, nil
}
