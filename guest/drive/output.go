package drive

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// Limits on how text and logs are collected into lines. Text is written in lines of at most flushSize bytes. The first text is
// written at once, and less than flushSize at most once per flushTime: a line for each token of a model would be too expensive.
const (
	flushSize = 4 << 10               // bytes of text that are written at once
	flushTime = 20 * time.Millisecond // minimum time between two lines of text with less than flushSize bytes
	logTime   = 50 * time.Millisecond // longest time for which data of a log is collected before it is written
	lineSpace = 64                    // approximate size of a line without its text or data, in bytes
)

// output implements [Out]: it writes lines of JSON for the engine, each a [task.Line].
type output struct {
	w            *task.Writer // writes the lines of output
	onWriteError func(error)  // called when writing to w has failed, after which w writes no more lines

	mu           sync.Mutex            // guards the fields below
	clean        cleaner               // converts the text of the answer to plain text
	pending      []byte                // text that has not been written yet
	lastFlush    time.Time             // time of the last write of text
	timer        *time.Timer           // writes pending; nil if no write is scheduled
	tail         []byte                // the last two bytes of all text so far
	separateNext bool                  // an empty line is to be written before the next text
	status       string                // phase and label of the last event, if it was a status; otherwise ""
	marks        map[string]bool       // points in time of the task that were reported with the method Mark
	logs         map[string]*logStream // logs by name of their stream
	left         int64                 // number of bytes of events that may still be written
	cut          bool                  // output was dropped because of a limit
	closed       bool                  // close was called; nothing is written any more
}

// logStream is the state of the agent's standard output or standard error, which is passed on as a log.
type logStream struct {
	pending []byte      // data that has not been written yet
	timer   *time.Timer // writes pending; nil if no write is scheduled
	left    int64       // number of bytes of this log that may still be written
}

// newOutput returns an output that writes lines to w. limit is the limit on the size of all events, and of each log, in bytes.
// broken is called when writing to w has failed.
func newOutput(w *task.Writer, limit caisson.Size, broken func(error)) *output {
	return &output{
		w: w, onWriteError: broken, left: int64(limit), marks: map[string]bool{},
		logs: map[string]*logStream{caisson.LogStdout: {left: int64(limit)}, caisson.LogStderr: {left: int64(limit)}},
	}
}

// Text implements [Out]: it adds s to the text of the agent's answer.
func (o *output) Text(s string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left <= lineSpace && s != "" { // the limit on events is reached: drop the text without cleaning it
		o.cut = true
		return
	}
	o.add(o.clean.write(s))
}

// add adds plain text to the answer, and writes or schedules pending text. The caller must hold mu.
func (o *output) add(s string) {
	if s == "" || o.closed {
		return
	}
	if o.separateNext {
		o.separateNext = false
		for gap := o.missingNewlines(); gap > 0; gap-- {
			o.pending = append(o.pending, '\n')
		}
	}
	o.pending = append(o.pending, s...)
	o.tail = append(o.tail, s[max(0, len(s)-2):]...)
	o.tail = o.tail[max(0, len(o.tail)-2):]
	switch wait := flushTime - time.Since(o.lastFlush); {
	case len(o.pending) >= flushSize || wait <= 0:
		o.flush()
	case o.timer == nil:
		o.timer = time.AfterFunc(wait, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.flush()
		})
	}
}

// missingNewlines returns how many newlines, from 0 to 2, must be added to the text so far to end it with an empty line.
func (o *output) missingNewlines() int {
	switch {
	case len(o.tail) == 0 || string(o.tail) == "\n\n":
		return 0
	case o.tail[len(o.tail)-1] == '\n':
		return 1
	}
	return 2
}

// Separate implements [Out]: it puts an empty line before the next text of the answer, unless there was no text yet.
func (o *output) Separate() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(o.clean.flush())
	o.separateNext = true
}

// flush writes the pending text. The caller must hold mu.
func (o *output) flush() {
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	for len(o.pending) > 0 {
		n := len(o.pending)
		if n > flushSize {
			n = len(truncate(string(o.pending[:flushSize+4]), flushSize, ""))
		}
		if room := o.left - lineSpace; int64(n) > room && room > 0 {
			n = len(truncate(string(o.pending[:n]), int(room), ""))
			o.cut = true
		}
		o.event(caisson.RunEvent{Type: caisson.EventTextDelta, Delta: string(o.pending[:n])})
		o.pending = append(o.pending[:0], o.pending[n:]...)
		if o.left <= lineSpace {
			o.cut = o.cut || len(o.pending) > 0
			o.pending = o.pending[:0]
		}
	}
	o.lastFlush = time.Now()
}

// event writes an event if the limit permits it. The caller must hold mu.
func (o *output) event(e caisson.RunEvent) {
	if o.closed {
		return
	}
	if o.left <= lineSpace {
		o.cut = true
		return
	}
	o.status = ""
	o.left -= o.write(task.Line{RunEvent: e})
}

// write writes a line and returns its length in bytes. A line that the engine would reject is dropped: its length is 0.
func (o *output) write(l task.Line) int64 {
	n, err := o.w.Write(l)
	if err != nil && !errors.Is(err, task.ErrRefused) {
		o.onWriteError(err)
	}
	return int64(n)
}

