package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// Exit codes without a corresponding kind of error.
const (
	exitCheckFailed = 1   // as grep(1): --check found a denied destination, or agent check a missing requirement
	exitUsage       = 2   // there is an error in the command line or in a request
	exitTimeout     = 124 // as timeout(1): a process reached its time limit
	exitPipe        = 141 // as in a shell, 128 + SIGPIPE: the reader of the output has closed it
)

// exitCodes maps each kind of error to the exit code of the program.
var exitCodes = map[caisson.Kind]int{
	caisson.Internal:    1,
	caisson.Invalid:     exitUsage,
	caisson.NotFound:    3,
	caisson.Conflict:    4,
	caisson.Denied:      5,
	caisson.Unauthed:    5,
	caisson.Exhausted:   6,
	caisson.Unavailable: 7,
}

// runExits maps each code of a run's error to the exit code of the program.
var runExits = map[string]int{
	caisson.RunInvalid:    exitUsage,
	caisson.RunNotFound:   3,
	caisson.RunRateLimit:  6,
	caisson.RunNoCredits:  8,
	caisson.RunAborted:    9,
	caisson.RunAgentError: 10,
	caisson.RunProvider:   11,
	caisson.RunTimeout:    exitTimeout,
	caisson.RunInternal:   1,
}

// processExit is the exit code of a process in a sandbox, which this program exits with, too. It is not an error of this program,
// so nothing is printed.
type processExit int

func (e processExit) Error() string { return "process exited with " + strconv.Itoa(int(e)) }

// errorReport is an error in the form in which it is printed: with -o json and -o jsonl its exported fields, otherwise its text.
type errorReport struct {
	Kind    caisson.Kind `json:"kind"`            // kind of the error; for a failed run, the code of its error
	Field   string       `json:"field,omitempty"` // the invalid flag, argument, setting or field of a request; "" for none
	Message string       `json:"message"`         // text of the error, with unsafe characters escaped
	code    int          // exit code of the program
	hint    string       // another line that is printed for people; "" for none
}

// text returns the error as it is printed for people.
func (r errorReport) text() string {
	if r.Field != "" {
		return r.Field + ": " + r.Message
	}
	return r.Message
}

// exitCode prints err, unless it is nil, and returns the exit code of the program.
func (a *app) exitCode(err error) int {
	if err == nil {
		return 0
	}
	if p, ok := errors.AsType[processExit](err); ok {
		return int(p)
	}
	if code := a.interrupts.exitCode(); code != 0 {
		return code
	}
	if isBrokenPipe(err) {
		return exitPipe
	}
	var reports []errorReport
	for _, e := range splitErrors(err) {
		// Both outputs of a process may fail with the same error, for example that the connection was lost.
		if r := newErrorReport(e); !slices.Contains(reports, r) {
			reports = append(reports, r)
		}
	}
	writeReports(a.err, a.globals.Output, reports)
	return reports[0].code
}

// isBrokenPipe reports whether err means that the reader of the command's output has closed it. A broken connection to the daemon
// is not such an error.
func isBrokenPipe(err error) bool {
	w, ok := errors.AsType[*fs.PathError](err)
	return ok && w.Op == "write" && errors.Is(w.Err, syscall.EPIPE)
}

// splitErrors returns the errors that were joined into err.
func splitErrors(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // only errors joined at the top are printed one by one
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, splitErrors(e)...)
	}
	return out
}

// newErrorReport returns the report for err. For an error that is not an [*caisson.Error], it contains the whole text, because
// such an error comes from this process, not from the daemon.
func newErrorReport(err error) errorReport {
	r := errorReport{Kind: caisson.KindOf(err), Field: caisson.FieldOf(err)}
	if u, ok := errors.AsType[*usageError](err); ok {
		r.Kind, r.hint = caisson.Invalid, "Try: "+u.command+" --help"
	}
	failed, ofRun := errors.AsType[*caisson.RunError](err)
	switch e, ok := errors.AsType[*caisson.Error](err); {
	case ok:
		r.Message = e.Msg
	case ofRun:
		r.Kind, r.Message = caisson.Kind(failed.Code), failed.Error()
	case errors.Is(err, context.DeadlineExceeded):
		r.Kind, r.Message = caisson.Unavailable, "timed out"
	default:
		r.Message = err.Error()
	}
	r.Message = safetext.Escape(r.Message)
	r.Field = safetext.Escape(r.Field)
	r.code = exitCodes[r.Kind]
	if ofRun {
		r.code = runExits[failed.Code]
	}
	if r.code == 0 {
		r.code = 1 // the kind of the error is unknown, from a newer daemon
	}
	return r
}

// writeReports writes reports to w: as JSON if format, the value of -o, is json or jsonl, else as text.
func writeReports(w io.Writer, format string, reports []errorReport) {
	if format == "json" || format == "jsonl" {
		for _, r := range reports {
			if text, err := jsonText(map[string]errorReport{"error": r}); err == nil {
				_, _ = io.WriteString(w, text) // a failed write is ignored, because it cannot be reported
			}
		}
		return
	}
	for _, r := range reports {
		fmt.Fprintf(w, "caisson: %s\n", r.text())
		if r.hint != "" {
			fmt.Fprintln(w, r.hint)
		}
	}
}
