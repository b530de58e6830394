// Package packtest creates bodies of pushes and packs for tests, including malformed ones that git would not create.
package packtest

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"

	"github.com/caisson-dev/caisson/job/relay/git"
)

// CommandLines returns the first part of a push: lines as packet lines and a flush packet.
func CommandLines(lines ...string) []byte {
	var b bytes.Buffer
	for _, l := range lines {
		git.WritePktf(&b, "%s", l)
	}
	git.WriteFlush(&b)
	return b.Bytes()
}

// EmptyPack returns a valid pack without objects.
func EmptyPack() []byte { return NewPack(0).Sum() }

// A PackWriter writes packs, including malformed ones.
type PackWriter struct{ bytes.Buffer }

// NewPack returns a PackWriter that has written the header of a pack with count entries.
func NewPack(count int) *PackWriter {
	p := &PackWriter{}
	p.WriteString("PACK")
	binary.Write(p, binary.BigEndian, []uint32{2, uint32(count)})
	return p
}

// Header writes the type and size of an entry, and returns the entry's offset.
func (p *PackWriter) Header(typ byte, size int64) int {
	at := p.Len()
	b := typ<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		p.WriteByte(b | 0x80)
		b = byte(size & 0x7f)
	}
	p.WriteByte(b)
	return at
}

// Deflate writes data in compressed form.
func (p *PackWriter) Deflate(data []byte) *PackWriter {
	z := zlib.NewWriter(p)
	z.Write(data)
	z.Close()
	return p
}

// Object writes an entry of the given type that is not a delta.
func (p *PackWriter) Object(typ byte, data string) *PackWriter {
	p.Header(typ, int64(len(data)))
	return p.Deflate([]byte(data))
}

// Back writes the distance from an entry back to the base of its delta.
func (p *PackWriter) Back(n int64) *PackWriter {
	b := []byte{byte(n & 0x7f)}
	for n >>= 7; n > 0; n >>= 7 {
		n--
		b = append([]byte{byte(n&0x7f) | 0x80}, b...)
	}
	p.Write(b)
	return p
}

// Sum writes the checksum, which ends the pack, and returns the pack.
func (p *PackWriter) Sum() []byte {
	sum := sha1.Sum(p.Bytes())
	p.Write(sum[:])
	return p.Bytes()
}

// DeltaOf returns a delta with the sizes of base and result, and an instruction that inserts text.
func DeltaOf(base, result int, text string) []byte {
	var b []byte
	for _, n := range []int{base, result} {
		for ; n >= 0x80; n >>= 7 {
			b = append(b, byte(n)|0x80)
		}
		b = append(b, byte(n))
	}
	return append(append(b, byte(len(text))), text...)
}