// writeEvent writes pending text and then an event.
func (o *output) writeEvent(e caisson.RunEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush()
	o.event(e)
}

// Status implements [Out]: it reports a phase of the task. An unknown one becomes "running"; an immediate repetition is dropped.
func (o *output) Status(phase, label string) {
	if !slices.Contains(task.Phases, phase) {
		phase = "running"
	}
	label = shortLine(label)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush()
	if said := phase + " " + label; o.status != said { // of equal statuses in succession only the first is written
		o.event(caisson.RunEvent{Type: caisson.EventStatus, Phase: phase, Label: label})
		o.status = said
	}
}

// ToolStart implements [Out]: it reports the start of a tool call.
func (o *output) ToolStart(id, name string, args any) {
	o.writeEvent(caisson.RunEvent{Type: caisson.EventToolStart, CallID: nonEmptyLine(id), Tool: nonEmptyLine(name), Args: encodeArguments(args)})
}

// ToolResult implements [Out]: it reports the end of a tool call. A long result is truncated to task.MaxResult bytes.
func (o *output) ToolResult(id, result string, isError bool) {
	// A long result is truncated before it is cleaned, to save time, and again afterwards: cleaning can make it three times as long.
	result, rest := truncate(result, 2*task.MaxResult, ""), len(result)
	text := plainText(result)
	if rest -= len(result); rest > 0 || len(text) > task.MaxResult {
		more := "\n[…]"
		if rest > 0 {
			more = "\n[… and " + strconv.Itoa(rest) + " bytes more]"
			text += more
		}
		text = truncate(text, task.MaxResult, more)
	}
	o.writeEvent(caisson.RunEvent{Type: caisson.EventToolResult, CallID: nonEmptyLine(id), Result: text, IsError: isError})
}

// Usage implements [Out]: it reports the usage as the agent counts it. Negative numbers become 0.
func (o *output) Usage(u caisson.RunUsage) {
	for _, n := range []*int64{&u.Calls, &u.Failed, &u.Tokens.Input, &u.Tokens.Output, &u.Tokens.CacheRead, &u.Tokens.CacheWrite, (*int64)(&u.Cost)} {
		*n = max(0, *n)
	}
	o.writeEvent(caisson.RunEvent{Type: caisson.EventUsage, Usage: &u})
}

// Mark implements [Out]: it reports a point in time that the task has reached. Only the first report of each point is written.
func (o *output) Mark(mark string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush()
	if !o.marks[mark] && !o.closed {
		o.marks[mark] = true
		o.write(task.Line{RunEvent: caisson.RunEvent{Type: task.LineMark}, Mark: mark})
	}
}

// Log implements [Out]: it appends data to a log. Data for streams other than caisson.LogStdout and LogStderr is dropped.
func (o *output) Log(stream string, data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.logs[stream]
	if l == nil || o.closed {
		return
	}
	if l.left == 0 && len(data) > 0 {
		o.cut = true
		return
	}
	if int64(len(data)) > l.left {
		data, o.cut = data[:l.left], true
	}
	l.left -= int64(len(data))
	l.pending = append(l.pending, data...)
	switch {
	case len(l.pending) >= task.MaxData:
		o.flushLog(stream, l)
	case l.timer == nil && len(l.pending) > 0:
		l.timer = time.AfterFunc(logTime, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.flushLog(stream, l)
		})
	}
}

// flushLog writes the pending data of a log. The caller must hold mu.
func (o *output) flushLog(stream string, l *logStream) {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	for data := l.pending; len(data) > 0; {
		n := min(len(data), task.MaxData)
		o.write(task.Line{RunEvent: caisson.RunEvent{Type: task.LineLog}, Stream: stream, Data: data[:n]})
		l.left -= lineSpace // counts the overhead of the line, so that the size of many short lines is limited too
		data = data[n:]
	}
	l.left = max(0, l.left)
	l.pending = l.pending[:0]
}

// close writes pending text and logs. Later calls of methods have no effect. cut means that output was dropped due to a limit.
func (o *output) close() (cut bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return o.cut
	}
	o.add(o.clean.flush())
	o.flush()
	for stream, l := range o.logs {
		o.flushLog(stream, l)
	}
	o.closed = true
	return o.cut
}

// nonEmptyLine returns s as one short line of plain text, or "unknown" if that is empty.
func nonEmptyLine(s string) string {
	if s = shortLine(s); s != "" {
		return s
	}
	return "unknown"
}

// encodeArguments returns v as JSON of at most [task.MaxArgs] bytes. Longer JSON becomes a string that contains its beginning.
// The result is nil if v is null or cannot be encoded.
func encodeArguments(v any) json.RawMessage {
	if v == nil {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil
	}
	raw := task.CleanJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	if string(raw) == "null" {
		return nil
	}
	if len(raw) <= task.MaxArgs {
		return raw
	}
	// The limit is halved because JSON within a JSON string can take twice as many bytes, as quotes and backslashes are escaped.
	b.Reset()
	if err := enc.Encode(truncate(string(raw), task.MaxArgs/2-8, "…")); err != nil {
		return nil
	}
	return task.CleanJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}
