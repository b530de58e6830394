package terminal

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// queries answers the queries that a program sends to its terminal. Viewers do not answer them: there may be none, and their
// filters drop queries, because the answers would be like typed input. Programs wait seconds for an answer, some after each
// change of the size.
//
// It follows the output only as far as a single sequence sets the cursor's position. While the position is not known, it does not
// answer queries for it.
type queries struct {
	state    queryState
	seq      []byte // parameters of a control sequence so far
	row, col int    // position of the cursor, counted from 1
	known    bool   // row and col are the position of the cursor
}

// queryState is the position in a sequence.
type queryState int

const (
	queryGround queryState = iota // outside of sequences
	queryEsc                      // after ESC
	queryInter                    // after ESC and intermediate bytes
	queryCSI                      // in a control sequence
	queryString                   // in an OSC or another string
	queryEnd                      // after ESC in a string
)

// maxQuery is the maximum number of parameter bytes of a control sequence.
const maxQuery = 64

// attributes is the answer of a terminal of level 2 with colours.
const attributes = "\x1b[?62;22c"

func newQueries() *queries { return &queries{row: 1, col: 1, known: true} }

// read reads output, and returns the answers of a terminal of this size to the queries in it.
func (q *queries) read(out []byte, rows, cols uint16) (answers []byte) {
	for _, c := range out {
		switch q.state {
		case queryGround:
			switch c {
			case 0x1b:
				q.state = queryEsc
			case 0, '\a', 0x0e, 0x0f:
			default:
				q.known = false
			}
		case queryEsc:
			q.escape(c)
		case queryInter:
			if c < 0x20 || c > 0x2f {
				q.state, q.known = queryGround, false
			}
		case queryCSI:
			switch {
			case c >= 0x40 && c < 0x7f:
				q.state = queryGround
				answers = append(answers, q.control(string(q.seq), c, int(rows), int(cols))...)
			case c >= 0x20 && c < 0x40 && len(q.seq) < maxQuery:
				q.seq = append(q.seq, c)
			default:
				q.state, q.known = queryGround, false
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

// escape handles a byte after ESC.
func (q *queries) escape(c byte) {
	switch {
	case c == '[':
		q.state, q.seq = queryCSI, q.seq[:0]
	case bytes.IndexByte([]byte("]PX^_"), c) >= 0:
		q.state = queryString
	case c >= 0x20 && c <= 0x2f:
		q.state = queryInter
	case c == 0x1b:
	default: // 7, =, > and the end of a string do not move the cursor
		q.state, q.known = queryGround, q.known && bytes.IndexByte([]byte(`7=>\`), c) >= 0
	}
}

// control handles a control sequence, and returns the answer to it.
func (q *queries) control(params string, final byte, rows, cols int) string {
	switch request := params + string(final); {
	case request == "6n" && q.known:
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
		q.known = okRow && okCol
	case final == 'h' || final == 'l':
		for mode := range strings.SplitSeq(strings.TrimPrefix(params, "?"), ";") {
			switch mode {
			case "3", "6", "47", "1047", "1048", "1049": // width, origin, and the other screen
				q.known = false
			}
		}
	case params != "" && strings.ContainsRune("<=>?", rune(params[0])) || strings.IndexByte("mnJKXqc", final) >= 0:
	default:
		q.known = false
	}
	return ""
}

// position parses a parameter that is a position, by default 1.
func position(s string) (n int, ok bool) {
	if s == "" {
		return 1, true
	}
	n, err := strconv.Atoi(s)
	return max(n, 1), err == nil && n >= 0
}
