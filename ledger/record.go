package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// A journal is a sequence of records. Each is framed by its length and the CRC-32C of its body, 4 bytes each, little
// endian; the body is a byte that says what it is, and fields in a fixed order: numbers as varints, strings with their
// lengths before them. The first record is a header. A change of the format is a new version in the header; what older
// versions wrote can be read: a journal outlives the build that was killed while writing it.
const (
	oldest     = 1 // a call had neither lineage nor trace; in version 2 it had no detail
	version    = 3
	frameBytes = 8
	maxBody    = 8 << 10
	maxText    = 512 // bytes of one string in a record
)

// The kinds of record.
const (
	kindHeader = 'H'
	kindBegin  = 'B' // a call and the most that it may take
	kindSettle = 'S' // a call and what it took
)

// header begins a journal. The engine writes it.
type header struct {
	journal caisson.ID
	boot    string // id of the boot of the machine that the journal was written in
}

// errTorn says that a record is not all there: its writer was killed, or is writing.
var errTorn = errors.New("the record is not complete")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendFrame frames the body that begins at b[start+frameBytes].
func appendFrame(b []byte, start int) []byte {
	body := b[start+frameBytes:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(body)))
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(body, castagnoli))
	return b
}

func appendHeader(b []byte, h header) []byte {
	start := len(b)
	b = append(b, make([]byte, frameBytes)...)
	b = append(b, kindHeader, version)
	b = appendText(b, string(h.journal))
	b = appendText(b, h.boot)
	return appendFrame(b, start)
}

// appendCall appends a record about c.
func appendCall(b []byte, kind byte, c *caisson.Call) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, kind)
	b = appendText(b, string(c.ID))
	b = binary.AppendVarint(b, c.At.UnixNano())
	b = appendText(b, string(c.Sandbox))
	b = appendText(b, c.Account)
	b = appendText(b, c.Run)
	b = binary.AppendVarint(b, int64(c.Attempt))
	b = appendText(b, c.Session)
	b = appendText(b, c.Agent)
	b = appendText(b, c.User)
	b = appendText(b, c.Provider)
	b = appendText(b, c.Model)
	b = appendText(b, c.Upstream)
	b = appendText(b, c.API)
	partOf := c.Lineage != "" || c.Trace != ""
	b = append(b, flag(c.Stream)|flag(c.Estimated)<<1|flag(c.UpstreamCost != nil)<<2|flag(partOf)<<3|flag(c.Detail != "")<<4|flag(c.AtMost != nil)<<5)
	b = binary.AppendVarint(b, int64(c.Status))
	b = appendText(b, c.Error)
	for _, n := range [...]int64{c.Tokens.Input, c.Tokens.Output, c.Tokens.CacheRead, c.Tokens.CacheWrite, int64(c.Cost)} {
		b = binary.AppendVarint(b, n)
	}
	b = appendText(b, c.UpstreamID)
	if c.UpstreamCost != nil {
		b = binary.AppendVarint(b, int64(*c.UpstreamCost))
	}
	b = binary.AppendVarint(b, int64(c.FirstByte))
	b = binary.AppendVarint(b, int64(c.Duration))
	if partOf {
		b = appendText(b, c.Lineage)
		b = appendText(b, c.Trace)
	}
	if c.Detail != "" {
		b = appendText(b, c.Detail)
	}
	if m := c.AtMost; m != nil {
		b = binary.AppendVarint(b, int64(m.USD))
		b = binary.AppendVarint(b, m.Tokens)
	}
	return appendFrame(b, start)
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// appendText appends s, cut to what a record may hold. Some strings come from strangers.
func appendText(b []byte, s string) []byte {
	if len(s) > maxText || !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(strings.ToValidUTF8(s[:min(len(s), maxText)], ""), "\x00", "")
	}
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// record is one record as it was read.
type record struct {
	kind   byte
	header header
	call   caisson.Call
}

// next returns the first record in b and its size. The error is errTorn if b ends before the record does; any other means
// that this is not what [Meter] writes.
func next(b []byte) (r record, size int64, err error) {
	if len(b) < frameBytes {
		return r, 0, errTorn
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n == 0 || n > maxBody {
		return r, 0, fmt.Errorf("a record cannot have %d bytes", n)
	}
	if len(b) < frameBytes+n {
		return r, 0, errTorn
	}
	body := b[frameBytes : frameBytes+n]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return r, 0, errors.New("the checksum of a record is wrong")
	}
	r, err = parse(body)
	return r, int64(frameBytes + n), err
}

