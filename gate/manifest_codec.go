package gate

import (
	"encoding/binary"

	"github.com/caisson-dev/caisson"
)

// Bounds of what is in records, for their readers.
const (
	maxPathLen   = 4095 // PATH_MAX without its NUL
	maxReasonLen = 400
	maxDepth     = 256
)

// packer appends values to a record.
type packer struct{ b []byte }

func (p *packer) uint(v uint64)   { p.b = binary.AppendUvarint(p.b, v) }
func (p *packer) int(v int64)     { p.b = binary.AppendVarint(p.b, v) }
func (p *packer) byte(v byte)     { p.b = append(p.b, v) }
func (p *packer) string(s string) { p.uint(uint64(len(s))); p.b = append(p.b, s...) }

// unpacker takes values from a record. After the first fault all values are zero.
type unpacker struct {
	b   []byte
	bad bool
}

func (u *unpacker) fail() {
	u.b, u.bad = nil, true
}

func (u *unpacker) uint() uint64 {
	v, n := binary.Uvarint(u.b)
	// Only the shortest form of a number is one: a record has one way to be written.
	if n <= 0 || n > 1 && u.b[n-1] == 0 {
		u.fail()
		return 0
	}
	u.b = u.b[n:]
	return v
}

func (u *unpacker) int() int64 {
	v := u.uint()
	if v&1 != 0 {
		return ^int64(v >> 1)
	}
	return int64(v >> 1)
}

// size is a number that must not be negative as an int64.
func (u *unpacker) size() int64 {
	v := u.uint()
	if v > 1<<62 {
		u.fail()
		return 0
	}
	return int64(v)
}

func (u *unpacker) byte() byte {
	if len(u.b) == 0 {
		u.fail()
		return 0
	}
	v := u.b[0]
	u.b = u.b[1:]
	return v
}

func (u *unpacker) bytes(n int) []byte {
	if n > len(u.b) {
		u.fail()
		return nil
	}
	v := u.b[:n]
	u.b = u.b[n:]
	return v
}

func (u *unpacker) string(limit int) string {
	n := u.uint()
	if n > uint64(limit) {
		u.fail()
		return ""
	}
	return string(u.bytes(int(n)))
}

// malformed is the error of readers of this package's own files: they are written by jobs, and a job may have been taken over.
func malformed(what string) error {
	return caisson.Errorf(caisson.Internal, "%s is damaged; make the workspace anew", what)
}

func flag(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}
