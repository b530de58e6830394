package worker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/caisson-dev/caisson"
)

// Limits on the reply of a job.
const (
	maxFrame   = 1 << 20 // bytes of one line, which holds one frame
	maxFrames  = 100_000 // lines of one reply, including progress frames
	maxMessage = 400     // bytes of an error message
	maxStderr  = 4 << 10 // bytes of the standard error of a crashed job that are logged
)

// A jobRequest is a Request as the parent writes it to the job's standard input: one line of JSON. The parent keeps the pipe
// open, so that the job reads the end of the data when the parent has exited.
type jobRequest struct {
	Job     string          `json:"job"`     // name of the job
	Args    json.RawMessage `json:"args"`    // arguments of the job
	Files   int             `json:"files"`   // number of descriptors of Request.Files
	Input   bool            `json:"input"`   // whether a descriptor of Request.Input follows those of Files
	Root    bool            `json:"root"`    // whether a descriptor of a mount of Request.Root follows those of Files and Input
	Network bool            `json:"network"` // whether the job has the host's network
	// Programs describes the root of a job with programs; nil for other jobs.
	Programs     *layout `json:"programs,omitempty"`
	Capabilities []uint  `json:"keep"` // capabilities that the job keeps
	Limits       Limits  `json:"limits"`
}

// A frame is one line of a job's reply. A reply has any number of frames with Progress, and then one with Result or Error.
type frame struct {
	Progress json.RawMessage `json:"progress,omitempty"` // a value that the job has reported with Call.Progress
	Result   json.RawMessage `json:"result,omitempty"`   // the reply of the job
	Error    *failure        `json:"error,omitempty"`    // why the job failed
}

// A failure is the error of a job in the form in which it is sent to the parent. Detail is for the daemon's log only.
type failure struct {
	Kind    caisson.Kind `json:"kind"`
	Message string       `json:"message"`
	Detail  string       `json:"detail,omitempty"` // only for the daemon's log
}

// newFailure returns the failure with the kind and the message of err, and its complete text as Detail.
func newFailure(err error) *failure {
	return &failure{Kind: caisson.KindOf(err), Message: caisson.MessageOf(err), Detail: err.Error()}
}

// err returns f as an error for the caller of Run. Unknown kinds become Internal, and control characters from file names or
// registries are replaced in the message.
func (f *failure) err() error {
	kinds := []caisson.Kind{caisson.Invalid, caisson.NotFound, caisson.Conflict, caisson.Denied, caisson.Unauthed,
		caisson.Exhausted, caisson.Unavailable}
	kind := f.Kind
	if !slices.Contains(kinds, kind) {
		kind = caisson.Internal
	}
	return caisson.Wrap(errors.New(printable(f.Detail, maxMessage)), kind, "%s", printable(f.Message, maxMessage))
}

// printable shortens s to limit bytes and replaces characters that are not printable.
func printable(s string, limit int) string {
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// readFrames reads until the job's result, which it decodes into reply unless reply is nil, or until its error.
func readFrames(r io.Reader, progress func(json.RawMessage), reply any) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	for range maxFrames {
		line, err := readLine(lines, maxFrame)
		if err != nil {
			return err
		}
		var f frame
		if err := Unmarshal(line, &f); err != nil {
			return err
		}
		switch {
		case f.Error != nil:
			return f.Error.err()
		case f.Result != nil && reply == nil:
			return nil
		case f.Result != nil:
			return Unmarshal(f.Result, reply)
		case f.Progress != nil && progress != nil:
			progress(f.Progress)
		}
	}
	return fmt.Errorf("more than %d lines", maxFrames)
}

// readLine returns the next line without its newline, or an error if it has more than limit bytes.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, fmt.Errorf("a line of more than %d bytes", limit)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// Unmarshal decodes JSON data into v. It returns an error for unknown fields, and if anything follows the value.
func Unmarshal(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data after the value")
	}
	return nil
}
