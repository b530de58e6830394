package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"unicode/utf8"
)

// Encode returns t as one line without its newline. Returns an error for tasks that [Decode] would reject.
func Encode(t *Task) ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	b, err := marshal(t)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxTask {
		return nil, fmt.Errorf("the task has %d bytes, %d are allowed: shorten the prompt, the history or the files", len(b), MaxTask)
	}
	return b, nil
}

// Decode decodes the output of [Encode].
func Decode(b []byte) (*Task, error) {
	if len(b) > MaxTask {
		return nil, fmt.Errorf("the task has more than %d bytes", MaxTask)
	}
	t := &Task{}
	if err := unmarshal(b, t); err != nil {
		return nil, fmt.Errorf("read the task: %w", err)
	}
	return t, t.check()
}

// TimeoutMessage returns the beginning of the error message of a task whose agent did not finish within the time limit.
func (t *Task) TimeoutMessage() string { return "the agent was not done after " + t.Time.String() }

// check returns an error if a required field of the task is missing, a path is not absolute, or a limit is negative.
func (t *Task) check() error {
	switch {
	case t.Driver == "":
		return errors.New("the task names no driver")
	case !path.IsAbs(t.Workdir):
		return fmt.Errorf("workdir %.100q of the task is not an absolute path", t.Workdir)
	case t.Track != "" && !path.IsAbs(t.Track):
		return fmt.Errorf("track %.100q of the task is not an absolute path", t.Track)
	case t.Time <= 0:
		return errors.New("the task leaves its agent no time")
	case t.Grace < 0 || t.ReadyTime < 0 || t.Output < 0:
		return errors.New("a limit of the task is negative")
	}
	for _, name := range t.Remove {
		if !path.IsAbs(name) {
			return fmt.Errorf("%.100q, which the task removes, is not an absolute path", name)
		}
	}
	for _, f := range t.Files {
		if !path.IsAbs(f.Path) {
			return fmt.Errorf("file %.100q of the task is not an absolute path", f.Path)
		}
	}
	return nil
}

// marshal is like json.Marshal, but does not escape <, > and &, because escapes can make program text six times as long.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// unmarshal decodes b, which must be exactly one JSON value in UTF-8 without fields that v lacks.
func unmarshal(b []byte, v any) error {
	if !utf8.Valid(b) {
		return errors.New("not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}
