package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// runs implements [caisson.Runs] by requests to a daemon.
type runs struct{ c *requester }

// StartRun implements [caisson.Runs]. It closes req.Directory, and reads the archive req.Workspace to its end before it returns.
// A repeated call with the same key of [WithIdempotencyKey] starts no second run.
func (r runs) StartRun(ctx context.Context, req caisson.RunRequest) (*caisson.Run, error) {
	header := createHeader(ctx)
	switch {
	case req.Directory != nil && req.Workspace != nil:
		req.Directory.Close()
		return nil, caisson.Invalidf("workspace", "is either a directory or an archive")
	case req.Workspace != nil:
		return r.upload(ctx, header, req)
	case req.Directory != nil:
		if err := r.c.passHandles(ctx, []caisson.Handle{req.Directory}, header); err != nil {
			return nil, err
		}
	}
	return call[*caisson.Run](ctx, r.c, post(req, "runs").withHeader(header))
}

// upload starts a run with a multipart form that contains the request and the archive req.Workspace.
func (r runs) upload(ctx context.Context, header http.Header, req caisson.RunRequest) (*caisson.Run, error) {
	data, err := json.Marshal(req)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "the request cannot be encoded")
	}
	// The body is the concatenation of three readers: the beginning of the form, the archive, and the end of the form. This
	// avoids a goroutine that writes the form to a pipe.
	var before bytes.Buffer
	form := multipart.NewWriter(&before)
	for _, part := range []struct {
		name, mime string
		data       []byte
	}{{protocol.PartRequest, "application/json", data}, {protocol.PartWorkspace, protocol.TarType, nil}} {
		w, err := form.CreatePart(textproto.MIMEHeader{
			"Content-Disposition": {`form-data; name="` + part.name + `"`}, "Content-Type": {part.mime},
		})
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(part.data); err != nil {
			return nil, err
		}
	}
	after := bytes.NewReader([]byte("\r\n--" + form.Boundary() + "--\r\n"))
	up := post(nil, "runs", "upload").withHeader(header)
	up.body, up.contentType = opaqueReader{io.MultiReader(&before, req.Workspace, after)}, form.FormDataContentType()
	return call[*caisson.Run](ctx, r.c, up)
}

// GetRun implements [caisson.Runs].
func (r runs) GetRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	return call[*caisson.Run](ctx, r.c, get("runs", string(id)))
}

// ListRuns implements [caisson.Runs]. In the runs that it returns, long prompts and answers are truncated and the largest fields
// are omitted; GetRun returns a complete run.
func (r runs) ListRuns(ctx context.Context, f caisson.RunFilter) (page []*caisson.Run, more bool, err error) {
	req := withStates(get("runs"), f.States).withParam("agent", f.Agent).withParam("session", string(f.Session)).
		withParam("parent", string(f.Parent)).withParam("under", string(f.Under)).withParam("after", string(f.Before))
	return callPage[*caisson.Run](ctx, r.c, req, f.Limit)
}

// CancelRun implements [caisson.Runs].
func (r runs) CancelRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	return call[*caisson.Run](ctx, r.c, post(nil, "runs", string(id), "cancel"))
}

// RetryRun implements [caisson.Runs].
func (r runs) RetryRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	return call[*caisson.Run](ctx, r.c, post(nil, "runs", string(id), "retry"))
}

// RemoveRun implements [caisson.Runs].
func (r runs) RemoveRun(ctx context.Context, id caisson.ID) error {
	return r.c.do(ctx, remove("runs", string(id)))
}

// RunLog implements [caisson.Runs].
func (r runs) RunLog(ctx context.Context, id caisson.ID, stream string) (io.ReadCloser, error) {
	return r.c.openStream(ctx, get("runs", string(id), "log").withParam("stream", stream))
}

// WatchRun implements [caisson.Runs]. If the connection is lost, it connects again, and no event is missed or repeated.
func (r runs) WatchRun(ctx context.Context, id caisson.ID, after int64) (<-chan caisson.RunEvent, error) {
	return watch[caisson.RunEvent]{
		open: func(ctx context.Context, after int64) (io.ReadCloser, error) {
			return r.c.openStream(ctx, get("runs", string(id), "events").withParam("after", strconv.FormatInt(after, 10)))
		},
		seq: func(e caisson.RunEvent) int64 { return e.Seq }, limit: protocol.MaxRunEvent,
	}.start(ctx, after)
}

// ListSessions implements [caisson.Runs].
func (r runs) ListSessions(ctx context.Context, f caisson.SessionFilter) ([]*caisson.Session, error) {
	return callList[*caisson.Session](ctx, r.c, get("sessions").withParam("agent", f.Agent).withParam("user", f.User).withParam("key", f.Key))
}

// RemoveSession implements [caisson.Runs].
func (r runs) RemoveSession(ctx context.Context, id caisson.ID) error {
	return r.c.do(ctx, remove("sessions", string(id)))
}
