package drivetest

import (
	"os"
	"strings"
	"syscall"
)

// A Voice is the implementation of a fake agent's protocol.
type Voice interface {
	// Listen waits for the prompt and returns it.
	Listen() string
	// Delta writes a part of the answer; Message a whole message, whose parts may have been written before.
	Delta(s string)
	Message(s string)
	// End ends the turn regularly; the program exits soon after.
	End()
}

// A Kind is a driver and a protocol that it implements.
type Kind struct {
	Name   string
	Driver string
	Events map[string]string
	Voice  func() Voice
	// Parts means that the parts of an answer are concatenated; otherwise each is a message. Repeats means that a whole message
	// may follow its parts, Silent that a regular end without an answer is a success.
	Parts, Repeats, Silent bool
	// Tidy means that the protocol has a line that ends a turn; otherwise the exit of the program ends it.
	Tidy bool
	// Noise means that lines outside the protocol are ignored; otherwise they are text.
	Noise bool
	// Brief leaves out tests of processes, which is enough for all but one of the kinds of a driver.
	Brief bool
}

// Agents returns the fake agents of some kinds, by the names that Conform uses.
func Agents(kinds ...Kind) map[string]func() {
	all := map[string]func(){}
	for _, k := range kinds {
		for name, behave := range behaviours {
			all[k.Name+"/"+name] = func() { behave(k.Voice()) }
		}
	}
	return all
}

// tokens is the number of deltas, of one character each, of the agent tokens.
const tokens = 100_000

func token(i int) string { return string(rune('a' + i%26)) }

// odd is text that is unsafe to print, and oddText the expected safe text.
const (
	odd     = "a\x00b\x1b[31mred\x1b[0m \x1b]52;c;AAAA\x07\u202eabc\u2066 \x07\x7fend"
	oddText = "abred \u202eabc\u2066 end"
)

// flood is the output of the agent flood, in bytes: far more than any limit.
const flood = 256 << 20

// behaviours are the fake agents.
var behaviours = map[string]func(Voice){
	"answer": func(v Voice) {
		v.Delta("You said: " + v.Listen())
		v.End()
	},
	"streamed": func(v Voice) { // the messages are repeated after their parts
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
	"longer": func(v Voice) { // the whole message is longer than its parts
		v.Listen()
		v.Delta("one ")
		v.Message("one two")
		v.End()
	},
	"other": func(v Voice) { // the whole message differs from its parts
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
	"line": func(v Voice) { // a very long line
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
	"daemon": func(v Voice) { // the child has a new session and ignores signals
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
	"mute": func(v Voice) { // closes its output and keeps running
		v.Listen()
		v.Delta("the answer")
		os.Stdout.Close()
		syscall.Close(1)
		forever()
	},
	"deaf": func(v Voice) { // does not read its input
		forever()
	},
	"write": func(v Voice) {
		v.Listen()
		os.WriteFile("made.txt", []byte("one\ntwo\n"), 0o644)
		v.Delta("written")
		v.End()
	},
	"late": func(v Voice) { // ends its turn, but does not exit
		ignoreSignals()
		v.Listen()
		v.Delta("the answer")
		v.End()
		forever()
	},
}
