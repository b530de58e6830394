// Package frame is the framing of the protocols between the daemon and programs in sandboxes: a byte for the kind, four bytes for the
// length (big endian), then the payload. Each end treats the frames of the other end as hostile.
package frame

import (
	"encoding/binary"
	"errors"
	"io"
)

// HeaderSize is the size of a frame without its payload, in bytes.
const HeaderSize = 1 + 4

// ErrProtocol is the error for data that violates the protocol.
var ErrProtocol = errors.New("protocol error")

// Read reads one frame. limits returns the maximum payload of a kind in bytes, or a negative number if there is no such kind. io.EOF
// means that the stream ended between frames.
func Read(r io.Reader, limits func(kind byte) int) (kind byte, payload []byte, err error) {
	var head [HeaderSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if most := limits(head[0]); most < 0 || n > uint32(most) {
		return 0, nil, ErrProtocol
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(r, payload); err == io.EOF {
		return 0, nil, io.ErrUnexpectedEOF
	} else if err != nil {
		return 0, nil, err
	}
	return head[0], payload, nil
}

// Append appends a frame to b.
func Append(b []byte, kind byte, payload []byte) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// PutHeader writes the header of a frame with a payload of n bytes to the beginning of b.
func PutHeader(b []byte, kind byte, n int) {
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:], uint32(n))
}
