package safetext

import (
	"io"
	"unicode/utf8"
)

// Mode defines what a Filter passes besides plain text.
type Mode int

const (
	// Log is for output that is read as text: newlines, tabs, colours and other attributes pass. All other characters that are
	// not plain text, including bidirectional characters, are replaced by escapes.
	Log Mode = iota
	// Screen is for interactive programs: cursor movement, erasing, scrolling, attributes and the common modes of full
	// screen programs pass. Sequences that read from the terminal, make it send input, rename, resize or reprogram it,
	// or print are dropped.
	Screen
)

const (
	maxCSI    = 64      // Maximum length of a control sequence in bytes; programs do not send longer ones.
	maxString = 1 << 20 // Maximum length in bytes of an OSC, DCS or similar string; a longer one is treated as ended.
)

// state is the kind of escape sequence, if any, that a Filter is reading.
type state int

const (
	ground      state = iota // outside of an escape sequence
	afterESC                 // after the byte ESC
	escapeInter              // after ESC and intermediate bytes
	csi                      // inside a control sequence (CSI)
	inStr                    // inside a string: OSC, DCS, APC, PM or SOS
	strEsc                   // after ESC inside a string; a backslash then completes the string terminator (ST)
)

// A Filter passes only harmless output to a terminal, independently of how the input is split. It emits only complete
// sequences that it has recognised, so terminal and filter always agree about where a sequence ends.
//
// A Filter is not safe for concurrent use.
type Filter struct {
	w            io.Writer // the underlying writer
	mode         Mode      // Log or Screen
	state        state     // the kind of sequence that is being read
	seq          []byte    // The bytes read so far of the current sequence, or of an incomplete UTF-8 character.
	osc          bool      // The current string is an OSC, which BEL ends as well as ST.
	n            int       // Number of bytes read so far of the current string.
	cr           bool      // In mode Log: a carriage return was read and is held until the next byte is known.
	out          []byte    // the output of the current call of Write or Close
	modesChanged bool      // In mode Screen: a sequence with a lasting effect was passed, which Close must revert.
	origin       bool      // In mode Screen: origin mode was set, so that cursor positions are relative to the margins.
}

// NewFilter returns a filter that writes to w.
func NewFilter(w io.Writer, mode Mode) *Filter { return &Filter{w: w, mode: mode} }

