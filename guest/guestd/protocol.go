package guestd

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	framing "github.com/caisson-dev/caisson/internal/frame"
)

// The protocol, on one pair of streams. Both directions consist of frames: a byte for the kind, four bytes for the length (big
// endian), then the payload.
//
//	client: request                        one [request]
//	server: result                         the request was refused, is done, or is in progress
//	both:   data… or items…                content in one direction, depending on the operation
//	client: end or abort (after content)
//	server: end (after content)            a [result]
//
// The next request may follow. A server that cannot accept more content sends its end at once; the client answers with an abort.
// A watch ends only when the client's stream ends.
const (
	frameRequest = 'Q'
	frameResult  = 'R'
	frameData    = 'D'
	frameItems   = 'I' // JSON array of entries or changes
	frameEnd     = 'E'
	frameAbort   = 'X'
)

const (
	frameHeaderSize = framing.HeaderSize
	chunkSize       = 64 << 10 // maximum of one data frame, in bytes
	itemsSize       = 64 << 10 // maximum of one items frame, in bytes
	jsonSize        = 64 << 10 // maximum of a request, result or end: two paths in base64 and more
	maxBatch        = 1024     // items in one frame
	maxList         = 100_000  // entries of a listing
	maxPath         = 4096     // bytes
	maxName         = 255      // bytes
)

// maxPayload returns the maximum payload of a frame of that kind, in bytes; negative for no kind.
func maxPayload(kind byte) int {
	switch kind {
	case frameData:
		return chunkSize
	case frameItems:
		return itemsSize
	case frameRequest, frameResult, frameEnd:
		return jsonSize
	case frameAbort:
		return 0
	}
	return -1
}

// frame is one frame of the protocol. kind is one of the constants above.
type frame struct {
	kind    byte
	payload []byte
}

// errProtocol is the error for data that violates the protocol.
var errProtocol = framing.ErrProtocol

// readFrame reads one frame. io.EOF means that the stream ended between frames.
func readFrame(r io.Reader) (frame, error) {
	kind, payload, err := framing.Read(r, maxPayload)
	return frame{kind, payload}, err
}

// unexpectedEOF replaces io.EOF within a frame by an error that is not taken for a regular end.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// writeFrame writes a frame with v as JSON and flushes w.
func writeFrame(w *bufio.Writer, kind byte, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := w.Write(framing.Append(nil, kind, payload)); err != nil {
		return err
	}
	return w.Flush()
}

// decode decodes exactly one JSON value and rejects unknown fields.
func decode(payload []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return errors.Join(errProtocol, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errProtocol
	}
	return nil
}

// op is the name of an operation.
type op string

// The operations.
const (
	opRead      op = "read"      // Path, Offset, Limit; then data from the server
	opWrite     op = "write"     // Path, Mode; then data from the client
	opList      op = "list"      // Path; then items from the server
	opStat      op = "stat"      // Path
	opMkdir     op = "mkdir"     // Path, All: parents
	opMove      op = "move"      // Path, To
	opRemove    op = "remove"    // Path, All: recursive
	opWatch     op = "watch"     // Path, All: recursive; then items from the server until the watch ends
	opReadTree  op = "readtree"  // Path; then data from the server
	opWriteTree op = "writetree" // Path; then data from the client
)

// A request requests one operation. Paths are bytes, because JSON strings cannot represent every file name.
type request struct {
	Op     op     `json:"op"`
	Path   []byte `json:"path"`
	To     []byte `json:"to,omitempty"`
	Mode   uint32 `json:"mode,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Limit  int64  `json:"limit,omitempty"`
	All    bool   `json:"all,omitempty"`
}

// A result is the outcome of an operation. Kind is empty for success.
type result struct {
	Kind    caisson.Kind `json:"kind,omitempty"`
	Message string       `json:"message,omitempty"`
	Entry   *entry       `json:"entry,omitempty"`
}

// An entry describes a file.
type entry struct {
	Name   []byte `json:"name,omitempty"` // only in listings
	Type   string `json:"type"`
	Size   int64  `json:"size"`
	Mode   uint32 `json:"mode"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Sec    int64  `json:"sec"` // modification time
	Nsec   int32  `json:"nsec"`
	Target []byte `json:"target,omitempty"`
}

