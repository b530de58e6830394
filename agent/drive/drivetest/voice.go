package drivetest

import (
	"os"
	"strings"
	"syscall"
)

// A Voice is how a fake agent of some driver speaks to it.
type Voice interface {
	// Listen waits for the prompt and returns it.
	Listen() string
	// Delta says a part of the answer; Message a whole message, which may have been said in parts before.
	Delta(s string)
	Message(s string)
	// End ends the turn in good order, the program soon after.
	End()
}

// A Kind is a driver and a way of speaking that it understands.
type Kind struct {
	Name   string
	Driver string
	Events map[string]string
	Voice  func() Voice
	// Parts says that the parts of an answer are put together as they are; else each is a message. Repeats says that messages may be said as
	// a whole after their parts, Silent that it is fine to end in good order without an answer.
	Parts, Repeats, Silent bool
	// Tidy says that an end in good order must be said; else the end of the program is enough.
	Tidy bool
	// Noise says that lines which are none of the voice's are passed over; else they are text.
	Noise bool
	// Brief leaves out what is about processes, not about what is said: enough for one of several kinds of a driver.
	Brief bool
}

// Agents returns the fake agents of some kinds, by names as Conform uses them.
func Agents(kinds ...Kind) map[string]func() {
	all := map[string]func(){}
	for _, k := range kinds {
		for name, behave := range behaviours {
			all[k.Name+"/"+name] = func() { behave(k.Voice()) }
		}
	}
	return all
}

// tokens is 100,000 deltas of one character.
const tokens = 100_000

func token(i int) string { return string(rune('a' + i%26)) }

// odd is what no one should print, and oddText what may be left of it.
const (
	odd     = "a\x00b\x1b[31mred\x1b[0m \x1b]52;c;AAAA\x07\u202eabc\u2066 \x07\x7fend"
	oddText = "abred \u202eabc\u2066 end"
)

// flood is what an agent prints that does not stop, in bytes: far more than is kept anywhere.
const flood = 256 << 20

// behaviours are what fake agents do.
var behaviours = map[string]func(Voice){
	"answer": func(v Voice) {
		v.Delta("You said: " + v.Listen())
		v.End()
	},
	"streamed": func(v Voice) { // and repeated
		v.Listen()
		v.Delta("one ")
		v.Delta("two")
		v.Message("one two")
		v.Delta("three")
		v.Message("three")
		v.End()
	},
	"whole": func(v Voice) {
		v.Listen()
		v.Message("the answer")
		v.End()
	},
	"longer": func(v Voice) { // the whole has more than its parts
		v.Listen()
		v.Delta("one ")
		v.Message("one two")
		v.End()
	},
	"other": func(v Voice) { // the whole differs from its parts
		v.Listen()
		v.Delta("cats")
		v.Message("dogs")
		v.End()
	},
	"silent": func(v Voice) {
		v.Listen()
		v.End()
	},
	"leave": func(v Voice) { v.Listen() },
	"crash": func(v Voice) {
		v.Listen()
		v.Delta("so far")
		os.Stderr.WriteString("panic: it broke\n")
		os.Exit(3)
	},
	"hang": func(v Voice) {
		v.Listen()
		v.Delta("so far")
		forever()
	},
	"stubborn": func(v Voice) {
		ignoreSignals()
		v.Listen()
		v.Delta("so far")
		forever()
	},
	"flood": func(v Voice) {
		v.Listen()
		v.Delta("beginning ")
		line := []byte(strings.Repeat("x", 1<<20-1) + "\n")
		for range flood / len(line) {
			if _, err := os.Stdout.Write(line); err != nil {
				return
			}
		}
		v.End()
	},
	"line": func(v Voice) { // that does not end
		v.Listen()
		v.Delta("before")
		os.Stdout.WriteString(strings.Repeat("x", 20<<20) + "\n")
		v.Delta(" after")
		v.End()
	},
	"errors": func(v Voice) {
		v.Listen()
		line := []byte(strings.Repeat("e", 1<<20-1) + "\n")
		for range 64 {
			os.Stderr.Write(line)
		}
		v.Delta("done")
		v.End()
	},
	"garbage": func(v Voice) {
		v.Listen()
		os.Stdout.WriteString("{\"type\":\nnot json\n\n[1,2\n\xff\xfe\n{}\nnull\n")
		v.Delta("the answer")
		v.End()
	},
	"odd": func(v Voice) {
		v.Listen()
		v.Delta(odd)
		v.End()
	},
	"tokens": func(v Voice) {
		v.Listen()
		for i := range tokens {
			v.Delta(token(i))
		}
		v.End()
	},
	"background": func(v Voice) { // a child keeps the output open
		v.Listen()
		child("sleep", false)
		v.Delta("the answer")
		v.End()
	},
	"daemon": func(v Voice) { // a child has left the session, and ignores signals
		v.Listen()
		child("sleep", true)
		v.Delta("the answer")
		v.End()
	},
	"bomb": func(v Voice) {
		v.Listen()
		v.Delta("boom")
		bomb()
	},
	"mute": func(v Voice) { // closes its output and lives on
		v.Listen()
		v.Delta("the answer")
		os.Stdout.Close()
		syscall.Close(1)
		forever()
	},
	"deaf": func(v Voice) { // never reads
		forever()
	},
	"write": func(v Voice) {
		v.Listen()
		os.WriteFile("made.txt", []byte("one\ntwo\n"), 0o644)
		v.Delta("written")
		v.End()
	},
	"late": func(v Voice) { // ends its turn, but not itself
		ignoreSignals()
		v.Listen()
		v.Delta("the answer")
		v.End()
		forever()
	},
}
