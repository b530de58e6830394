package lastwrite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxEncoded is the maximum size of a table in encoded form, in bytes.
const MaxEncoded = len(magic) + 12 + MaxPaths*(recordHeaderSize+MaxCommand) + MaxBytes

// Constants of the encoding. An encoded table consists of magic, the number of dropped paths (8 bytes), the number of records (4
// bytes), and the records. Numbers are little-endian.
const (
	magic = "caisson writers 1\n"
	// recordHeaderSize is the size of a record's header: flags, pid, uid, and the lengths of command and path, which follow.
	recordHeaderSize = 1 + 4 + 4 + 1 + 2
	flagMoved        = 1 // value of the flags if Record.Moved is set, else they are 0
)

// Encode returns the records of the table and the number of dropped paths, in the form that Decode reads.
func (t *Table) Encode() []byte {
	records, dropped := t.List()
	b := append([]byte(nil), magic...)
	b = binary.LittleEndian.AppendUint64(b, dropped)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(records)))
	for _, r := range records {
		var flags byte
		if r.Moved {
			flags = flagMoved
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

// errMalformed is the error of Decode for a table that is not in the format of Encode.
var errMalformed = errors.New("the sandbox's list of the processes that wrote its files is malformed")

// Decode decodes the table of last changes that an untrusted sandbox has sent. It returns an error unless all paths are clean,
// relative and different. Commands are returned as printable text. dropped is the number of paths that the table has dropped.
func Decode(b []byte) (records []Record, dropped uint64, err error) {
	if len(b) > MaxEncoded || len(b) < len(magic)+12 || string(b[:len(magic)]) != magic {
		return nil, 0, errMalformed
	}
	b = b[len(magic):]
	dropped, n := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	b = b[12:]
	if n > MaxPaths || int(n)*recordHeaderSize > len(b) {
		return nil, 0, errMalformed
	}
	records = make([]Record, 0, n)
	known := make(map[string]bool, n)
	total := 0
	for range n {
		var r Record
		if r, b, err = decodeRecord(b); err != nil {
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

// decodeRecord decodes the first record in b and returns the bytes after it.
func decodeRecord(b []byte) (r Record, rest []byte, err error) {
	if len(b) < recordHeaderSize {
		return r, nil, errMalformed
	}
	flags, command, path := b[0], int(b[9]), int(binary.LittleEndian.Uint16(b[10:]))
	r.Moved, r.PID, r.UID = flags == flagMoved, binary.LittleEndian.Uint32(b[1:]), binary.LittleEndian.Uint32(b[5:])
	b = b[recordHeaderSize:]
	if flags > flagMoved || r.PID > 1<<30 || command > MaxCommand || path > MaxPath || command+path > len(b) {
		return r, nil, errMalformed
	}
	r.Command, r.Path = escapeUnprintable(string(b[:command])), string(b[command:command+path])
	if !validPath(r.Path) {
		return r, nil, errMalformed
	}
	return r, b[command+path:], nil
}

// validPath reports whether path is relative and clean: "", or elements without ".", ".." and NUL.
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

// ShowPath returns path in the form in which reviews contain paths: bytes that are not UTF-8 are escaped.
func ShowPath(path string) string { return escape(path, func(rune) bool { return false }) }

// escapeUnprintable escapes backslashes and non-printable characters, so that the result is unambiguous wherever it is displayed.
func escapeUnprintable(s string) string {
	return escape(s, func(r rune) bool { return r == '\\' || !unicode.IsPrint(r) })
}

// escape escapes bytes of s that are not UTF-8, and characters for which mustEscape returns true.
func escape(s string, mustEscape func(rune) bool) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, mustEscape) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case mustEscape(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}
