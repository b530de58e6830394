package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// files implements [caisson.Files] by requests to a daemon.
type files struct{ c *requester }

// fileRequest returns a request about the file or directory path in a sandbox. rest are further segments of the request's path.
func fileRequest(method, ref, path string, rest ...string) request {
	return request{
		method: method, path: append([]string{"sandboxes", ref, "files"}, rest...), query: url.Values{"path": {path}},
	}
}

// ReadFile implements [caisson.Files].
func (f files) ReadFile(ctx context.Context, ref, path string, offset, limit int64) (io.ReadCloser, error) {
	return f.c.openStream(ctx, fileRequest(http.MethodGet, ref, path).withNumber("offset", offset).withNumber("limit", limit))
}

// opaqueReader hides the type of a reader and its methods other than Read. net/http would close a body that is an io.Closer, and
// could send a body of some types, such as *bytes.Reader, a second time.
type opaqueReader struct{ io.Reader }

// WriteFile implements [caisson.Files].
func (f files) WriteFile(ctx context.Context, ref, path string, mode uint32, r io.Reader) (*caisson.FileInfo, error) {
	req := fileRequest(http.MethodPut, ref, path)
	if mode != 0 {
		req.addParam("mode", strconv.FormatUint(uint64(mode), 8))
	}
	req.body, req.contentType = opaqueReader{r}, protocol.BinaryType
	return call[*caisson.FileInfo](ctx, f.c, req)
}

// ListFiles implements [caisson.Files].
func (f files) ListFiles(ctx context.Context, ref, path string) ([]caisson.FileInfo, error) {
	return callList[caisson.FileInfo](ctx, f.c, fileRequest(http.MethodGet, ref, path, "list"))
}

// StatFile implements [caisson.Files].
func (f files) StatFile(ctx context.Context, ref, path string) (*caisson.FileInfo, error) {
	return call[*caisson.FileInfo](ctx, f.c, fileRequest(http.MethodGet, ref, path, "stat"))
}

// MakeDir implements [caisson.Files].
func (f files) MakeDir(ctx context.Context, ref, path string, parents bool) error {
	return f.c.do(ctx, post(protocol.MakeDirRequest{Path: path, Parents: parents}, "sandboxes", ref, "files", "mkdir"))
}

// MoveFile implements [caisson.Files].
func (f files) MoveFile(ctx context.Context, ref, from, to string) error {
	return f.c.do(ctx, post(protocol.MoveRequest{From: from, To: to}, "sandboxes", ref, "files", "move"))
}

// RemoveFile implements [caisson.Files].
func (f files) RemoveFile(ctx context.Context, ref, path string, recursive bool) error {
	return f.c.do(ctx, fileRequest(http.MethodDelete, ref, path).withFlag("recursive", recursive))
}

// WatchFiles implements [caisson.Files]. The channel is closed too if the connection to the daemon is lost.
func (f files) WatchFiles(ctx context.Context, ref, path string, recursive bool) (<-chan caisson.FileEvent, error) {
	body, err := f.c.openStream(ctx, fileRequest(http.MethodGet, ref, path, "watch").withFlag("recursive", recursive))
	if err != nil {
		return nil, err
	}
	changes := make(chan caisson.FileEvent)
	go func() {
		defer close(changes)
		defer body.Close()
		forwardEvents(ctx, body, protocol.EventFile, changes) // after an error, the channel is closed as at the end of the watch
	}()
	return changes, nil
}

// ReadTree implements [caisson.Files].
func (f files) ReadTree(ctx context.Context, ref, path string) (io.ReadCloser, error) {
	return f.c.openStream(ctx, fileRequest(http.MethodGet, ref, path, "tree"))
}

// WriteTree implements [caisson.Files].
func (f files) WriteTree(ctx context.Context, ref, path string, r io.Reader) error {
	req := fileRequest(http.MethodPut, ref, path, "tree")
	req.body, req.contentType = opaqueReader{r}, protocol.TarType
	return f.c.do(ctx, req)
}
