package runs

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// runLogs reads the logs of runs.
type runLogs struct {
	dirs   *directories // directories of runs
	calls  listCalls    // lists the calls in the ledger
	events caisson.EventStore
}

// open returns a log of a run's last attempt; stream is stdout, stderr, gateway (model calls) or egress (decisions).
func (l *runLogs) open(ctx context.Context, r *caisson.Run, stream string) (io.ReadCloser, error) {
	switch stream {
	case caisson.LogStdout, caisson.LogStderr:
		f, err := l.dirs.openLog(r, stream)
		if isNotExist(err) {
			return io.NopCloser(strings.NewReader("")), nil // the program has not started, or wrote nothing
		}
		return f, err
	case caisson.LogGateway:
		return pipeReader(func(w io.Writer) error { return l.writeCalls(ctx, r, w) }), nil
	case caisson.LogEgress:
		return pipeReader(func(w io.Writer) error { return l.writeDecisions(ctx, r, w) }), nil
	}
	return nil, caisson.Invalidf("stream", "%.40q is not one of stdout, stderr, gateway and egress", stream)
}

// pipeReader returns a reader of the data that write writes. It calls write in another goroutine.
func pipeReader(write func(io.Writer) error) io.ReadCloser {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(write(pw)) }()
	return pr
}

// writeCalls writes the model calls of the run's last attempt, each as one line of JSON.
func (l *runLogs) writeCalls(ctx context.Context, r *caisson.Run, w io.Writer) error {
	enc := json.NewEncoder(w)
	var after caisson.ID
	for {
		list, more, err := l.calls(ctx, caisson.UsageQuery{Run: string(r.ID)}, after, 500)
		if err != nil {
			return err
		}
		for _, call := range list {
			after = call.ID
			if call.Attempt != r.Attempt {
				continue
			}
			if err := enc.Encode(call); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// writeDecisions writes the egress decisions during the run's last attempt, each as one line of JSON.
func (l *runLogs) writeDecisions(ctx context.Context, r *caisson.Run, w io.Writer) error {
	box := r.Sandbox
	if r.Result != nil && r.Result.Sandbox != "" {
		box = r.Result.Sandbox
	}
	if box == "" {
		return nil
	}
	enc := json.NewEncoder(w)
	var after int64
	for {
		list, err := l.events.After(ctx, caisson.In(r.Account), string(box), after, 500)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, e := range list {
			after = e.Seq
			if !strings.HasPrefix(e.Type, "egress.") || e.Data["trace"] != r.Trace {
				continue
			}
			if err := enc.Encode(e); err != nil {
				return err
			}
		}
	}
}

// logs contains the files to which the output of the agent's program in one attempt is written.
type logs struct {
	files map[string]*os.File // open log files by stream: stdout and stderr
	sizes map[string]int64    // number of bytes written to each file, by stream
	limit int64               // maximum size of one file, in bytes
	cut   bool                // true if some output was not written
}

// createLogs creates the log files of an attempt.
func (d *directories) createLogs(r *caisson.Run) (*logs, error) {
	dir := path.Join(runDir(r.ID), strconv.Itoa(r.Attempt))
	if err := d.root.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &logs{files: map[string]*os.File{}, sizes: map[string]int64{}, limit: int64(r.Limits.Output)}
	for _, stream := range []string{caisson.LogStdout, caisson.LogStderr} {
		f, err := d.root.OpenFile(path.Join(dir, stream), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			l.close()
			return nil, err
		}
		l.files[stream] = f
	}
	return l, nil
}

// openLog opens the file with the output of the agent's program in a run's last attempt; stream is stdout or stderr.
func (d *directories) openLog(r *caisson.Run, stream string) (*os.File, error) {
	return d.root.Open(path.Join(runDir(r.ID), strconv.Itoa(r.Attempt), stream))
}

// write appends data to the file of a stream, up to the size limit. An error does not end the run; it sets cut.
func (l *logs) write(stream string, data []byte) {
	f := l.files[stream]
	if f == nil {
		return
	}
	if room := l.limit - l.sizes[stream]; int64(len(data)) > room {
		data, l.cut = data[:max(0, room)], true
	}
	n, err := f.Write(data)
	l.sizes[stream] += int64(n)
	l.cut = l.cut || err != nil
}

// size returns the number of bytes that were written to the file of a stream.
func (l *logs) size(stream string) caisson.Size { return caisson.Size(l.sizes[stream]) }

// close closes the files.
func (l *logs) close() {
	for _, f := range l.files {
		f.Close()
	}
}
