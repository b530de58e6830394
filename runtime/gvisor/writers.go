package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/lastwrite"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// sinkQueries implements the methods of Runtime that ask a sandbox's sentry which process changed each file, or which programs
// may draw the same secrets as another fork.
type sinkQueries struct {
	running func(caisson.ID) (*sandbox, error) // returns a sandbox; an error unless it is running
}

// Writers implements [caisson.WriterRecorder]: it names the last process that changed each file of the workspace at target.
func (q sinkQueries) Writers(ctx context.Context, id caisson.ID, target string) (*caisson.Writers, error) {
	s, err := q.running(id)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(s.state.Recorded, target) {
		return nil, caisson.Errorf(caisson.NotFound, "sandbox %s has no workspace at %.200q whose writers are recorded", id, target)
	}
	data, err := querySink(ctx, s, protocol.WritersSink, map[string]any{"target": target}, lastwrite.MaxEncoded)
	if err != nil {
		return nil, fmt.Errorf("read the last writers: %w", err)
	}
	records, dropped, err := lastwrite.Decode(data)
	if err != nil {
		return nil, err
	}
	w := &caisson.Writers{List: make([]caisson.Writer, len(records)), Dropped: dropped}
	for i, rec := range records {
		w.List[i] = caisson.Writer{Path: lastwrite.ShowPath(rec.Path), Moved: rec.Moved, PID: int(rec.PID), UID: rec.UID, Command: rec.Command}
	}
	return w, nil
}

// querySink calls a sink, which is code of package sentry in the sandbox's sentry, with a pipe. It returns the reply that the
// sink writes to the pipe: at most limit+1 bytes. A length of limit+1 means that the reply was too long.
func querySink(ctx context.Context, s *sandbox, sink string, config map[string]any, limit int) ([]byte, error) {
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer pr.Close()
	type read struct {
		data []byte
		err  error
	}
	came := make(chan read, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(pr, int64(limit)+1))
		pr.Close() // further writes of the sentry then fail instead of blocking
		came <- read{data, err}
	}()
	callErr := callSink(ctx, s, sink, config, pw)
	pw.Close()
	// The sentry has written the reply before the call returned, but may keep its end of the pipe open, so that no EOF comes.
	pr.SetReadDeadline(time.Now().Add(time.Second))
	got := <-came
	return got.data, errors.Join(callErr, got.err)
}

// callSink calls one of the sinks that package sentry adds to gVisor: it starts a trace session with the sink in the sandbox's
// sentry. gVisor then passes config and the descriptors of files to the sink, which does its work or starts it.
func callSink(ctx context.Context, s *sandbox, sink string, config map[string]any, files ...*os.File) error {
	args := protocol.TraceSessionArgs{
		Config: protocol.TraceSession{Name: protocol.TraceSessionName, Sinks: []protocol.Sink{{Name: sink, Config: config}}}, Force: true,
	}
	return s.call(ctx, protocol.MethodCreateTraceSession, &args, nil, files...)
}
