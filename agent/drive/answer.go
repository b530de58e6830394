package drive

import "strings"

// An Answer puts an agent's answer together from parts and from wholes, so that nothing is lost and nothing is said twice. Agents stream a message and
// then say it again as a whole, or only do the one or the other; at the end some repeat the last message or all of them.
//
// Text that has been said cannot be taken back. A whole that continues what was said of it is said from there on; one that was said already, in
// full or as part of more, is not said again; and one that differs follows in full, after an empty line.
//
// It is used by one goroutine at a time.
type Answer struct {
	out   Out
	limit int    // bytes that are remembered
	all   []byte // everything said
	start int    // where in all the present message begins
	open  bool   // the present message may go on
}

// NewAnswer returns an Answer to out that remembers at most limit bytes. Of a longer one repetitions are not told from text; it is cut off
// anyway if limit is the bound of out.
func NewAnswer(out Out, limit int) *Answer { return &Answer{out: out, limit: limit} }

// Delta is the next part of the present message, or the first one of the next.
func (a *Answer) Delta(s string) {
	if s == "" {
		return
	}
	if !a.open {
		a.open = true
		if len(a.all) > 0 {
			a.out.Separate()
			a.remember("\n\n")
		}
		a.start = len(a.all)
	}
	a.remember(s)
	a.out.Text(s)
}

func (a *Answer) remember(s string) { a.all = append(a.all, s[:min(len(s), a.limit-len(a.all))]...) }

// Break ends the present message.
func (a *Answer) Break() { a.open = false }

// Partial is the present message as far as it goes: each call repeats the one before and goes on.
func (a *Answer) Partial(s string) {
	if !a.open {
		a.Delta(s)
	} else if said := string(a.all[a.start:]); strings.HasPrefix(s, said) {
		a.Delta(s[len(said):])
	}
}

// Message is the whole of the present message if it was begun with Delta, else of another, and ends it.
func (a *Answer) Message(s string) {
	if !a.open {
		a.Delta(s)
		a.Break()
		return
	}
	said := string(a.all[a.start:])
	a.complete(s, said)
	a.Break()
}

// Final is the whole answer, or the last message of it, as the agent says at its end.
func (a *Answer) Final(s string) {
	all := string(a.all)
	if rest, ok := after(s, all); ok {
		a.rest(rest)
	} else if !strings.Contains(all, strings.TrimSpace(s)) {
		a.complete(s, all[a.start:])
	}
	a.Break()
}

// complete says what s has and said has not.
func (a *Answer) complete(s, said string) {
	if rest, ok := after(s, said); ok {
		a.rest(rest)
	} else if !strings.Contains(said, strings.TrimSpace(s)) {
		a.Break()
		a.Delta(s)
	}
}

// after returns what whole has after said. White space around either makes no difference, but none of it is said twice.
func after(whole, said string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(whole, said); ok {
		return rest, true
	}
	part := strings.TrimSpace(said)
	rest, ok = strings.CutPrefix(strings.TrimSpace(whole), part)
	if !strings.HasSuffix(said, part) {
		rest = strings.TrimLeft(rest, " \t\r\n")
	}
	return rest, ok
}

// rest goes on with the present message, also if it had ended.
func (a *Answer) rest(s string) {
	if strings.TrimSpace(s) == "" {
		return
	}
	if len(a.all) > 0 {
		a.open = true
	}
	a.Delta(s)
}

// Empty reports whether nothing has been said.
func (a *Answer) Empty() bool { return len(a.all) == 0 }
