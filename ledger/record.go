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

// A journal is a sequence of records, each with a frame and a body. The frame contains the length and the CRC-32C of the body, 4
// bytes each, little endian. The body is a byte for the kind, followed by fields in a fixed order: numbers as varints, strings
// with their length as a prefix. The first record is a header. A change of the format increments the version in the header. Older
// versions remain readable, because a journal outlives the build whose process was killed while writing it.
const (
	minVersion = 1       // oldest readable version; calls have Lineage and Trace from version 2 on, Detail from 3 on
	version    = 3       // version that is written
	frameBytes = 8       // size of a frame in bytes
	maxBody    = 8 << 10 // bytes of a body
	maxText    = 512     // bytes of one string in a record
)

// Kinds of records.
const (
	kindHeader = 'H' // the first record of a journal
	kindBegin  = 'B' // a call and its maximum cost
	kindSettle = 'S' // a call and its actual cost
)

// header is the first record of a journal. The book writes it when it creates the journal.
type header struct {
	journal caisson.ID // id of the journal
	boot    string     // boot id of the machine when the journal was created
}

// errIncomplete means that a record is incomplete: its writer was killed, or is still writing.
var errIncomplete = errors.New("the record is not complete")

// castagnoli is the table of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendFrame writes the length and the checksum of a record's body into its frame, which is at the offset start of b. The rest
// of b is the body. It returns b.
func appendFrame(b []byte, start int) []byte {
	body := b[start+frameBytes:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(body)))
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(body, castagnoli))
	return b
}

// appendHeader appends h to b, as a record with frame and body.
func appendHeader(b []byte, h header) []byte {
	start := len(b)
	b = append(b, make([]byte, frameBytes)...)
	b = append(b, kindHeader, version)
	b = appendText(b, string(h.journal))
	b = appendText(b, h.boot)
	return appendFrame(b, start)
}

// appendCall appends the call c to b, as a record with frame and body. kind is kindBegin or kindSettle.
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

// flag returns 1 if v is true, and otherwise 0.
func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// appendText appends the string s to b, truncated to maxText bytes and without invalid UTF-8 and NUL bytes: some of the strings
// are untrusted.
func appendText(b []byte, s string) []byte {
	if len(s) > maxText || !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(strings.ToValidUTF8(s[:min(len(s), maxText)], ""), "\x00", "")
	}
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// record is one record of a journal, decoded: the header, or a call that has begun or was settled.
type record struct {
	kind   byte         // kindHeader, kindBegin or kindSettle
	header header       // only for kindHeader
	call   caisson.Call // only for kindBegin and kindSettle
}

// decodeRecord decodes the record at the start of b, a part of a journal, and returns it with its size in bytes. Returns
// errIncomplete if b ends before the record does. Any other error means that no [Meter] has written the record.
func decodeRecord(b []byte) (r record, size int64, err error) {
	if len(b) < frameBytes {
		return r, 0, errIncomplete
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n == 0 || n > maxBody {
		return r, 0, fmt.Errorf("a record cannot have %d bytes", n)
	}
	if len(b) < frameBytes+n {
		return r, 0, errIncomplete
	}
	body := b[frameBytes : frameBytes+n]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return r, 0, errors.New("the checksum of a record is wrong")
	}
	r, err = parseBody(body)
	return r, int64(frameBytes + n), err
}

// parseBody decodes the body of a record of a journal.
func parseBody(body []byte) (record, error) {
	f := &fields{b: body[1:]}
	r := record{kind: body[0]}
	switch r.kind {
	case kindHeader:
		if v := f.byte(); f.err == nil && (v < minVersion || v > version) {
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

// fields decodes the fields of the body of a record, in order, until the first error.
type fields struct {
	b   []byte // the rest of the body
	err error  // the first error
}

// errField is the error for a field that cannot be decoded.
var errField = errors.New("a field of a record is malformed")

// fail sets the error, so that no further field is decoded.
func (f *fields) fail() {
	f.err, f.b = errField, nil
}

// byte decodes a field of one byte.
func (f *fields) byte() byte {
	if len(f.b) == 0 {
		f.fail()
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

// text decodes a string.
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

// number decodes a number, which must be between lowest and highest, inclusive.
func (f *fields) number(lowest, highest int64) int64 {
	v, size := binary.Varint(f.b)
	if size <= 0 || v < lowest || v > highest {
		f.fail()
		return 0
	}
	f.b = f.b[size:]
	return v
}

// id decodes an id, which must have the given prefix.
func (f *fields) id(prefix string) caisson.ID {
	id, err := caisson.ParseID(prefix, f.text())
	if err != nil && f.err == nil {
		f.fail()
	}
	return id
}

// Limits of the usage of a single call, above what any provider sells. A higher cost is reduced to the limit, because a call must
// not be lost because of its cost.
const (
	maxTokens = 1e12                        // tokens of one call
	maxCost   = 1e4 * int64(caisson.Dollar) // cost of one call: ten thousand dollars
)

// call decodes the fields of a call into c.
func (f *fields) call(c *caisson.Call) {
	c.ID = f.id(caisson.CallPrefix)
	c.At = time.Unix(0, f.number(0, math.MaxInt64)).UTC()
	c.Sandbox = caisson.ID(f.text())
	c.Account, c.Run = f.text(), f.text()
	if f.err == nil && !hasOrigin(c.Guest) {
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
		c.UpstreamCost = new(caisson.USD(f.number(0, math.MaxInt64)))
	}
	boundCost(c)
	c.FirstByte = caisson.Duration(f.number(0, math.MaxInt64))
	c.Duration = caisson.Duration(f.number(0, math.MaxInt64))
	if flags&8 != 0 {
		c.Lineage, c.Trace = f.text(), f.text()
		if f.err == nil && !(validLineage(c.Guest) && validTrace(c.Guest)) {
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

// boundCost reduces the costs of c to maxCost. If it reduces Cost, it sets Estimated.
func boundCost(c *caisson.Call) {
	if c.Cost > caisson.USD(maxCost) {
		c.Cost, c.Estimated = caisson.USD(maxCost), true
	}
	if u := c.UpstreamCost; u != nil && (*u > caisson.USD(maxCost) || *u < 0) {
		c.UpstreamCost = new(min(max(*u, 0), caisson.USD(maxCost)))
	}
}
