package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/lastwrite"
	"github.com/caisson-dev/caisson/runtime/gvisor/sentry"
)

// inquiries ask main processes for what the sinks of package sentry tell.
type inquiries struct {
	running func(caisson.ID) (*sandbox, error) // finds a sandbox that runs
}

// Writers implements [caisson.Recorder].
func (q inquiries) Writers(ctx context.Context, id caisson.ID, target string) (*caisson.Writers, error) {
	s, err := q.running(id)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(s.state.Recorded, target) {
		return nil, caisson.Errorf(caisson.NotFound, "sandbox %s has no workspace at %.200q of which it notes who writes there", id, target)
	}
	data, err := askSink(ctx, s, sentry.WritersSink, map[string]any{"target": target}, lastwrite.MaxEncoded)
	if err != nil {
		return nil, fmt.Errorf("ask who has written what: %w", err)
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

// askSink has a sink of a sandbox's main process write its answer to a pipe, and returns what came: at most limit bytes and one,
// which says that it was too long.
func askSink(ctx context.Context, s *sandbox, sink string, config map[string]any, limit int) ([]byte, error) {
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
		pr.Close() // the writer is not to wait for a reader who is gone
		came <- read{data, err}
	}()
	args := struct { // as in boot.CreateTraceSessionArgs
		Config seccheck.SessionConfig
		Force  bool
	}{seccheck.SessionConfig{
		Name: seccheck.DefaultSessionName, Sinks: []seccheck.SinkConfig{{Name: sink, Config: config}},
	}, true}
	callErr := s.call(ctx, boot.ContMgrCreateTraceSession, &args, nil, pw)
	pw.Close()
	// Whoever else holds the other end: what was said has been written before the call returned.
	pr.SetReadDeadline(time.Now().Add(time.Second))
	got := <-came
	return got.data, errors.Join(callErr, got.err)
}
