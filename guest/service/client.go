package service

import (
	"context"
	"io"
	"math"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// answerTimeout is how long the supervisor may take to answer a request that it answers at once.
const answerTimeout = 10 * time.Second

// Apply replaces the set of services, and adds env to their environment. conn is a connection to [Socket] in the sandbox; Apply
// and the other functions with a conn close it at the end.
func Apply(ctx context.Context, conn io.ReadWriteCloser, revision int64, env map[string]string, list []caisson.Service) error {
	_, err := ask(ctx, conn, request{Op: opApply, Revision: revision, Env: env, Services: list})
	return err
}

// Restart requests a restart of the service id. It does not wait for it.
func Restart(ctx context.Context, conn io.ReadWriteCloser, id string) error {
	_, err := ask(ctx, conn, request{Op: opRestart, ID: id})
	return err
}

// List returns the conditions of all services, at most one for each id.
func List(ctx context.Context, conn io.ReadWriteCloser) ([]Condition, error) {
	a, err := ask(ctx, conn, request{Op: opList})
	if err != nil {
		return nil, err
	}
	return a.Conditions, nil
}

// watchPause is the pause after each answer of a watch. It bounds the load that a hostile supervisor can cause with many answers.
const watchPause = 50 * time.Millisecond

// Watch calls changed with the conditions of all services, at once and after each change, until the connection or ctx ends.
func Watch(ctx context.Context, conn io.ReadWriteCloser, changed func([]Condition)) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := writeMessage(conn, request{Op: opWatch}); err != nil {
		return unavailable(err)
	}
	for {
		a, err := receive(conn)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if a.Conditions != nil {
			changed(a.Conditions)
		}
		if !sleep(ctx, watchPause) {
			return context.Cause(ctx)
		}
	}
}

// Logs returns a stream of the kept output of a service; with follow also of its later output. The output is untrusted.
func Logs(ctx context.Context, conn io.ReadWriteCloser, id string, follow bool) (io.ReadCloser, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	if err := writeMessage(conn, request{Op: opLogs, ID: id, Follow: follow}); err != nil {
		stop()
		conn.Close()
		return nil, unavailable(err)
	}
	l := &logReader{conn: conn, stop: stop}
	if follow {
		return l, nil // do not wait for the first answer, which arrives only when the service has written output
	}
	// Receive the first answer here, so that Logs returns the error if the answer is one.
	a, err := receive(conn)
	if err != nil && err != io.EOF {
		l.Close()
		return nil, err
	}
	if err == nil {
		l.rest = a.Output
	}
	return l, nil
}

// A logReader is a stream of the output of a service, which arrives in answers. Read must be called by one goroutine at a time;
// Close may be called concurrently.
type logReader struct {
	conn io.ReadWriteCloser // connection to the supervisor
	stop func() bool        // keeps the end of the context of Logs from closing conn
	rest []byte             // output of the last answer that was not read yet
}

// Read implements [io.Reader].
func (l *logReader) Read(b []byte) (int, error) {
	for len(l.rest) == 0 {
		a, err := receive(l.conn)
		if err != nil {
			return 0, err
		}
		l.rest = a.Output
	}
	n := copy(b, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// Close implements [io.Closer]: it closes the connection to the supervisor.
func (l *logReader) Close() error {
	l.stop()
	return l.conn.Close()
}

// ask sends a request that has one answer, and returns the answer.
func ask(ctx context.Context, conn io.ReadWriteCloser, req request) (*answer, error) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := writeMessage(conn, req); err != nil {
		return nil, unavailable(err)
	}
	a, err := receive(conn)
	if err == io.EOF {
		err = unavailable(err)
	}
	return a, err
}

// unavailable returns the error for a supervisor that has not answered or whose answer is malformed.
func unavailable(cause error) error {
	return caisson.Wrap(cause, caisson.Unavailable, "the supervisor of the sandbox's services does not answer as it should; try again")
}

// receive receives and validates an answer. The error is io.EOF if the supervisor has closed the connection between two answers.
func receive(r io.Reader) (*answer, error) {
	var a answer
	if err := readMessage(r, maxAnswer, &a); err == io.EOF {
		return nil, err
	} else if err != nil {
		return nil, unavailable(err)
	}
	if a.Kind != "" {
		switch a.Kind {
		case caisson.Invalid, caisson.NotFound, caisson.Conflict, caisson.Exhausted, caisson.Unavailable:
			return nil, caisson.Errorf(a.Kind, "%s", safetext.Short(safetext.Line(a.Message), maxMessage))
		}
		return nil, unavailable(errProtocol)
	}
	if len(a.Conditions) > MaxServices {
		return nil, unavailable(errProtocol)
	}
	seen := map[string]bool{}
	for i := range a.Conditions {
		c := &a.Conditions[i]
		if seen[c.ID] || !c.valid() {
			return nil, unavailable(errProtocol)
		}
		seen[c.ID] = true
		c.Message = safetext.Short(safetext.Line(c.Message), maxMessage)
		c.Since, c.RetryAt = c.Since.UTC(), c.RetryAt.UTC()
	}
	return &a, nil
}

// valid reports whether all values of a condition, which is untrusted, are in their valid ranges.
func (c *Condition) valid() bool {
	switch c.State {
	case caisson.ServiceStarting, caisson.ServiceReady, caisson.ServiceBackoff, caisson.ServiceFailed, caisson.ServiceStopped:
	default:
		return false
	}
	year := func(t time.Time) bool { return t.UTC().Year() >= 1 && t.UTC().Year() <= 9999 } // whether JSON can represent the time
	inRange := func(n int) bool { return n >= 0 && n <= math.MaxInt32 }
	return inRange(c.PID) && inRange(c.Restarts) && inRange(c.Failures) && year(c.Since) && year(c.RetryAt) &&
		(c.Exit == nil || c.Exit.Reason == "" && !c.Exit.Unknown && c.Exit.Code >= 0 && c.Exit.Code <= 255 && c.Exit.Signal >= 0 && c.Exit.Signal <= 64)
}
