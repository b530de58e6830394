package safetext

import (
	"bytes"
	"slices"
	"strconv"
)

// afterEsc processes a byte after ESC, or after ESC and intermediate bytes.
func (f *Filter) afterEsc(c byte) {
	switch {
	case f.state == afterESC && c == '[':
		f.state, f.seq = csi, append(f.seq, c)
	case f.state == afterESC && (c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_' || c == 'k'):
		// OSC, DCS, SOS, PM, APC and the title sequence of the program screen: strings that end with ST. All are blocked,
		// because they include clipboard access (OSC 52), titles, links with a misleading text and programmable keys.
		f.osc = c == ']'
		if f.seq = append(f.seq, c); f.mode == Log {
			f.reject() // The bytes of the string are then shown as text.
			return
		}
		f.state = inStr
	case c >= 0x20 && c < 0x30 && len(f.seq) < 4:
		f.state, f.seq = escapeInter, append(f.seq, c)
	case c >= 0x30 && c < 0x7f:
		f.seq = append(f.seq, c)
		if f.mode == Screen && escAllowed(f.seq[1:]) {
			f.modesChanged = true
			f.accept()
			return
		}
		f.reject()
	default:
		f.reject()
		f.step(c)
	}
}

// escAllowed reports whether ESC followed by s is harmless. The most important sequences not allowed are ESC % (leaves
// UTF-8), ESC Z (the terminal sends its identity), ESC c (clears earlier output) and single and locking shifts.
func escAllowed(s []byte) bool {
	switch len(s) {
	case 1:
		return bytes.IndexByte([]byte("78DEMH=>"), s[0]) >= 0
	case 2: // designation of a character set: ASCII, UK or line drawing
		return bytes.IndexByte([]byte("()*+"), s[0]) >= 0 && bytes.IndexByte([]byte("0AB"), s[1]) >= 0
	}
	return false
}

// inCSI processes a byte of a control sequence.
func (f *Filter) inCSI(c byte) {
	switch {
	case c >= 0x40 && c < 0x7f:
		f.seq = append(f.seq, c)
		f.endCSI()
	case c >= 0x20 && c < 0x40 && len(f.seq) < maxCSI:
		f.seq = append(f.seq, c)
	case c >= 0x20 && c < 0x40: // The sequence is too long; its remaining bytes are treated as text.
		f.reject()
		f.step(c)
	default:
		f.reject()
		f.step(c)
	}
}

// endCSI passes or rejects the complete control sequence in seq.
func (f *Filter) endCSI() {
	body, final := f.seq[2:len(f.seq)-1], f.seq[len(f.seq)-1]
	plain := len(bytes.Trim(body, "0123456789;:")) == 0
	switch {
	case final == 'm' && plain:
		f.modesChanged = f.modesChanged || f.mode == Screen
		f.accept()
	case f.mode == Log:
		f.reject()
	case plain && bytes.IndexByte([]byte("ABCDEFGHIKLPSTXZ@`abdefg"), final) >= 0 && smallNumbers(body):
		f.accept()
	case final == 'J' && plain && !slices.Contains(numbers(body), 3): // The parameter 3 would erase the scroll-back.
		f.accept()
	case final == 'r' && plain && smallNumbers(body):
		f.modesChanged = true
		f.accept()
	case (final == 's' || final == 'u') && len(body) == 0: // Save and restore the cursor.
		f.accept()
	case (final == 'h' || final == 'l') && len(body) > 0:
		f.modes(body, final)
	case (final == 'J' || final == 'K') && len(body) > 0 && body[0] == '?' && digits(body[1:]):
		f.accept()
	case final == 'q' && len(body) > 0 && body[len(body)-1] == ' ' && digits(body[:len(body)-1]): // Cursor shape.
		f.accept()
	case final == 'p' && string(body) == "!": // Soft reset.
		f.accept()
	default:
		// All other control sequences are dropped: queries (c, n, x, $p, >q, …), because the terminal's responses arrive like
		// typed input; t, which moves, resizes and reports windows; i, which prints; and keyboard protocols that stay active
		// after the program.
		f.reject()
	}
}

// privateModes are the DEC modes that full screen programs use. [Filter.Close] resets all but 12, which makes the cursor blink.
var privateModes = []int{1, 5, 6, 7, 12, 25, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1048, 1049, 2004, 2026}

// modes outputs a sequence that sets (CSI … h) or resets (CSI … l) modes, with only the modes that are allowed.
func (f *Filter) modes(body []byte, final byte) {
	allowed, prefix := []int{4}, ""
	if body[0] == '?' {
		allowed, prefix, body = privateModes, "?", body[1:]
	}
	out := []byte("\x1b[" + prefix)
	n := 0
	for _, m := range numbers(body) {
		if !slices.Contains(allowed, m) {
			continue
		}
		if n++; n > 1 {
			out = append(out, ';')
		}
		out = strconv.AppendInt(out, int64(m), 10)
		f.origin = f.origin || prefix != "" && m == 6 && final == 'h'
	}
	if n > 0 {
		f.modesChanged = true
		f.out = append(append(f.out, out...), final)
	}
	f.reset()
}

// numbers returns the parameters of a sequence, -1 for a parameter that is not a number or is greater than 9999.
func numbers(body []byte) []int {
	var ns []int
	for p := range bytes.SplitSeq(body, []byte(";")) {
		n, err := strconv.Atoi(string(p))
		if !digits(p) || err != nil || n > 9999 {
			n = -1
		}
		ns = append(ns, n)
	}
	return ns
}

// smallNumbers reports whether all parameters have at most four digits. A larger number of repetitions, lines to scroll or
// steps of the cursor could block a terminal.
func smallNumbers(body []byte) bool {
	for p := range bytes.SplitSeq(body, []byte(";")) {
		if len(p) > 4 || !digits(p) {
			return false
		}
	}
	return true
}

// digits reports whether p consists only of decimal digits.
func digits(p []byte) bool {
	for _, c := range p {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// inString drops the bytes of a string sequence up to its end. Only a filter in mode [Screen] has such sequences.
func (f *Filter) inString(c byte) {
	f.n++
	switch {
	case f.state == strEsc && c == '\\', c == '\a' && f.osc, c == 0x18, c == 0x1a, f.n > maxString:
		f.reset()
	case f.state == strEsc && c != 0x1b: // ESC without a backslash begins another sequence and thereby ends the string.
		f.reset()
		f.state, f.seq = afterESC, append(f.seq, 0x1b)
		f.step(c)
	case c == 0x1b:
		f.state = strEsc
	default:
		f.state = inStr
	}
}
