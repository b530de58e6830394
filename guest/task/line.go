package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// Limits on the fields of the lines "changes" and "end".
const (
	MaxChanges = 1000    // maximum number of changed files
	MaxMessage = 4 << 10 // maximum length of an error's message, in bytes
	maxPath    = 4 << 10 // maximum length of a changed file's path, in bytes
)

// encodedLine is a Line with the fields that it has as JSON: without those fields of RunEvent that the engine sets.
type encodedLine struct {
	Type    string               `json:"type"`                   // type of the line, such as status or log
	Phase   string               `json:"phase,omitempty"`        // of a status line: phase of the task
	Label   string               `json:"label,omitempty"`        // of a status line: short text about the phase
	Delta   string               `json:"delta,omitempty"`        // of a text_delta line: next part of the answer
	CallID  string               `json:"toolCallId,omitempty"`   // of a line about a tool call: id of the call
	Tool    string               `json:"toolName,omitempty"`     // of the line that begins a tool call: name of the tool
	Args    json.RawMessage      `json:"args,omitempty"`         // of the line that begins a tool call: arguments
	Result  string               `json:"result,omitempty"`       // of the line that ends a tool call: result
	IsError bool                 `json:"isError,omitempty"`      // of the line that ends a tool call: the call has failed
	Usage   *caisson.RunUsage    `json:"usage,omitempty"`        // of a usage_report line: usage of the task so far
	Stream  string               `json:"stream,omitempty"`       // of a log line: which log, stdout or stderr
	Data    []byte               `json:"data,omitempty"`         // of a log line: raw output
	Mark    string               `json:"mark,omitempty"`         // of a mark line: which point the task has reached
	Changes []caisson.FileChange `json:"changes,omitempty"`      // of the changes line: the changed files
	Patch   string               `json:"patch,omitempty"`        // of the changes line: the changes in git's format
	Cut     bool                 `json:"cut,omitempty"`          // of the end line: output was dropped because of a limit
	Exit    *caisson.ExitStatus  `json:"exit,omitempty"`         // of the end line: exit status of the program
	Agent   string               `json:"agentVersion,omitempty"` // of the end line: version that the agent's program reports
	Error   *caisson.RunError    `json:"error,omitempty"`        // of the end line: error of the task; nil for success
}

// encoded converts l to the form in which it is encoded.
func (l *Line) encoded() encodedLine {
	return encodedLine{
		Type: l.Type, Phase: l.Phase, Label: l.Label, Delta: l.Delta, CallID: l.CallID, Tool: l.Tool, Args: l.Args, Result: l.Result,
		IsError: l.IsError, Usage: l.Usage, Stream: l.Stream, Data: l.Data, Mark: l.Mark, Changes: l.Changes, Patch: l.Patch, Cut: l.Cut,
		Exit: l.Exit, Agent: l.Agent, Error: l.Error,
	}
}

// decoded converts w to a Line.
func (w *encodedLine) decoded() Line {
	return Line{
		RunEvent: caisson.RunEvent{
			Type: w.Type, Phase: w.Phase, Label: w.Label, Delta: w.Delta, CallID: w.CallID, Tool: w.Tool, Args: w.Args, Result: w.Result,
			IsError: w.IsError, Usage: w.Usage, Error: w.Error,
		},
		Stream: w.Stream, Data: w.Data, Mark: w.Mark, Changes: w.Changes, Patch: w.Patch, Cut: w.Cut, Exit: w.Exit, Agent: w.Agent,
	}
}

// Phases are the valid values of Phase in a status line; Codes are the valid codes of an error.
var (
	Phases = []string{"starting", "running", "thinking", "tool_use", "compacting", "warning", "ending"}
	Codes  = []string{
		caisson.RunInvalid, caisson.RunNotFound, caisson.RunTimeout, caisson.RunAborted, caisson.RunRateLimit, caisson.RunNoCredits,
		caisson.RunAgentError, caisson.RunInternal,
	}
)

// The valid values of the fields Stream and Mark of a line, and of Kind of a changed file.
var (
	streams = []string{caisson.LogStdout, caisson.LogStderr}
	marks   = []string{MarkStarted, MarkPrompt, MarkAnswer}
	kinds   = []string{"added", "modified", "removed"}
)

// check returns an error if a line has an unknown type, a field that lines of its type do not have, or a value that is not valid.
// Writer and Reader both use it, so that a Reader accepts all lines of a Writer.
func (w *encodedLine) check() error {
	rest := *w // the fields that lines of this type have are cleared below; all other fields must be empty
	rest.Type = ""
	var err error
	switch w.Type {
	case caisson.EventStatus:
		rest.Phase, rest.Label = "", ""
		err = errors.Join(checkOneOf("phase", w.Phase, Phases), checkWord("label", w.Label))
	case caisson.EventTextDelta:
		rest.Delta = ""
		err = checkText("delta", w.Delta, MaxDelta, "\n\t")
	case caisson.EventToolStart:
		rest.CallID, rest.Tool, rest.Args = "", "", nil
		err = errors.Join(checkName("toolCallId", w.CallID), checkName("toolName", w.Tool), checkArgs(w.Args))
	case caisson.EventToolResult:
		rest.CallID, rest.Result, rest.IsError = "", "", false
		err = errors.Join(checkName("toolCallId", w.CallID), checkText("result", w.Result, MaxResult, "\n\t"))
	case caisson.EventUsage:
		rest.Usage = nil
		err = checkUsage(w.Usage)
	case caisson.EventFinal:
	case LineLog:
		rest.Stream, rest.Data = "", nil
		err = checkOneOf("stream", w.Stream, streams)
		if len(w.Data) == 0 || len(w.Data) > MaxData {
			err = errors.Join(err, fmt.Errorf("data has %d bytes, 1 to %d are allowed", len(w.Data), MaxData))
		}
	case LineMark:
		rest.Mark = ""
		err = checkOneOf("mark", w.Mark, marks)
	case LineChanges:
		rest.Changes, rest.Patch = nil, ""
		err = errors.Join(checkChanges(w.Changes), checkText("patch", w.Patch, MaxPatch, "\n\t\r"))
	case LineEnd:
		rest.Cut, rest.Exit, rest.Agent, rest.Error = false, nil, "", nil
		err = errors.Join(checkExit(w.Exit), checkWord("agentVersion", w.Agent), checkError(w.Error))
	default:
		return fmt.Errorf("type %.40q is not known", w.Type)
	}
	if err == nil && !reflect.ValueOf(rest).IsZero() {
		err = fmt.Errorf("a line of type %s has a field of another type", w.Type)
	}
	return err
}

