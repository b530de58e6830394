package terminal

// A ring keeps the last len(buf) bytes of a stream. Positions are counted from the beginning of the stream.
type ring struct {
	buf []byte // the byte at a position is at the index position modulo len(buf)
	end uint64 // position after the last byte of the stream
}

// start returns the position of the oldest byte that is kept.
func (r *ring) start() uint64 {
	if n := uint64(len(r.buf)); r.end > n {
		return r.end - n
	}
	return 0
}

// add appends b to the stream.
func (r *ring) add(b []byte) {
	if skip := len(b) - len(r.buf); skip > 0 {
		r.end += uint64(skip)
		b = b[skip:]
	}
	for len(b) > 0 {
		n := copy(r.buf[r.end%uint64(len(r.buf)):], b)
		r.end += uint64(n)
		b = b[n:]
	}
}

// read copies bytes from position at on into b, and returns their number. at must be between start and end.
func (r *ring) read(at uint64, b []byte) int {
	n := int(min(r.end-at, uint64(len(b))))
	from := at % uint64(len(r.buf))
	done := copy(b[:n], r.buf[from:])
	copy(b[done:n], r.buf)
	return n
}
