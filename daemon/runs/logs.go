package runs

import (
	"context"
	"encoding/json"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// RunLog implements [caisson.Runs].
func (c runs) RunLog(ctx context.Context, id caisson.ID, stream string) (io.ReadCloser, error) {
	r, err := c.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	switch stream {
	case caisson.LogStdout, caisson.LogStderr:
		f, err := c.Dir.Open(path.Join(runDir(id), strconv.Itoa(r.Attempt), stream))
		if isNotExist(err) {
			return io.NopCloser(strings.NewReader("")), nil // the program has not started, or wrote nothing
		}
		return f, err
	case caisson.LogGateway:
		return written(func(w io.Writer) error { return c.writeCalls(ctx, r, w) }), nil
	case caisson.LogEgress:
		return written(func(w io.Writer) error { return c.writeDecisions(ctx, r, w) }), nil
	}
	return nil, caisson.Invalidf("stream", "%.40q is not one of stdout, stderr, gateway and egress", stream)
}

// written returns a reader of the output of write.
func written(write func(io.Writer) error) io.ReadCloser {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(write(pw)) }()
	return pr
}

// writeCalls writes the model calls of the run's last attempt, as one line of JSON each.
func (c runs) writeCalls(ctx context.Context, r *caisson.Run, w io.Writer) error {
	enc := json.NewEncoder(w)
	var after caisson.ID
	for {
		list, more, err := c.Calls(ctx, caisson.UsageQuery{Run: string(r.ID)}, after, 500)
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

// writeDecisions writes the egress decisions during the run's last attempt, as one line of JSON each.
func (c runs) writeDecisions(ctx context.Context, r *caisson.Run, w io.Writer) error {
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
		list, err := c.Store.Events().After(ctx, caisson.In(r.Account), string(box), after, 500)
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
