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

// The protocol on a connection to a terminal's socket, in frames of package frame. The first one is the client's: attach, info or
// kill. The server answers info and kill with one info frame, and then closes the connection, as it does after a refusal.
const (
	kindAttach  = 'A' // client: attachSize bytes; answered with started
	kindInfo    = 'T' // client: no payload; server: a [caisson.Terminal] as JSON
	kindKill    = 'K' // client: no payload
	kindStarted = 'P' // server: the program's pid; 4 bytes
	kindInput   = 'I' // client
	kindResize  = 'W' // client: rows and columns; 4 bytes
	kindSignal  = 'S' // client: 1 byte; for the foreground process group
	kindOutput  = 'O' // server
	kindNotice  = 'N' // server: 1 byte, one of the notices
	kindExit    = 'X' // server: exit code and signal; 5 bytes. The last frame
)

// Sizes in bytes.
const (
	maxData    = 32 << 10 // of one input or output frame
	maxInfo    = 16 << 10 // of an info frame
	attachSize = 5        // rows, columns, flags
)

// flagReadOnly is the flag in an attach frame of a viewer that sends no input.
const flagReadOnly = 1

// A notice tells a viewer that something has happened to it.
type notice byte

// The notices.
const (
	noticeTaken   notice = 1 + iota // another viewer has become the writer
	noticeSkipped                   // the viewer was too slow, and has missed output
	noticeFull                      // there are too many viewers; the connection ends
)

// String returns the sentence that users see.
func (n notice) String() string {
	switch n {
	case noticeTaken:
		return "somebody else uses this terminal now; you only view it"
	case noticeSkipped:
		return "some output was skipped, because it came faster than it could be shown"
	case noticeFull:
		return "this terminal has too many viewers"
	}
	return ""
}

// clientLimits and serverLimits return the maximum payload of a frame from the client or the server.
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

// exactly returns an error unless payload has n bytes.
func exactly(payload []byte, n int) error {
	if len(payload) != n {
		return frame.ErrProtocol
	}
	return nil
}

// appendSize appends rows and columns to b.
func appendSize(b []byte, rows, cols uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, rows), cols)
}

// parseSize returns the rows and columns at the beginning of b, which has at least 4 bytes.
func parseSize(b []byte) (rows, cols uint16) {
	return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
}

// appendExit appends an exit status to b.
func appendExit(b []byte, s caisson.ExitStatus) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(s.Code)), byte(s.Signal))
}

// parseExit returns the exit status in b.
func parseExit(b []byte) (s caisson.ExitStatus, err error) {
	if err := exactly(b, 5); err != nil {
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

const maxSignal = 64

// Limits on the part of a terminal's command that is kept.
const (
	maxArgs = 16
	maxArg  = 200 // bytes
)

// appendInfo appends an info frame to b.
func appendInfo(b []byte, t caisson.Terminal) ([]byte, error) {
	payload, err := json.Marshal(t)
	if err == nil && len(payload) > maxInfo {
		err = frame.ErrProtocol
	}
	return frame.Append(b, kindInfo, payload), err
}

// parseInfo decodes an info frame, whose content is untrusted.
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
		if len(arg) > 4*maxArg { // invalid UTF-8 has become longer
			return t, frame.ErrProtocol
		}
	}
	if t.Exit != nil {
		return t, validExit(t.Exit)
	}
	return t, nil
}

// WriteList writes a list of terminals for [ParseList].
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

// ParseList decodes the output of "guestd terminal list", which is untrusted: one info frame for each terminal.
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