// A change is an event of a watch. Path is relative to the watched path; empty for that path itself.
type change struct {
	Op   string `json:"op"`
	Path []byte `json:"path,omitempty"`
}

// err returns the error of r, or nil. Its text is untrusted.
func (r *result) err() error {
	switch r.Kind {
	case "":
		return nil
	case caisson.NotFound, caisson.Conflict, caisson.Denied, caisson.Exhausted:
		return caisson.Errorf(r.Kind, "%s", printable(r.Message))
	case caisson.Invalid:
		return caisson.Invalidf("path", "%s", printable(r.Message))
	}
	return caisson.Errorf(caisson.Unavailable, "the sandbox's files cannot be used: %s", printable(r.Message))
}

// printable returns s as one line of printable text of at most 300 bytes.
func printable(s string) string {
	const most = 300
	if len(s) > most {
		s = s[:most]
	}
	return strings.Map(func(r rune) rune {
		if r == '\uFFFD' || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// info validates e and returns it as the information about the file at path.
func (e *entry) info(path, name string) (*caisson.FileInfo, error) {
	mtime := time.Unix(e.Sec, int64(e.Nsec)).UTC()
	switch {
	case e.Size < 0, e.Mode > 0o7777, len(e.Target) > maxPath, bytes.IndexByte(e.Target, 0) >= 0:
		return nil, errProtocol
	case e.Type != "symlink" && len(e.Target) > 0:
		return nil, errProtocol
	case e.UID == math.MaxUint32, e.GID == math.MaxUint32: // -1 means "do not change" to chown
		return nil, errProtocol
	}
	switch e.Type {
	case "file", "directory", "symlink", "fifo", "socket", "device", "other":
	default:
		return nil, errProtocol
	}
	if e.Nsec < 0 || e.Nsec >= 1e9 || mtime.Year() < 0 || mtime.Year() > 9999 {
		mtime = time.Unix(0, 0).UTC() // file systems can store times that JSON cannot represent
	}
	return &caisson.FileInfo{
		Name: name, Path: path, Type: e.Type, Size: e.Size, Mode: fmt.Sprintf("%04o", e.Mode), UID: int(e.UID), GID: int(e.GID),
		ModTime: mtime, Target: string(e.Target),
	}, nil
}

// validName reports whether name is valid as the name of a directory entry.
func validName(name []byte) bool {
	return len(name) > 0 && len(name) <= maxName && bytes.IndexByte(name, 0) < 0 && bytes.IndexByte(name, '/') < 0 &&
		string(name) != "." && string(name) != ".."
}

// validRelPath reports whether p is a clean path below a directory, or empty.
func validRelPath(p []byte) bool {
	if len(p) > maxPath {
		return false
	}
	for part := range bytes.SplitSeq(p, []byte{'/'}) {
		if len(p) > 0 && !validName(part) {
			return false
		}
	}
	return true
}

// newEntry returns an entry with the data of st.
func newEntry(name string, st *unix.Stat_t, target string) *entry {
	e := &entry{
		Name: []byte(name), Size: st.Size, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		Sec: int64(st.Mtim.Sec), Nsec: int32(st.Mtim.Nsec), Target: []byte(target),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type = "file"
	case unix.S_IFDIR:
		e.Type = "directory"
	case unix.S_IFLNK:
		e.Type = "symlink"
	case unix.S_IFIFO:
		e.Type = "fifo"
	case unix.S_IFSOCK:
		e.Type = "socket"
	case unix.S_IFBLK, unix.S_IFCHR:
		e.Type = "device"
	default:
		e.Type = "other"
	}
	return e
}
