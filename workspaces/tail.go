package workspaces

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// Bounds of what a command writes.
const (
	maxOutput    = 64 << 20 // more than that ends it
	tailBytes    = 8 << 10  // that are kept
	tailLines    = 8        // that are shown
	maxShownTail = 1000     // bytes
)

// A tail keeps the end of what a command writes, and ends one that writes too much. It is safe for concurrent use.
type tail struct {
	end func() // the command; called once

	mu    sync.Mutex
	buf   []byte // guarded by mu
	total int64  // guarded by mu
}

func newTail(end func()) *tail { return &tail{end: end} }

// Write implements [io.Writer].
func (t *tail) Write(p []byte) (int, error) {
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
		t.end()
	}
	return len(p), nil
}

// drain reads from all of these until they end; whole is closed then.
func (t *tail) drain(from ...io.Reader) (whole <-chan struct{}) {
	var wg sync.WaitGroup
	for _, r := range from {
		wg.Go(func() { _, _ = io.Copy(t, r) }) // what cannot be read is not shown
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	return done
}

// flooded reports whether more was written than a command may write.
func (t *tail) flooded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total > maxOutput
}

// last is the end of the output on one line, to be put after what is said of the command.
func (t *tail) last() string {
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
