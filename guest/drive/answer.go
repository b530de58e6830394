package drive

import "strings"

// An Answer assembles an agent's answer from parts and whole messages, so that nothing is lost or repeated. Agents stream a
// message and then repeat it as a whole, or do only one of the two; at the end some repeat the last message or all of them.
//
// Text that has been written cannot be changed. If a whole message continues the text that was written, only the rest is
// written. A message that was written already, alone or as part of a longer text, is skipped. A message that differs is written
// in full, after an empty line.
//
// It is used by one goroutine at a time.
type Answer struct {
	out   Out
	limit int    // maximum length of all, in bytes
	all   []byte // all text written so far
	start int    // offset in all at which the current message begins
	open  bool   // the current message may continue
}

// NewAnswer returns an Answer that writes to out and keeps the first limit bytes of the text. Repetitions beyond them are not
// recognised; they are cut off anyway if limit is also the limit of out.
func NewAnswer(out Out, limit int) *Answer { return &Answer{out: out, limit: limit} }

// Delta adds the next part of the current message, or the first part of the next one.
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

// remember adds s to all, up to the limit.
func (a *Answer) remember(s string) { a.all = append(a.all, s[:min(len(s), a.limit-len(a.all))]...) }

// EndMessage ends the current message.
func (a *Answer) EndMessage() { a.open = false }

// Partial adds the current message up to now: each call repeats the text of the previous one and continues it.
func (a *Answer) Partial(s string) {
	if !a.open {
		a.Delta(s)
	} else if said := string(a.all[a.start:]); strings.HasPrefix(s, said) {
		a.Delta(s[len(said):])
	}
}

// Message adds a whole message and ends it. It is the current message if that was begun with Delta, otherwise the next one.
func (a *Answer) Message(s string) {
	if !a.open {
		a.Delta(s)
		a.EndMessage()
		return
	}
	said := string(a.all[a.start:])
	a.complete(s, said)
	a.EndMessage()
}

// Final adds the whole answer, or its last message, as the agent sends it at the end.
func (a *Answer) Final(s string) {
	all := string(a.all)
	if rest, ok := remainder(s, all); ok {
		a.continueMessage(rest)
	} else if !strings.Contains(all, strings.TrimSpace(s)) {
		a.complete(s, all[a.start:])
	}
	a.EndMessage()
}

// complete writes the part of s that is not in said, the text of the message so far.
func (a *Answer) complete(s, said string) {
	if rest, ok := remainder(s, said); ok {
		a.continueMessage(rest)
	} else if !strings.Contains(said, strings.TrimSpace(s)) {
		a.EndMessage()
		a.Delta(s)
	}
}

// remainder returns the part of whole that follows said. White space around either is ignored in the comparison, and not repeated.
func remainder(whole, said string) (rest string, ok bool) {
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

// continueMessage continues the current message, even if it had ended.
func (a *Answer) continueMessage(s string) {
	if strings.TrimSpace(s) == "" {
		return
	}
	if len(a.all) > 0 {
		a.open = true
	}
	a.Delta(s)
}

// Empty reports whether nothing has been written.
func (a *Answer) Empty() bool { return len(a.all) == 0 }
