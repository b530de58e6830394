package llm

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// handlerTransport is an [http.RoundTripper] that calls a handler in this process: the scripted model.
type handlerTransport struct{ handler http.Handler }

func (l handlerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	r, w := io.Pipe()
	lw := &localWriter{pipe: w, header: http.Header{}, ready: make(chan struct{})}
	in := req.Clone(req.Context())
	in.RequestURI, in.RemoteAddr = req.URL.RequestURI(), "127.0.0.1:0"
	go func() {
		defer func() {
			if recover() != nil {
				lw.fail()
			}
		}()
		l.handler.ServeHTTP(lw, in)
		lw.WriteHeader(http.StatusOK)
		w.Close()
	}()
	context.AfterFunc(req.Context(), func() { r.CloseWithError(req.Context().Err()) })
	select {
	case <-lw.ready:
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	if lw.err != nil {
		return nil, lw.err
	}
	length, err := strconv.ParseInt(lw.sent.Get("Content-Length"), 10, 64)
	if err != nil {
		length = -1
	}
	return &http.Response{StatusCode: lw.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: lw.sent, Body: r, ContentLength: length, Request: req}, nil
}

// localWriter is the [http.ResponseWriter] with which a handler in this process answers a RoundTrip of handlerTransport. Until
// ready is closed, only the handler uses its fields; they do not change afterwards.
type localWriter struct {
	pipe   *io.PipeWriter // receives the body of the response
	header http.Header    // headers that the handler sets
	once   sync.Once      // for setting status and sent, or err, and closing ready
	ready  chan struct{}  // closed when status and sent, or err, are set
	status int
	sent   http.Header // headers of the response: copy of header when WriteHeader was called
	err    error       // set instead of status and sent if the handler panicked before it called WriteHeader
}

func (w *localWriter) Header() http.Header { return w.header } // headers of the response, which the handler sets

// WriteHeader sets the status and the headers of the response, unless they are set, and makes RoundTrip return.
func (w *localWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.ready)
	})
}

// Write writes a part of the response's body to the pipe, from which the caller of RoundTrip reads the body.
func (w *localWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.pipe.Write(p)
}

// Flush only sends the header, because a pipe has no buffer.
func (w *localWriter) Flush() { w.WriteHeader(http.StatusOK) }

// fail ends the response with an error, because the handler panicked.
func (w *localWriter) fail() {
	w.once.Do(func() {
		w.err = errors.New("the provider in this process ended without an answer")
		close(w.ready)
	})
	w.pipe.CloseWithError(io.ErrUnexpectedEOF)
}
