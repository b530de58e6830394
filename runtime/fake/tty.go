package fake

import (
	"bytes"
	"context"
	"sync"
)

// Control characters of the line discipline.
const (
	keyInterrupt = 0x03 // ^C, which sends SIGINT
	keyEOF       = 0x04 // ^D, which ends the input
	keyErase     = 0x7f // Backspace (DEL)
)

// A tty is a terminal in canonical mode: input is echoed and delivered line by line, and LF in output becomes CR LF.
type tty struct {
	in, out   *pipe  // in: from the terminal to the process; out: from the process, and the echo of input, to the user
	interrupt func() // sends SIGINT to the process; called for ^C

	mu         sync.Mutex
	rows, cols uint16 // size of the terminal; guarded by mu
	line       []byte // input that has not been delivered yet; guarded by mu
}

// size returns the terminal's rows and columns.
func (t *tty) size() (rows, cols uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows, t.cols
}

// resize sets the terminal's rows and columns.
func (t *tty) resize(rows, cols uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows, t.cols = rows, cols
}

// write writes output of a process.
func (t *tty) write(ctx context.Context, b []byte) (int, error) {
	if _, err := t.out.write(ctx, bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// input processes input of the user.
func (t *tty) input(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range b {
		if err := t.inputByte(c); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// inputByte processes one byte of input. The caller must hold t.mu.
func (t *tty) inputByte(c byte) error {
	ctx := context.Background()
	switch c {
	case keyInterrupt:
		t.line = nil
		t.interrupt()
		return nil
	case keyEOF:
		if len(t.line) == 0 {
			t.in.sendEOF()
			return nil
		}
		return t.flush(ctx)
	case keyErase:
		t.line = t.line[:max(0, len(t.line)-1)]
		return nil
	case '\r', '\n':
		t.line = append(t.line, '\n')
		if _, err := t.out.write(ctx, []byte("\r\n")); err != nil {
			return err
		}
		return t.flush(ctx)
	}
	t.line = append(t.line, c)
	_, err := t.out.write(ctx, []byte{c})
	return err
}

// flush delivers the current line to the process. The caller must hold t.mu.
func (t *tty) flush(ctx context.Context) error {
	_, err := t.in.write(ctx, t.line)
	t.line = nil
	return err
}

// A ttyInput is the caller's end of a terminal's input. Closing it sends ^D.
type ttyInput struct {
	tty  *tty
	once sync.Once // makes only the first call of Close take effect
}

func (k *ttyInput) Write(b []byte) (int, error) { return k.tty.input(b) }

func (k *ttyInput) Close() (err error) {
	k.once.Do(func() { _, err = k.tty.input([]byte{keyEOF}) })
	return err
}
