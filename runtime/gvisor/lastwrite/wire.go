package lastwrite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxEncoded bounds an encoded table in bytes.
const MaxEncoded = len(magic) + 12 + MaxPaths*(fixed+MaxCommand) + MaxBytes

// An encoded table is magic, how many were dropped, how many records there are, and the records. Numbers are little-endian.
const (
	magic = "caisson writers 1\n"
	// fixed is what each record begins with: flags, pid, uid, and the lengths of command and path, which follow.
	fixed = 1 + 4 + 4 + 1 + 2
	moved = 1 // flag
)

// Encode returns a table as bytes.
func (t *Table) Encode() []byte {
	records, dropped := t.List()
	b := append([]byte(nil), magic...)
	b = binary.LittleEndian.AppendUint64(b, dropped)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(records)))
	for _, r := range records {
		var flags byte
		if r.Moved {
			flags = moved
		}
		command := r.Command[:min(len(r.Command), MaxCommand)]
		b = append(b, flags)
		b = binary.LittleEndian.AppendUint32(b, r.PID)
		b = binary.LittleEndian.AppendUint32(b, r.UID)
		b = append(b, byte(len(command)))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(r.Path)))
		b = append(append(b, command...), r.Path...)
	}
	return b
}

var errMalformed = errors.New("what the sandbox says of who has written its files makes no sense")

// Decode reads what a sandbox says is its table. Each path is there once and leads to no other place; commands are plain text.
func Decode(b []byte) (records []Record, dropped uint64, err error) {
	if len(b) > MaxEncoded || len(b) < len(magic)+12 || string(b[:len(magic)]) != magic {
		return nil, 0, errMalformed
	}
	b = b[len(magic):]
	dropped, n := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	b = b[12:]
	if n > MaxPaths || int(n)*fixed > len(b) {
		return nil, 0, errMalformed
	}
	records = make([]Record, 0, n)
	known := make(map[string]bool, n)
	total := 0
	for range n {
		var r Record
		if r, b, err = decodeOne(b); err != nil {
			return nil, 0, err
		}
		if total += len(r.Path); known[r.Path] || total > MaxBytes {
			return nil, 0, errMalformed
		}
		known[r.Path] = true
		records = append(records, r)
	}
	if len(b) > 0 {
		return nil, 0, errMalformed
	}
	return records, dropped, nil
}

func decodeOne(b []byte) (r Record, rest []byte, err error) {
	if len(b) < fixed {
		return r, nil, errMalformed
	}
	flags, command, path := b[0], int(b[9]), int(binary.LittleEndian.Uint16(b[10:]))
	r.Moved, r.PID, r.UID = flags == moved, binary.LittleEndian.Uint32(b[1:]), binary.LittleEndian.Uint32(b[5:])
	b = b[fixed:]
	if flags > moved || r.PID > 1<<30 || command > MaxCommand || path > MaxPath || command+path > len(b) {
		return r, nil, errMalformed
	}
	r.Command, r.Path = plain(string(b[:command])), string(b[command:command+path])
	if !validPath(r.Path) {
		return r, nil, errMalformed
	}
	return r, b[command+path:], nil
}

// validPath reports whether path is relative, and names what it names in the only way.
func validPath(path string) bool {
	if path == "" {
		return true
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsRune(part, 0) {
			return false
		}
	}
	return true
}

// ShowPath returns path as people see it, in the same form as package gate's: bytes that are not UTF-8 as escapes.
func ShowPath(path string) string { return escape(path, func(rune) bool { return false }) }

// plain shows what is not plain text as escapes, so that a name is what it looks like wherever it is shown.
func plain(s string) string {
	return escape(s, func(r rune) bool { return r == '\\' || !unicode.IsPrint(r) })
}

// escape shows bytes that are not UTF-8, and the characters that not chooses, as escapes.
func escape(s string, not func(rune) bool) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, not) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case not(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}
