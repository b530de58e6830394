package drive

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// newError returns an error of a run, with the message as truncated plain text. An unknown code becomes caisson.RunAgentError.
func newError(code, message string) *caisson.RunError {
	message = strings.TrimSpace(plainText(truncate(message, 4*task.MaxMessage, "")))
	if !slices.Contains(task.Codes, code) {
		code = caisson.RunAgentError
	}
	if message == "" {
		message = "the agent failed without giving a reason"
	}
	return &caisson.RunError{Code: code, Message: truncate(message, task.MaxMessage, "…")}
}

// newAgentError returns an error of a run with a message of an agent. Messages about the HTTP status 429 or 402 of a model API
// get codes of their own, which callers use to decide about retries.
func newAgentError(message string) *caisson.RunError {
	var body struct { // some agents use the body of the model API's error response as message
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal([]byte(message), &body) == nil && body.Error.Message != "" {
		message = body.Error.Message
	}
	code := caisson.RunAgentError
	switch {
	case strings.Contains(message, "429 Too Many Requests"):
		code = caisson.RunRateLimit
	case strings.Contains(message, "402 Payment Required"):
		code = caisson.RunNoCredits
	}
	return newError(code, message)
}

// exitMessage returns the error message for a program that exited with a failure. tail is the end of its standard error.
func exitMessage(program string, exit *caisson.ExitStatus, tail string) string {
	what := fmt.Sprintf("exit code %d", exit.Code)
	switch {
	case exit.Unknown:
		what = "its exit status is unknown"
	case exit.Signal != 0:
		what = "signal " + fmt.Sprint(exit.Signal) + " (" + syscall.Signal(exit.Signal).String() + ")"
	}
	s := filepath.Base(program) + " ended with " + what
	if exit.Unknown {
		s = filepath.Base(program) + " ended, " + what
	}
	if tail != "" {
		s += ": " + tail
	}
	return s
}