// checkOneOf returns an error unless s, the value of a field, is in the list all.
func checkOneOf(field, s string, all []string) error {
	if !slices.Contains(all, s) {
		return fmt.Errorf("%s is %.40q, not one of %s", field, s, strings.Join(all, ", "))
	}
	return nil
}

// checkWord returns an error unless s is one line of at most MaxLabel bytes. It may be empty.
func checkWord(field, s string) error { return checkText(field, s, MaxLabel, "") }

// checkName returns an error unless s is one line of 1 to MaxLabel bytes.
func checkName(field, s string) error {
	if s == "" {
		return fmt.Errorf("%s is empty", field)
	}
	return checkWord(field, s)
}

// checkText returns an error unless s is valid UTF-8 of at most limit bytes without control characters, except those in controls.
func checkText(field, s string, limit int, controls string) error {
	if len(s) > limit {
		return fmt.Errorf("%s has %d bytes, %d are allowed", field, len(s), limit)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s is not UTF-8", field)
	}
	for _, r := range s {
		if IsControl(r) && !strings.ContainsRune(controls, r) {
			return fmt.Errorf("%s has a control character (%U)", field, r)
		}
	}
	return nil
}

// IsControl reports whether r is a control character: C0, DEL or C1.
func IsControl(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }

// checkArgs returns an error if the arguments of a tool call are too long, not UTF-8, or contain control characters.
func checkArgs(raw json.RawMessage) error {
	if len(raw) > MaxArgs {
		return fmt.Errorf("args has %d bytes, %d are allowed", len(raw), MaxArgs)
	}
	if !utf8.Valid(raw) || escapedControl(raw, 0) >= 0 {
		return errors.New("args has a control character, or is not UTF-8")
	}
	return nil
}

// escapedControl returns the index of the first control character in a JSON text that is written as \uNNNN and is not \n, \t or
// \r; -1 if there is none. The search begins at the index from, which must not be within an escape.
func escapedControl(raw []byte, from int) int {
	for i := from; i+1 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if raw[i+1] == 'u' && i+6 <= len(raw) {
			var r rune
			for _, c := range raw[i+2 : i+6] {
				r = r<<4 | rune(hexValue(c))
			}
			if IsControl(r) && r != '\n' && r != '\t' && r != '\r' {
				return i
			}
		}
		i++
	}
	return -1
}

// CleanJSON returns the JSON text raw with bytes that are not UTF-8, and escaped control characters other than \n, \t and \r,
// replaced by U+FFFD. It may modify raw.
func CleanJSON(raw []byte) []byte {
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\ufffd"))
	}
	for i := escapedControl(raw, 0); i >= 0; i = escapedControl(raw, i) {
		copy(raw[i+2:], "fffd")
	}
	return raw
}

// hexValue returns the value of the hexadecimal digit c. It does not check c, because it is used for escapes in valid JSON.
func hexValue(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}

// checkUsage returns an error if the usage is missing or has a negative number.
func checkUsage(u *caisson.RunUsage) error {
	if u == nil {
		return errors.New("usage is missing")
	}
	t := u.Tokens
	if min(u.Calls, u.Failed, t.Input, t.Output, t.CacheRead, t.CacheWrite, int64(u.Cost)) < 0 {
		return errors.New("usage is negative")
	}
	return nil
}

// checkChanges returns an error if there are too many changes, or a change has a path that is not relative and clean.
func checkChanges(all []caisson.FileChange) error {
	if len(all) > MaxChanges {
		return fmt.Errorf("%d changes, %d are allowed", len(all), MaxChanges)
	}
	for _, c := range all {
		if err := errors.Join(checkText("path", c.Path, maxPath, ""), checkOneOf("kind", c.Kind, kinds)); err != nil {
			return err
		}
		if p := c.Path; p == "" || p == "." || p == ".." || path.IsAbs(p) || path.Clean(p) != p || strings.HasPrefix(p, "../") {
			return fmt.Errorf("path %.100q does not lead into the directory", p)
		}
		if min(c.Added, c.Removed) < 0 {
			return errors.New("a change has a negative number of lines")
		}
	}
	return nil
}

// checkExit returns an error if e is an exit status that no program can have.
func checkExit(e *caisson.ExitStatus) error {
	if e == nil {
		return nil
	}
	if e.Code < -1 || e.Code > 255 || e.Signal < 0 || e.Signal > 64 {
		return fmt.Errorf("exit %d, signal %d cannot be", e.Code, e.Signal)
	}
	return checkWord("reason", e.Reason)
}

// checkError returns an error if e has an unknown code, or a message that is empty or not plain text.
func checkError(e *caisson.RunError) error {
	if e == nil {
		return nil
	}
	if e.Message == "" {
		return errors.New("an error without a message")
	}
	return errors.Join(checkOneOf("code", e.Code, Codes), checkText("message", e.Message, MaxMessage, "\n\t"))
}
