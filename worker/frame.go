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

// Bounds of what a job may say.
const (
	maxFrame   = 1 << 20 // bytes of one line
	maxFrames  = 100_000 // progress included
	maxMessage = 400     // bytes of an error message
)

// call is what the parent writes, as one line. The pipe stays open as long as the parent lives.
type call struct {
	Job     string          `json:"job"`
	Args    json.RawMessage `json:"args"`
	Files   int             `json:"files"`
	Input   bool            `json:"input"`
	Root    bool            `json:"root"`
	Network bool            `json:"network"`
	// Programs is how the root of a job with programs is made; nil for others.
	Programs *layout `json:"programs,omitempty"`
	Keep     []uint  `json:"keep"` // capabilities
	Limits   Limits  `json:"limits"`
}

// frame is one line of what a job answers: any number of progress frames, then one of the others.
type frame struct {
	Progress json.RawMessage `json:"progress,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *failure        `json:"error,omitempty"`
}

type failure struct {
	Kind    caisson.Kind `json:"kind"`
	Message string       `json:"message"`
	Detail  string       `json:"detail,omitempty"`
}

// failureOf turns a job's error into what crosses to the parent.
func failureOf(err error) *failure {
	return &failure{Kind: caisson.KindOf(err), Message: caisson.MessageOf(err), Detail: err.Error()}
}

// err returns what the parent makes of f: a job cannot invent kinds, and neither file names nor registries get control
// characters into messages.
func (f *failure) err() error {
	kinds := []caisson.Kind{caisson.Invalid, caisson.NotFound, caisson.Conflict, caisson.Denied, caisson.Unauthed,
		caisson.Exhausted, caisson.Unavailable}
	kind := f.Kind
	if !slices.Contains(kinds, kind) {
		kind = caisson.Internal
	}
	return caisson.Wrap(errors.New(printable(f.Detail, maxMessage)), kind, "%s", printable(f.Message, maxMessage))
}

// printable shortens s to limit bytes and replaces what could deceive a reader.
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

// readFrames reads until the job's result, which it decodes into reply unless that is nil, or its error.
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

// readLine returns the next line without its end, or an error if it has more than limit bytes.
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

// Unmarshal is [json.Unmarshal] that accepts no unknown fields and nothing after the value.
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
