package workspaces

import (
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// Limits of a command's output.
const (
	maxOutput    = 64 << 20 // bytes of output, beyond which the command is killed
	tailBytes    = 8 << 10  // bytes at the end of the output that are kept
	tailLines    = 8        // lines at the end of the output that messages contain
	maxShownTail = 1000     // bytes at the end of the output that messages contain
)

// An outputTail keeps the end of a command's output, and kills a command that writes too much. It is safe for concurrent use.
type outputTail struct {
	kill  func()       // kills the command; called once
	kept  excerpt.Tail // the last tailBytes bytes of the output
	total atomic.Int64 // bytes that the command has written
}

// Write implements [io.Writer].
func (t *outputTail) Write(p []byte) (int, error) {
	n := int64(len(p))
	if total := t.total.Add(n); total > maxOutput && total-n <= maxOutput {
		t.kill()
	}
	return t.kept.Write(p)
}

// drain starts to read from all readers. whole is closed when all of them have ended.
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
func (t *outputTail) exceeded() bool { return t.total.Load() > maxOutput }

// last returns the end of the output on one line, as a suffix for messages.
func (t *outputTail) last() string {
	text := strings.ToValidUTF8(t.kept.String(), "\ufffd")
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
