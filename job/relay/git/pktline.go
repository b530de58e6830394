package git

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Limits of git's packet lines, from gitprotocol-common.
const (
	pktHeader = 4                  // bytes of the length at the beginning of a line
	PktMax    = 65520              // bytes of a line, including the header
	pktData   = PktMax - pktHeader // bytes of the data of a line
)

// PktKind is the kind of a packet line.
type PktKind int

const (
	PktLine     PktKind = iota + 1 // a line with data; the zero PktKind is not valid
	PktFlush                       // 0000: end of a list
	pktDelim                       // 0001: separator of the sections of a list, in protocol version 2
	pktResponse                    // 0002: end of an answer, in protocol version 2
)

// ErrPkt is returned by PktReader.Next for a line that is malformed or exceeds the limit.
var ErrPkt = errors.New("malformed packet line")

// A PktReader reads packet lines. It does not read beyond the line that it returns, so the caller can read the data after it from
// the underlying reader.
type PktReader struct {
	r    io.Reader
	left int64        // bytes that may still be read, including headers
	buf  [PktMax]byte // contains the line that Next returns
}

// NewPktReader returns a PktReader that reads at most limit bytes from r.
func NewPktReader(r io.Reader, limit int64) *PktReader { return &PktReader{r: r, left: limit} }

// Next returns the next line, which is valid until the next call. The error is io.EOF if there is no further line, and
// io.ErrUnexpectedEOF if the line is truncated.
func (p *PktReader) Next() ([]byte, PktKind, error) {
	if p.left < pktHeader {
		return nil, 0, fmt.Errorf("%w: too many of them", ErrPkt)
	}
	if _, err := io.ReadFull(p.r, p.buf[:pktHeader]); err != nil {
		return nil, 0, err
	}
	p.left -= pktHeader
	n, err := parsePktLength(p.buf[:pktHeader])
	if err != nil {
		return nil, 0, err
	}
	switch n {
	case 0:
		return nil, PktFlush, nil
	case 1:
		return nil, pktDelim, nil
	case 2:
		return nil, pktResponse, nil
	case 3:
		return nil, 0, fmt.Errorf("%w: length 3", ErrPkt)
	}
	n -= pktHeader
	if int64(n) > p.left {
		return nil, 0, fmt.Errorf("%w: too many of them", ErrPkt)
	}
	p.left -= int64(n)
	if _, err := io.ReadFull(p.r, p.buf[:n]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, 0, err
	}
	return p.buf[:n], PktLine, nil
}

// parsePktLength parses four hexadecimal digits. Unlike strconv it does not accept signs or underscores.
func parsePktLength(b []byte) (int, error) {
	for _, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return 0, fmt.Errorf("%w: length %.20q", ErrPkt, b)
		}
	}
	n, err := strconv.ParseUint(string(b), 16, 16)
	if err != nil || n > PktMax {
		return 0, fmt.Errorf("%w: length %.20q", ErrPkt, b)
	}
	return int(n), nil
}

// writePkt writes data as one packet line; data must have at most 65,516 bytes.
func writePkt(w io.Writer, data []byte) error {
	if len(data) > pktData {
		return fmt.Errorf("%w: %d bytes", ErrPkt, len(data))
	}
	line := make([]byte, 0, pktHeader+len(data))
	line = fmt.Appendf(line, "%04x", pktHeader+len(data))
	_, err := w.Write(append(line, data...))
	return err
}

// WritePktf formats text and writes it as one packet line.
func WritePktf(w io.Writer, format string, args ...any) error {
	return writePkt(w, fmt.Appendf(nil, format, args...))
}

// WriteFlush writes a flush packet, which ends a list of packet lines.
func WriteFlush(w io.Writer) error {
	_, err := io.WriteString(w, "0000")
	return err
}

// The bands of side-band-64k: data, progress, which the client shows with the prefix "remote: ", and a fatal error.
const (
	BandData     = 1
	BandProgress = 2
	bandError    = 3
)

// WriteBand writes data to a band, split into as many packet lines as necessary.
func WriteBand(w io.Writer, band byte, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), pktData-1)
		if err := writePkt(w, append([]byte{band}, data[:n]...)); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}
