package terminal

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/frame"
)

// The kinds of frames on a connection to a terminal's socket. A frame has the kind (1 byte), the length (4 bytes) and a payload.
// The client sends the first frame, of kind attach, info or kill. The server answers info and kill with one info frame, and then
// closes the connection. If it refuses an attach frame, it answers with a notice and closes the connection too.
const (
	kindAttach  = 'A' // from the client: attaches a viewer; size and flags, attachSize bytes; answered with kindStarted
	kindInfo    = 'T' // from the client: without payload; from the server: a [caisson.Terminal] as JSON
	kindKill    = 'K' // from the client: kills the program; without payload
	kindStarted = 'P' // from the server: the viewer is attached; the program's pid, 4 bytes
	kindInput   = 'I' // from the client: input for the program
	kindResize  = 'W' // from the client: new rows and columns, 4 bytes
	kindSignal  = 'S' // from the client: a signal for the foreground process group, 1 byte
	kindOutput  = 'O' // from the server: output of the program
	kindNotice  = 'N' // from the server: a notice, 1 byte
	kindExit    = 'X' // from the server: the program's exit code and signal, 5 bytes; the last frame
)

// Sizes of the payloads of frames, in bytes.
const (
	maxData    = 32 << 10 // maximum size in an input or output frame
	maxInfo    = 16 << 10 // maximum size in an info frame
	attachSize = 5        // size in an attach frame: rows and columns with 2 bytes each, and flags
)

// flagReadOnly is the flag in an attach frame for a viewer that is read-only: it sends no input and never becomes the writer.
const flagReadOnly = 1

// A notice is a message to a viewer about its connection to the terminal.
type notice byte

// The notices to a viewer.
const (
	noticeTaken   notice = 1 + iota // another viewer has become the writer instead of this one
	noticeSkipped                   // output was skipped, because the viewer has read too slowly
	noticeFull                      // the terminal has too many viewers, so this one is not attached
)

// String returns the text of the notice for users; "" if n is not a known notice.
func (n notice) String() string {
	switch n {
	case noticeTaken:
		return "another client writes to this terminal now; you can only view it"
	case noticeSkipped:
		return "some output was skipped, because it came faster than it could be shown"
	case noticeFull:
		return "this terminal has too many viewers"
	}
	return ""
}

// clientLimits returns the maximum payload of a frame of the given kind from the client, in bytes; -1 if there is no such kind.
func clientLimits(kind byte) int {
	switch kind {
	case kindAttach:
		return attachSize
	case kindInfo, kindKill:
		return 0
	case kindInput:
		return maxData
	case kindResize:
		return 4
	case kindSignal:
		return 1
	}
	return -1
}

// serverLimits returns the maximum payload of a frame of the given kind from the server, in bytes; -1 if there is no such kind.
func serverLimits(kind byte) int {
	switch kind {
	case kindInfo:
		return maxInfo
	case kindStarted:
		return 4
	case kindOutput:
		return maxData
	case kindNotice:
		return 1
	case kindExit:
		return 5
	}
	return -1
}

// checkLength returns frame.ErrProtocol unless payload has n bytes.
func checkLength(payload []byte, n int) error {
	if len(payload) != n {
		return frame.ErrProtocol
	}
	return nil
}

// appendSize appends the size of a terminal to b, encoded in 4 bytes.
func appendSize(b []byte, rows, cols uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, rows), cols)
}

// parseSize decodes the size of a terminal from the first 4 bytes of b.
func parseSize(b []byte) (rows, cols uint16) {
	return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
}

// appendExit appends an exit status to b, encoded in 5 bytes.
func appendExit(b []byte, s caisson.ExitStatus) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(s.Code)), byte(s.Signal))
}

// parseExit decodes and validates an exit status from b, which is untrusted.
func parseExit(b []byte) (s caisson.ExitStatus, err error) {
	if err := checkLength(b, 5); err != nil {
		return s, err
	}
	s = caisson.ExitStatus{Code: int(binary.BigEndian.Uint32(b)), Signal: int(b[4])}
	return s, validExit(&s)
}

// validExit returns an error for a status that no process has.
func validExit(s *caisson.ExitStatus) error {
	if s.Code < 0 || s.Code > math.MaxUint8 || s.Signal < 0 || s.Signal > maxSignal || s.Unknown || s.Reason != "" {
		return frame.ErrProtocol
	}
	return nil
}

// maxSignal is the highest number of a signal.
const maxSignal = 64

// Limits on the part of a terminal's command that [Server.Info] returns.
const (
	maxArgs = 16  // maximum number of arguments, including the program
	maxArg  = 200 // maximum length of an argument, in bytes
)

// appendInfo appends an info frame with t to b.
func appendInfo(b []byte, t caisson.Terminal) ([]byte, error) {
	payload, err := json.Marshal(t)
	if err == nil && len(payload) > maxInfo {
		err = frame.ErrProtocol
	}
	return frame.Append(b, kindInfo, payload), err
}

// parseInfo decodes and validates the payload of an info frame, which is untrusted.
func parseInfo(b []byte) (t caisson.Terminal, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return t, frame.ErrProtocol
	}
	if _, err := d.Token(); err != io.EOF {
		return t, frame.ErrProtocol
	}
	if _, err := caisson.ParseID(caisson.TerminalPrefix, string(t.ID)); err != nil {
		return t, frame.ErrProtocol
	}
	if t.PID < 1 || t.Viewers < 0 || t.Viewers > caisson.MaxTerminalViewers || len(t.Command) > maxArgs {
		return t, frame.ErrProtocol
	}
	for _, arg := range t.Command {
		if len(arg) > 4*maxArg { // longer than maxArg is possible, because JSON replaces invalid bytes by U+FFFD
			return t, frame.ErrProtocol
		}
	}
	if t.Exit != nil {
		return t, validExit(t.Exit)
	}
	return t, nil
}

// WriteList writes a list of terminals in the format that [ParseList] reads: one info frame for each terminal.
func WriteList(w io.Writer, list []caisson.Terminal) error {
	for _, t := range list[:min(len(list), caisson.MaxTerminals)] {
		b, err := appendInfo(nil, t)
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ParseList decodes and validates the output of "guestd terminal list", which is untrusted: one info frame for each terminal.
func ParseList(r io.Reader) (list []caisson.Terminal, err error) {
	for {
		kind, payload, err := frame.Read(r, serverLimits)
		switch {
		case err == io.EOF:
			return list, nil
		case err != nil:
			return nil, err
		case kind != kindInfo || len(list) == caisson.MaxTerminals:
			return nil, frame.ErrProtocol
		}
		t, err := parseInfo(payload)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
}
