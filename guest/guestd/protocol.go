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

// The kinds of frames. The protocol of "guestd files" uses the standard streams of the process. The client is on the host; the
// server is the process in the sandbox. Both send frames: a byte for the kind, four bytes for the length (big endian), then the
// payload.
//
//	client: request                        one [request]
//	server: result                         the request was refused, is done, or is in progress
//	both:   data… or items…                content in one direction, depending on the operation
//	client: end or abort (after content)
//	server: end (after content)            a [result]
//
// Then the client may send the next request. A server that cannot accept more content sends its end frame at once; the client
// answers with an abort frame. A watch, unless refused, is the last request: the process exits when the client's stream ends.
const (
	frameRequest = 'Q' // a [request]
	frameResult  = 'R' // a [result]: the request was refused, is done, or is in progress
	frameData    = 'D' // the next part of a file or archive
	frameItems   = 'I' // a JSON array of entries or changes
	frameEnd     = 'E' // end of the content; from the server: a [result]
	frameAbort   = 'X' // end of the content from the client before the content is complete
)

const (
	frameHeaderSize = framing.HeaderSize // size of the kind and length of a frame, in bytes
	chunkSize       = 64 << 10           // maximum payload of a data frame, in bytes
	itemsSize       = 64 << 10           // maximum payload of an items frame, in bytes
	jsonSize        = 64 << 10           // maximum payload of a request, result or end frame, in bytes; fits two paths in base64
	maxBatch        = 1024               // maximum number of items in one frame
	maxList         = 100_000            // maximum number of entries of a listing
	maxPath         = 4096               // maximum length of a path, in bytes
	maxName         = 255                // maximum length of the name of a directory entry, in bytes
)

// maxPayload returns the maximum payload of a frame of the given kind, in bytes; -1 if there is no such kind.
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

// frame is one frame of the protocol of "guestd files".
type frame struct {
	kind    byte   // kind of the frame, such as frameRequest
	payload []byte // content of the frame, whose form depends on kind
}

// errProtocol is the error for data that violates the protocol of "guestd files".
var errProtocol = framing.ErrProtocol

// readFrame reads one frame. The error is io.EOF if the stream ended between two frames.
func readFrame(r io.Reader) (frame, error) {
	kind, payload, err := framing.Read(r, maxPayload)
	return frame{kind, payload}, err
}

// unexpectedEOF returns io.ErrUnexpectedEOF for io.EOF, and other errors unchanged. It is used where the stream must not end.
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

// decode decodes payload, which must be exactly one JSON value without fields that v lacks.
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

// op is the name of an operation that a client requests from "guestd files".
type op string

// The operations of "guestd files".
const (
	opRead      op = "read"      // read the file Path from Offset, at most Limit bytes; the server sends data
	opWrite     op = "write"     // replace the file Path, with Mode; the client sends data
	opList      op = "list"      // list the directory Path; the server sends entries
	opStat      op = "stat"      // return the entry of Path
	opMkdir     op = "mkdir"     // create the directory Path; All: also missing parents
	opMove      op = "move"      // rename Path to To
	opRemove    op = "remove"    // remove Path; All: also a directory that is not empty
	opWatch     op = "watch"     // watch Path; All: also directories below; the server sends changes until the watch ends
	opReadTree  op = "readtree"  // read Path and everything below; the server sends a tar archive
	opWriteTree op = "writetree" // unpack a tar archive below Path; the client sends it
)

// A request requests one operation. Paths are bytes, because JSON strings cannot represent all file names.
type request struct {
	Op     op     `json:"op"`               // the operation, which determines which other fields are used
	Path   []byte `json:"path"`             // absolute path of the file or directory
	To     []byte `json:"to,omitempty"`     // new path, for opMove
	Mode   uint32 `json:"mode,omitempty"`   // permissions of the file, for opWrite
	Offset int64  `json:"offset,omitempty"` // position of the first byte, for opRead
	Limit  int64  `json:"limit,omitempty"`  // maximum number of bytes, for opRead; 0 means no limit
	All    bool   `json:"all,omitempty"`    // include missing parents (opMkdir), or everything below Path (opRemove, opWatch)
}

// A result is the outcome of an operation.
type result struct {
	Kind    caisson.Kind `json:"kind,omitempty"`    // kind of the error; "" for success
	Message string       `json:"message,omitempty"` // error message
	Entry   *entry       `json:"entry,omitempty"`   // information about the file, if the operation returns it
}

// An entry describes a file, a directory or another object in a directory.
type entry struct {
	Name   []byte `json:"name,omitempty"`   // set only in listings of a directory
	Type   string `json:"type"`             // file, directory, symlink, fifo, socket, device or other
	Size   int64  `json:"size"`             // size of the file, in bytes
	Mode   uint32 `json:"mode"`             // permissions of the file
	UID    uint32 `json:"uid"`              // user id of the owner
	GID    uint32 `json:"gid"`              // group id of the owner
	Sec    int64  `json:"sec"`              // modification time in seconds since 1970; Nsec has the nanoseconds
	Nsec   int32  `json:"nsec"`             // nanoseconds of the modification time
	Target []byte `json:"target,omitempty"` // target of a symlink
}

// A change is an event of a watch.
type change struct {
	Op   string `json:"op"`             // kind of the change, such as changeCreate
	Path []byte `json:"path,omitempty"` // path relative to the watched path; empty for the watched path itself
}

// err returns the error that r describes, or nil. The text of the error is from the sandbox and untrusted.
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

// printable returns the first 300 bytes of s as one line of text, with "?" in place of what is not printable.
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

// info validates e, which is untrusted, and returns it as the information about the file with this path and name.
func (e *entry) info(path, name string) (*caisson.FileInfo, error) {
	mtime := time.Unix(e.Sec, int64(e.Nsec)).UTC()
	switch {
	case e.Size < 0, e.Mode > 0o7777, len(e.Target) > maxPath, bytes.IndexByte(e.Target, 0) >= 0:
		return nil, errProtocol
	case e.Type != "symlink" && len(e.Target) > 0:
		return nil, errProtocol
	case e.UID == math.MaxUint32, e.GID == math.MaxUint32: // no file has the id -1, which means "do not change" to chown
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

// validRelPath reports whether p is a clean relative path without "..", or empty.
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

// newEntry returns the entry for a file with status st. target is the target of a symlink.
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
