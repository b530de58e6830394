package runs

import (
	"errors"
	"fmt"
)

// A failure is the error of a failed attempt, with the code and message of its result.
type failure struct {
	code      string
	msg       string
	err       error // cause, for the log
	fromAgent bool  // reported by the agent, which may not have the actual cause
}

func (f *failure) Error() string {
	if f.err != nil {
		return f.msg + ": " + f.err.Error()
	}
	return f.msg
}

func (f *failure) Unwrap() error { return f.err }

// isFailure reports whether err already contains the code and message of a result.
func isFailure(err error) bool {
	_, ok := errors.AsType[*failure](err)
	return ok
}

func failf(code, format string, args ...any) error {
	return &failure{code: code, msg: fmt.Sprintf(format, args...)}
}

// errDeadline is the cause when an attempt has used up its time.
var errDeadline = errors.New("the run's time is over")
