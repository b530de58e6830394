package fsat

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Limits of the fields of records.
const (
	MaxPathLen   = 4095 // maximum length of a path in bytes: PATH_MAX without its NUL
	MaxReasonLen = 400  // maximum length, in bytes, of the reason why an entry is denied
	MaxDepth     = 256  // maximum number of names in a path
)

// Packer appends encoded values to the record B.
type Packer struct{ B []byte } // the record, as far as it is encoded

// Uint appends v as an unsigned varint.
func (p *Packer) Uint(v uint64) { p.B = binary.AppendUvarint(p.B, v) }

// Int appends v as a signed varint.
func (p *Packer) Int(v int64) { p.B = binary.AppendVarint(p.B, v) }

// Byte appends v.
func (p *Packer) Byte(v byte) { p.B = append(p.B, v) }

// String appends the length of s and s.
func (p *Packer) String(s string) { p.Uint(uint64(len(s))); p.B = append(p.B, s...) }

// Unpacker takes encoded values from the beginning of the record B. After the first malformed value it returns only zero values.
type Unpacker struct {
	B   []byte // the rest of the record
	Bad bool   // a value was malformed or missing
}

// fail marks the record as malformed and drops the rest of it.
func (u *Unpacker) fail() {
	u.B, u.Bad = nil, true
}

// Uint returns an unsigned number that Packer.Uint has appended.
func (u *Unpacker) Uint() uint64 {
	v, n := binary.Uvarint(u.B)
	// Only the shortest encoding of a number is valid, so that a record has one encoding.
	if n <= 0 || n > 1 && u.B[n-1] == 0 {
		u.fail()
		return 0
	}
	u.B = u.B[n:]
	return v
}

// Int returns a number that Packer.Int has appended.
func (u *Unpacker) Int() int64 {
	v := u.Uint()
	if v&1 != 0 {
		return ^int64(v >> 1)
	}
	return int64(v >> 1)
}

// Size returns a number that Packer.Uint has appended and that fits in an int64.
func (u *Unpacker) Size() int64 {
	v := u.Uint()
	if v > 1<<62 {
		u.fail()
		return 0
	}
	return int64(v)
}

// Byte returns the next byte.
func (u *Unpacker) Byte() byte {
	if len(u.B) == 0 {
		u.fail()
		return 0
	}
	v := u.B[0]
	u.B = u.B[1:]
	return v
}

// Bytes returns the next n bytes.
func (u *Unpacker) Bytes(n int) []byte {
	if n > len(u.B) {
		u.fail()
		return nil
	}
	v := u.B[:n]
	u.B = u.B[n:]
	return v
}

// String returns a string of at most limit bytes that Packer.String has appended.
func (u *Unpacker) String(limit int) string {
	n := u.Uint()
	if n > uint64(limit) {
		u.fail()
		return ""
	}
	return string(u.Bytes(int(n)))
}

// Seal appends the SHA-256 of a record to it.
func Seal(record []byte) []byte {
	sum := sha256.Sum256(record)
	return append(record, sum[:]...)
}

// Unseal returns the part between magic and the SHA-256 of a record that [Seal] has returned. It returns false if the record
// does not begin with magic, or if its SHA-256 does not match.
func Unseal(data []byte, magic string) (body []byte, ok bool) {
	end := len(data) - sha256.Size
	if end < len(magic) || string(data[:len(magic)]) != magic {
		return nil, false
	}
	sum := sha256.Sum256(data[:end])
	return data[len(magic):end], string(sum[:]) == string(data[end:])
}

// WriteIndex writes data atomically to the file name in the directory with the file descriptor dir.
func WriteIndex(dir int, name string, data []byte) error {
	tmp := name + ".new"
	fd, err := Open(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return fmt.Errorf("make an index: %w", err)
	}
	file := os.NewFile(uintptr(fd), tmp)
	_, err = file.Write(data)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write an index: %w", err)
	}
	return os.NewSyscallError("rename", unix.Renameat(dir, tmp, dir, name))
}

// Malformed returns the error for a malformed file of the gate; what describes the file. Such files are written by worker jobs,
// which may be compromised.
func Malformed(what string) error {
	return caisson.Errorf(caisson.Internal, "%s is damaged; create the workspace again", what)
}

// Flag returns bit if on is true, and 0 otherwise, for flags in a byte of a record.
func Flag(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}
