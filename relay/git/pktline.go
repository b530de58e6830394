package git

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Bounds of git's packet lines, as gitprotocol-common says them.
const (
	pktHeader = 4
	PktMax    = 65520 // header included
	pktData   = PktMax - pktHeader
)

// PktKind is what a packet line is.
type PktKind int

const (
	PktLine     PktKind = iota + 1 // so that none is none of them
	PktFlush                       // 0000: the end of a list
	pktDelim                       // 0001: between the sections of a list, version 2
	pktResponse                    // 0002: the end of an answer, version 2
)

var ErrPkt = errors.New("malformed packet line")

// A PktReader reads packet lines. It reads nothing beyond the line it returns, so that what follows can be read from the reader
// below.
type PktReader struct {
	r    io.Reader
	left int64 // bytes that may still be read, headers included
	buf  [PktMax]byte
}

// NewPktReader reads from r at most limit bytes of lines.
func NewPktReader(r io.Reader, limit int64) *PktReader { return &PktReader{r: r, left: limit} }

// Next returns the next line, which is valid until the one after it. The error is io.EOF if there is none, and
// io.ErrUnexpectedEOF if it is cut off.
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

// parsePktLength reads four hexadecimal digits, and nothing that strconv accepts besides (signs, underscores).
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

// writePkt writes data as one line; it must not be longer than pktData.
func writePkt(w io.Writer, data []byte) error {
	if len(data) > pktData {
		return fmt.Errorf("%w: %d bytes", ErrPkt, len(data))
	}
	line := make([]byte, 0, pktHeader+len(data))
	line = fmt.Appendf(line, "%04x", pktHeader+len(data))
	_, err := w.Write(append(line, data...))
	return err
}

// WritePktf writes one line of text.
func WritePktf(w io.Writer, format string, args ...any) error {
	return writePkt(w, fmt.Appendf(nil, format, args...))
}

// WriteFlush ends a list of lines.
func WriteFlush(w io.Writer) error {
	_, err := io.WriteString(w, "0000")
	return err
}

// The bands of side-band-64k: data, progress that the client shows with "remote: " before it, and a fatal error.
const (
	BandData     = 1
	BandProgress = 2
	bandError    = 3
)

// WriteBand writes data to a band, in as many lines as it takes.
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