// Write filters p. It returns len(p) and nil, or 0 and the error of the underlying writer.
func (f *Filter) Write(p []byte) (int, error) {
	f.out = f.out[:0]
	for i := 0; i < len(p); {
		if f.state == ground && len(f.seq) == 0 && !f.cr {
			n := plainRun(p[i:])
			f.out = append(f.out, p[i:i+n]...)
			if i += n; i == len(p) {
				break
			}
		}
		f.step(p[i])
		i++
	}
	if err := f.flush(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close ends the output: an incomplete sequence is dropped in mode [Screen] or shown in mode [Log], and modes that a program
// left on, such as the alternate screen and mouse reports, are switched off. It does not close the underlying writer.
func (f *Filter) Close() error {
	f.out = f.out[:0]
	f.endCR(0)
	if f.state == ground {
		f.invalid()
	} else {
		f.reject()
	}
	if f.origin { // Resetting origin mode moves the cursor, so it is done only if the mode was set.
		f.out = append(f.out, "\x1b[?6l"...)
	}
	if f.modesChanged {
		f.out = append(f.out, resetScreen...)
	}
	f.modesChanged, f.origin = false, false
	return f.flush()
}

// resetScreen resets the modes that Screen mode lets programs switch on. The cursor stays where it is, unless it was on the
// alternate screen: its position is saved first, because resetting the margins moves the cursor, and because 1049l restores a
// saved position.
const resetScreen = "\x1b[?1000;1002;1003;1004;1005;1006;1015;2004;2026;1;5l\x1b7\x1b[r\x1b8\x1b[?1049l\x1b[?25;7h\x1b[4l\x1b(B\x0f\x1b>\x1b[m"

// flush writes the output of the current call to the underlying writer.
func (f *Filter) flush() error {
	if len(f.out) == 0 {
		return nil
	}
	_, err := f.w.Write(f.out)
	return err
}

// plainRun returns the number of bytes at the start of p that are printable ASCII, newlines or tabs. Write copies them without
// examining each byte by its state.
func plainRun(p []byte) int {
	for i, c := range p {
		if (c < 0x20 && c != '\n' && c != '\t') || c >= 0x7f {
			return i
		}
	}
	return len(p)
}

// step processes one byte according to the state.
func (f *Filter) step(c byte) {
	switch f.state {
	case ground:
		f.text(c)
	case afterESC, escapeInter:
		f.afterEsc(c)
	case csi:
		f.inCSI(c)
	case inStr, strEsc:
		f.inString(c)
	}
}

// text processes a byte outside of an escape sequence.
func (f *Filter) text(c byte) {
	if f.cr {
		f.endCR(c)
	}
	if len(f.seq) > 0 { // seq contains the first bytes of a UTF-8 character.
		if c&0xc0 == 0x80 {
			f.seq = append(f.seq, c)
			if utf8.FullRune(f.seq) {
				f.character()
			}
			return
		}
		f.invalid()
	}
	switch {
	case c == 0x1b:
		f.state, f.seq = afterESC, append(f.seq[:0], c)
	case c < 0x20 || c == 0x7f:
		f.control(c)
	case c < 0x80:
		f.out = append(f.out, c)
	default:
		f.seq = append(f.seq[:0], c)
		if utf8.FullRune(f.seq) { // The byte cannot be the first byte of a UTF-8 character.
			f.invalid()
		}
	}
}

// character outputs the UTF-8 character in seq, of which all bytes were read. If seq is not a valid character, invalid outputs
// its bytes.
func (f *Filter) character() {
	r, n := utf8.DecodeRune(f.seq)
	if r == utf8.RuneError && n == 1 {
		f.invalid()
		return
	}
	ok := r >= 0xa0 // Some terminals treat U+0080 to U+009F as control functions, such as U+009B for CSI.
	if f.mode == Log {
		ok = Safe(r) || isJoiner(r)
	}
	switch {
	case ok:
		f.out = append(f.out, f.seq[:n]...)
	case f.mode == Log:
		f.out = append(f.out, escapeOne(string(f.seq[:n]))...)
	}
	f.seq = f.seq[:0]
}

// isJoiner reports whether r only joins or separates glyphs, as emoji and several scripts require in running text.
func isJoiner(r rune) bool { return r == 0x200c || r == 0x200d || r == 0x00ad }

// invalid outputs the bytes in seq, which are not part of a valid UTF-8 character: as escapes in mode Log, and as U+FFFD in
// mode Screen.
func (f *Filter) invalid() {
	for _, c := range f.seq {
		if f.mode == Log {
			f.out = append(f.out, escapeOne(string([]byte{c}))...)
			continue
		}
		f.out = utf8.AppendRune(f.out, utf8.RuneError)
	}
	f.seq = f.seq[:0]
}

// control processes a C0 control character or DEL.
func (f *Filter) control(c byte) {
	if f.mode == Log {
		switch c {
		case '\n', '\t':
			f.out = append(f.out, c)
		case '\r':
			f.cr = true
		default:
			f.out = append(f.out, escapeOne(string([]byte{c}))...)
		}
		return
	}
	switch c {
	case '\a', '\b', '\t', '\n', '\v', '\f', '\r':
		f.out = append(f.out, c)
	case 0x0e, 0x0f: // Shift out and shift in, used for line drawing.
		f.out = append(f.out, c)
		f.modesChanged = true
	}
	// All other control characters are dropped: ENQ requests an answerback, DC1 and DC3 stop the terminal, CAN and SUB have a
	// meaning only in a sequence.
}

// endCR outputs a held carriage return when next, the byte after it, is known (0 at the end of the output). Before a newline
// the carriage return passes; elsewhere it is escaped, because it would let the program overwrite the line.
func (f *Filter) endCR(next byte) {
	if !f.cr {
		return
	}
	f.cr = false
	if next == '\n' {
		f.out = append(f.out, '\r')
		return
	}
	f.out = append(f.out, `\x0d`...)
}

// reject ends the current sequence without passing it. In mode Log its bytes are output as text, with escapes.
func (f *Filter) reject() {
	if f.mode == Log {
		for _, c := range f.seq {
			if c >= 0x20 && c < 0x7f {
				f.out = append(f.out, c)
				continue
			}
			f.out = append(f.out, escapeOne(string([]byte{c}))...)
		}
	}
	f.reset()
}

// accept outputs the current sequence unchanged and ends it.
func (f *Filter) accept() {
	f.out = append(f.out, f.seq...)
	f.reset()
}

// reset forgets the current sequence: the next byte is outside of sequences.
func (f *Filter) reset() { f.state, f.seq, f.n = ground, f.seq[:0], 0 }
