package terminal

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// queryAnswerer answers the queries that a program sends to its terminal, such as for the cursor's position. Viewers do not
// answer queries: there may be no viewer, and viewers filter queries out of the output, because an answer would be taken for
// typed input. Programs wait seconds for an answer, some after each change of the terminal's size.
//
// The cursor's position is known at the beginning and after a sequence that sets it, until the program writes anything else that
// could move the cursor. While it is not known, queries for it are not answered.
type queryAnswerer struct {
	state         queryState // position in a terminal sequence
	seq           []byte     // parameters of the current control sequence so far
	row, col      int        // position of the cursor, counted from 1, if it is known
	positionKnown bool       // the position of the cursor is known
}

// queryState is the position of a [queryAnswerer] in a terminal sequence.
type queryState int

const (
	queryGround queryState = iota // in text, outside of terminal sequences
	queryEsc                      // after ESC, which begins a terminal sequence
	queryInter                    // after ESC and intermediate bytes
	queryCSI                      // in a control sequence, which begins with ESC [
	queryString                   // in a string, such as OSC, which begins with ESC ]
	queryEnd                      // after ESC in a string, which may end it
)

// maxQuery is the maximum length of the parameters of a control sequence, in bytes.
const maxQuery = 64

// attributes is the answer to the query for the terminal's attributes: a VT220 with colours.
const attributes = "\x1b[?62;22c"

// newQueryAnswerer returns an answerer for a terminal whose cursor is in the upper left corner.
func newQueryAnswerer() *queryAnswerer { return &queryAnswerer{row: 1, col: 1, positionKnown: true} }

// read processes output of the program, and returns the answers of a terminal with this size to the queries in the output.
func (q *queryAnswerer) read(out []byte, rows, cols uint16) (answers []byte) {
	for _, c := range out {
		switch q.state {
		case queryGround:
			switch c {
			case 0x1b:
				q.state = queryEsc
			case 0, '\a', 0x0e, 0x0f:
			default:
				q.positionKnown = false
			}
		case queryEsc:
			q.escape(c)
		case queryInter:
			if c < 0x20 || c > 0x2f {
				q.state, q.positionKnown = queryGround, false
			}
		case queryCSI:
			switch {
			case c >= 0x40 && c < 0x7f:
				q.state = queryGround
				answers = append(answers, q.control(string(q.seq), c, int(rows), int(cols))...)
			case c >= 0x20 && c < 0x40 && len(q.seq) < maxQuery:
				q.seq = append(q.seq, c)
			default:
				q.state, q.positionKnown = queryGround, false
			}
		case queryString:
			switch c {
			case 0x1b:
				q.state = queryEnd
			case '\a', 0x18, 0x1a:
				q.state = queryGround
			}
		case queryEnd:
			q.state = queryEsc
			q.escape(c)
		}
	}
	return answers
}

// escape handles the byte c after ESC.
func (q *queryAnswerer) escape(c byte) {
	switch {
	case c == '[':
		q.state, q.seq = queryCSI, q.seq[:0]
	case bytes.IndexByte([]byte("]PX^_"), c) >= 0:
		q.state = queryString
	case c >= 0x20 && c <= 0x2f:
		q.state = queryInter
	case c == 0x1b:
	default: // the sequence ends with c, and moves the cursor unless c is 7, =, > or the end of a string, \
		q.state, q.positionKnown = queryGround, q.positionKnown && bytes.IndexByte([]byte(`7=>\`), c) >= 0
	}
}

// control handles a control sequence with these parameters and final byte, and returns the answer if it is a query.
func (q *queryAnswerer) control(params string, final byte, rows, cols int) string {
	switch request := params + string(final); {
	case request == "6n" && q.positionKnown:
		return fmt.Sprintf("\x1b[%d;%dR", min(q.row, rows), min(q.col, cols))
	case request == "5n":
		return "\x1b[0n"
	case request == "c" || request == "0c":
		return attributes
	case final == 'H' || final == 'f':
		row, col, _ := strings.Cut(params, ";")
		var okRow, okCol bool
		q.row, okRow = position(row)
		q.col, okCol = position(col)
		q.positionKnown = okRow && okCol
	case final == 'h' || final == 'l':
		for mode := range strings.SplitSeq(strings.TrimPrefix(params, "?"), ";") {
			switch mode {
			case "3", "6", "47", "1047", "1048", "1049": // these modes change width, origin or screen, and may move the cursor
				q.positionKnown = false
			}
		}
	case params != "" && strings.ContainsRune("<=>?", rune(params[0])) || strings.IndexByte("mnJKXqc", final) >= 0:
	default:
		q.positionKnown = false
	}
	return ""
}

// position parses a parameter of a control sequence that is a row or a column. The default is 1.
func position(s string) (n int, ok bool) {
	if s == "" {
		return 1, true
	}
	n, err := strconv.Atoi(s)
	return max(n, 1), err == nil && n >= 0
}