// parse reads the body of a record.
func parse(body []byte) (record, error) {
	f := &fields{b: body[1:]}
	r := record{kind: body[0]}
	switch r.kind {
	case kindHeader:
		if v := f.byte(); f.err == nil && (v < oldest || v > version) {
			return r, fmt.Errorf("the journal has format %d", v)
		}
		r.header = header{journal: f.id(caisson.JournalPrefix), boot: f.text()}
	case kindBegin, kindSettle:
		f.call(&r.call)
	default:
		return r, fmt.Errorf("there is no kind of record %#x", r.kind)
	}
	if f.err == nil && len(f.b) > 0 {
		f.err = errors.New("a record is longer than its fields")
	}
	return r, f.err
}

// fields reads the fields of a record until the first error.
type fields struct {
	b   []byte
	err error
}

var errField = errors.New("a field of a record is malformed")

func (f *fields) fail() {
	f.err, f.b = errField, nil
}

func (f *fields) byte() byte {
	if len(f.b) == 0 {
		f.fail()
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

func (f *fields) text() string {
	n, size := binary.Uvarint(f.b)
	if size <= 0 || n > maxText || uint64(len(f.b)-size) < n {
		f.fail()
		return ""
	}
	s := f.b[size : size+int(n)]
	f.b = f.b[size+int(n):]
	if !utf8.Valid(s) || bytes.IndexByte(s, 0) >= 0 {
		f.fail()
		return ""
	}
	return string(s)
}

// number reads a number between lowest and highest.
func (f *fields) number(lowest, highest int64) int64 {
	v, size := binary.Varint(f.b)
	if size <= 0 || v < lowest || v > highest {
		f.fail()
		return 0
	}
	f.b = f.b[size:]
	return v
}

func (f *fields) id(prefix string) caisson.ID {
	id, err := caisson.ParseID(prefix, f.text())
	if err != nil && f.err == nil {
		f.fail()
	}
	return id
}

// What a single call can have taken: more than any provider sells. Costs beyond are cut to it, because a call that was made
// must not get lost over its price.
const (
	maxTokens = 1e12
	maxCost   = 1e4 * int64(caisson.Dollar)
)

func (f *fields) call(c *caisson.Call) {
	c.ID = f.id(caisson.CallPrefix)
	c.At = time.Unix(0, f.number(0, math.MaxInt64)).UTC()
	c.Sandbox = caisson.ID(f.text())
	c.Account, c.Run = f.text(), f.text()
	if f.err == nil && !placed(c.Guest) {
		f.fail()
	}
	c.Attempt = int(f.number(0, math.MaxInt32))
	c.Session, c.Agent, c.User = f.text(), f.text(), f.text()
	c.Provider, c.Model, c.Upstream, c.API = f.text(), f.text(), f.text(), f.text()
	flags := f.byte()
	if flags > 63 {
		f.fail()
	}
	c.Stream, c.Estimated = flags&1 != 0, flags&2 != 0
	c.Status = int(f.number(0, 999))
	c.Error = f.text()
	for _, n := range []*int64{&c.Tokens.Input, &c.Tokens.Output, &c.Tokens.CacheRead, &c.Tokens.CacheWrite} {
		*n = f.number(0, maxTokens)
	}
	c.Cost = caisson.USD(f.number(0, math.MaxInt64))
	c.UpstreamID = f.text()
	if flags&4 != 0 {
		cost := caisson.USD(f.number(0, math.MaxInt64))
		c.UpstreamCost = &cost
	}
	boundCost(c)
	c.FirstByte = caisson.Duration(f.number(0, math.MaxInt64))
	c.Duration = caisson.Duration(f.number(0, math.MaxInt64))
	if flags&8 != 0 {
		c.Lineage, c.Trace = f.text(), f.text()
		if f.err == nil && !(related(c.Guest) && traced(c.Guest)) {
			f.fail()
		}
	}
	if flags&16 != 0 {
		c.Detail = f.text()
	}
	if flags&32 != 0 {
		c.AtMost = &caisson.Amount{USD: caisson.USD(f.number(0, maxCost)), Tokens: f.number(0, maxTokens), Calls: 1}
	}
}

// boundCost puts what c cost within bounds, and says that it did.
func boundCost(c *caisson.Call) {
	if c.Cost > caisson.USD(maxCost) {
		c.Cost, c.Estimated = caisson.USD(maxCost), true
	}
	if u := c.UpstreamCost; u != nil && (*u > caisson.USD(maxCost) || *u < 0) {
		bound := min(max(*u, 0), caisson.USD(maxCost))
		c.UpstreamCost = &bound
	}
}
