package drive_test

import (
	"os"
	"strings"
	"syscall"
)

// A Protocol is the implementation of a fake agent's protocol.
type Protocol interface {
	// ReadPrompt waits for the prompt and returns it.
	ReadPrompt() string
	// Delta writes a part of the answer; Message a whole message, whose parts may have been written before.
	Delta(s string)
	Message(s string)
	// End ends the turn regularly; the program exits soon after.
	End()
}

// A Kind is a driver and a protocol that it implements.
type Kind struct {
	Name        string
	Driver      string
	Events      map[string]string
	NewProtocol func() Protocol
	// Parts means that the parts of an answer are concatenated; otherwise each is a message. Repeats means that a whole message
	// may follow its parts, Silent that a regular end without an answer is a success.
	Parts, Repeats, Silent bool
	// HasEndLine means that the protocol has a line that ends a turn; otherwise the exit of the program ends it.
	HasEndLine bool
	// IgnoresNoise means that lines outside the protocol are ignored; otherwise they are text.
	IgnoresNoise bool
	// SkipProcessTests leaves out tests of processes, which is enough for all but one of the kinds of a driver.
	SkipProcessTests bool
}

// Agents returns the fake agents of some kinds, by the names that Conform uses.
func Agents(kinds ...Kind) map[string]func() {
	all := map[string]func(){}
	for _, k := range kinds {
		for name, behave := range behaviours {
			all[k.Name+"/"+name] = func() { behave(k.NewProtocol()) }
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
var behaviours = map[string]func(Protocol){
	"answer": func(v Protocol) {
		v.Delta("You said: " + v.ReadPrompt())
		v.End()
	},
	"streamed": func(v Protocol) { // the messages are repeated after their parts
		v.ReadPrompt()
		v.Delta("one ")
		v.Delta("two")
		v.Message("one two")
		v.Delta("three")
		v.Message("three")
		v.End()
	},
	"whole": func(v Protocol) {
		v.ReadPrompt()
		v.Message("the answer")
		v.End()
	},
	"longer": func(v Protocol) { // the whole message is longer than its parts
		v.ReadPrompt()
		v.Delta("one ")
		v.Message("one two")
		v.End()
	},
	"other": func(v Protocol) { // the whole message differs from its parts
		v.ReadPrompt()
		v.Delta("cats")
		v.Message("dogs")
		v.End()
	},
	"silent": func(v Protocol) {
		v.ReadPrompt()
		v.End()
	},
	"leave": func(v Protocol) { v.ReadPrompt() },
	"crash": func(v Protocol) {
		v.ReadPrompt()
		v.Delta("so far")
		os.Stderr.WriteString("panic: it broke\n")
		os.Exit(3)
	},
	"hang": func(v Protocol) {
		v.ReadPrompt()
		v.Delta("so far")
		forever()
	},
	"stubborn": func(v Protocol) {
		ignoreSignals()
		v.ReadPrompt()
		v.Delta("so far")
		forever()
	},
	"flood": func(v Protocol) {
		v.ReadPrompt()
		v.Delta("beginning ")
		line := []byte(strings.Repeat("x", 1<<20-1) + "\n")
		for range flood / len(line) {
			if _, err := os.Stdout.Write(line); err != nil {
				return
			}
		}
		v.End()
	},
	"line": func(v Protocol) { // a very long line
		v.ReadPrompt()
		v.Delta("before")
		os.Stdout.WriteString(strings.Repeat("x", 20<<20) + "\n")
		v.Delta(" after")
		v.End()
	},
	"errors": func(v Protocol) {
		v.ReadPrompt()
		line := []byte(strings.Repeat("e", 1<<20-1) + "\n")
		for range 64 {
			os.Stderr.Write(line)
		}
		v.Delta("done")
		v.End()
	},
	"garbage": func(v Protocol) {
		v.ReadPrompt()
		os.Stdout.WriteString("{\"type\":\nnot json\n\n[1,2\n\xff\xfe\n{}\nnull\n")
		v.Delta("the answer")
		v.End()
	},
	"odd": func(v Protocol) {
		v.ReadPrompt()
		v.Delta(odd)
		v.End()
	},
	"tokens": func(v Protocol) {
		v.ReadPrompt()
		for i := range tokens {
			v.Delta(token(i))
		}
		v.End()
	},
	"background": func(v Protocol) { // a child keeps the output open
		v.ReadPrompt()
		child("sleep", false)
		v.Delta("the answer")
		v.End()
	},
	"daemon": func(v Protocol) { // the child has a new session and ignores signals
		v.ReadPrompt()
		child("sleep", true)
		v.Delta("the answer")
		v.End()
	},
	"bomb": func(v Protocol) {
		v.ReadPrompt()
		v.Delta("boom")
		bomb()
	},
	"mute": func(v Protocol) { // closes its output and keeps running
		v.ReadPrompt()
		v.Delta("the answer")
		os.Stdout.Close()
		syscall.Close(1)
		forever()
	},
	"deaf": func(v Protocol) { // does not read its input
		forever()
	},
	"write": func(v Protocol) {
		v.ReadPrompt()
		os.WriteFile("made.txt", []byte("one\ntwo\n"), 0o644)
		v.Delta("written")
		v.End()
	},
	"late": func(v Protocol) { // ends its turn, but does not exit
		ignoreSignals()
		v.ReadPrompt()
		v.Delta("the answer")
		v.End()
		forever()
	},
}
