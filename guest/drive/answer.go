package drive

import "strings"

// An Answer assembles an agent's answer from parts of messages and whole messages, so that no text is lost or repeated. Agents
// send a message in parts, as a whole, or first in parts and then as a whole; at the end of a turn some repeat the last message
// or all messages.
//
// Text that has been written cannot be changed. If a whole message begins with the text that was written, only the rest of the
// message is written. A message that was written already, alone or as part of a longer text, is skipped. Any other message is
// written in full, after an empty line.
//
// An Answer must be used by one goroutine at a time.
type Answer struct {
	out   Out    // receives the text of the answer
	limit int    // maximum number of bytes of the written text that are kept, to recognise repetitions
	all   []byte // the text written so far, or its first limit bytes
	start int    // offset in the kept text at which the current message begins
	open  bool   // the current message has not been ended, and may continue
}

// NewAnswer returns an Answer that writes to out and keeps the first limit bytes of the text to recognise repetitions. limit
// should be at least the number of bytes that out accepts, because text after the first limit bytes may be repeated.
func NewAnswer(out Out, limit int) *Answer { return &Answer{out: out, limit: limit} }

// Delta adds the next part of the current message, or the first part of the next message if the current one has ended.
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

// remember appends s to the kept text of the answer, up to its limit.
func (a *Answer) remember(s string) { a.all = append(a.all, s[:min(len(s), a.limit-len(a.all))]...) }

// EndMessage ends the current message.
func (a *Answer) EndMessage() { a.open = false }

// Partial adds the text of the current message so far, for agents that send a growing message repeatedly: only the part that was
// not written yet is added. A text that does not begin with the text written so far is ignored.
func (a *Answer) Partial(s string) {
	if !a.open {
		a.Delta(s)
	} else if said := string(a.all[a.start:]); strings.HasPrefix(s, said) {
		a.Delta(s[len(said):])
	}
}

// Message adds a whole message and ends it. If the current message was begun with Delta, s is the whole text of that message;
// otherwise s is the next message.
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

// Final adds the unwritten part of the text that an agent sends at the end of a turn: the whole answer, or its last message.
func (a *Answer) Final(s string) {
	all := string(a.all)
	if rest, ok := remainder(s, all); ok {
		a.continueMessage(rest)
	} else if !strings.Contains(all, strings.TrimSpace(s)) {
		a.complete(s, all[a.start:])
	}
	a.EndMessage()
}

// complete writes the part of the message s that follows said, the text of the message written so far. If s does not begin with
// said, it is written as a new message, unless said contains it.
func (a *Answer) complete(s, said string) {
	if rest, ok := remainder(s, said); ok {
		a.continueMessage(rest)
	} else if !strings.Contains(said, strings.TrimSpace(s)) {
		a.EndMessage()
		a.Delta(s)
	}
}

// remainder returns the part of whole that follows said; ok is false if whole does not begin with said. White space around both
// texts is ignored in the comparison, and not repeated.
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

// Empty reports whether no text has been written.
func (a *Answer) Empty() bool { return len(a.all) == 0 }
