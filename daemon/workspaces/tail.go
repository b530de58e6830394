package workspaces

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// Limits of a command's output.
const (
	maxOutput    = 64 << 20 // bytes, beyond which the command is killed
	tailBytes    = 8 << 10  // bytes that are kept
	tailLines    = 8        // lines that are shown
	maxShownTail = 1000     // bytes that are shown
)

// An outputTail keeps the end of a command's output, and kills a command that writes too much. It is safe for concurrent use.
type outputTail struct {
	kill func() // kills the command; called once

	mu    sync.Mutex
	buf   []byte // the last tailBytes bytes; guarded by mu
	total int64  // bytes written; guarded by mu
}

// Write implements [io.Writer].
func (t *outputTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	before := t.total
	t.total += int64(len(p))
	over := before <= maxOutput && t.total > maxOutput
	t.buf = append(t.buf, p[max(0, len(p)-tailBytes):]...)
	if n := len(t.buf) - tailBytes; n > 0 {
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	t.mu.Unlock()
	if over {
		t.kill()
	}
	return len(p), nil
}

// drain reads from all of these until they end, and then closes whole.
func (t *outputTail) drain(from ...io.Reader) (whole <-chan struct{}) {
	var wg sync.WaitGroup
	for _, r := range from {
		wg.Go(func() { _, _ = io.Copy(t, r) }) // output that cannot be read is not shown
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	return done
}

// exceeded reports whether the command has written more than maxOutput.
func (t *outputTail) exceeded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total > maxOutput
}

// last returns the end of the output on one line, as a suffix for messages.
func (t *outputTail) last() string {
	t.mu.Lock()
	text := string(bytes.ToValidUTF8(t.buf, []byte("\ufffd")))
	t.mu.Unlock()
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, safetext.Escape(line))
		}
	}
	lines = lines[max(0, len(lines)-tailLines):]
	s := strings.Join(lines, " | ")
	if s == "" {
		return " and wrote nothing"
	}
	if len(s) > maxShownTail {
		s = s[len(s)-maxShownTail:]
		for !utf8.RuneStart(s[0]) {
			s = s[1:]
		}
		s = "…" + s
	}
	return "; it ended with: " + s
}
