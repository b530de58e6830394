package main

import (
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPromise2PromptShowsNothing types a value where it is asked for. The terminal does not show it, and is as it was
// afterwards.
func TestPromise2PromptShowsNothing(t *testing.T) {
	s := onScreen(t, "credential", "set", "OPENAI_API_KEY")
	s.await("the question", func() bool {
		return strings.Contains(s.text(), "value of OPENAI_API_KEY: ") && s.termios().Lflag&unix.ECHO == 0
	})
	if _, err := io.WriteString(s.master, "PLAINTEXT-MARKER\n"); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%v; on the screen: %q", err, s.text())
	}
	s.await("the name", func() bool { return strings.Contains(s.text(), "\nOPENAI_API_KEY") })
	if strings.Contains(s.text(), "MARKER") {
		t.Errorf("on the screen: %q", s.text())
	}
	if s.termios() != s.before {
		t.Error("the terminal is not as it was")
	}
}

// TestPromptInterrupted gives the terminal back at Ctrl-C.
func TestPromptInterrupted(t *testing.T) {
	s := onScreen(t, "credential", "set", "OPENAI_API_KEY")
	s.await("the question", func() bool { return s.termios().Lflag&unix.ECHO == 0 })
	if _, err := io.WriteString(s.master, "PLAINTEXT\x03"); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); s.cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("%v; on the screen: %q", err, s.text())
	}
	if s.termios() != s.before || strings.Contains(s.text(), "PLAINTEXT") {
		t.Errorf("the terminal is not as it was; on the screen: %q", s.text())
	}
}
