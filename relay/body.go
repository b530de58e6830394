package relay

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
)

// commandLines is the first part of a push.
func commandLines(lines ...string) []byte {
	var b bytes.Buffer
	for _, l := range lines {
		writePktf(&b, "%s", l)
	}
	writeFlush(&b)
	return b.Bytes()
}

func emptyPack() []byte { return newPack(0).sum() }

// A packWriter writes packs, also such that no git writes.
type packWriter struct{ bytes.Buffer }

func newPack(count int) *packWriter {
	p := &packWriter{}
	p.WriteString("PACK")
	binary.Write(p, binary.BigEndian, []uint32{2, uint32(count)})
	return p
}

// header writes the type and size of an entry, and returns where it begins.
func (p *packWriter) header(typ byte, size int64) int {
	at := p.Len()
	b := typ<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		p.WriteByte(b | 0x80)
		b = byte(size & 0x7f)
	}
	p.WriteByte(b)
	return at
}

func (p *packWriter) deflate(data []byte) *packWriter {
	z := zlib.NewWriter(p)
	z.Write(data)
	z.Close()
	return p
}

func (p *packWriter) object(typ byte, data string) *packWriter {
	p.header(typ, int64(len(data)))
	return p.deflate([]byte(data))
}

// back writes how far before an entry the base of a delta is.
func (p *packWriter) back(n int64) *packWriter {
	b := []byte{byte(n & 0x7f)}
	for n >>= 7; n > 0; n >>= 7 {
		n--
		b = append([]byte{byte(n&0x7f) | 0x80}, b...)
	}
	p.Write(b)
	return p
}

func (p *packWriter) sum() []byte {
	sum := sha1.Sum(p.Bytes())
	p.Write(sum[:])
	return p.Bytes()
}

// deltaOf makes a delta with the sizes of base and result, and an instruction that inserts text.
func deltaOf(base, result int, text string) []byte {
	var b []byte
	for _, n := range []int{base, result} {
		for ; n >= 0x80; n >>= 7 {
			b = append(b, byte(n)|0x80)
		}
		b = append(b, byte(n))
	}
	return append(append(b, byte(len(text))), text...)
}
