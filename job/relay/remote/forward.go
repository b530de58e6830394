// Package remote is git's end of the connection to the transport: it lists the refs of a remote repository and forwards git's
// requests.
package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// maxErrorBody limits how many bytes of an answer with an error status are read.
const maxErrorBody = 4 << 10

// A Forwarder connects git to the transport: it listens on the loopback device and forwards git's requests over a socket.
// It forwards only the requests of a fetch or a push. It records the first failure, because git does not report the reason.
type Forwarder struct {
	transport Protocol       // protocol between the transport and the remote
	link      *http.Client   // sends requests to the transport
	listener  net.Listener   // accepts git's connections
	server    *http.Server   // serves git over HTTP; nil with ProtocolStream
	running   sync.WaitGroup // goroutines that accept and serve git's connections
	budget    atomic.Int64   // bytes that the remote may still send

	mu      sync.Mutex
	failure error // the first failure; guarded by mu
}

// errConnUsed is returned for a second attempt to open the connection to the transport, which can be opened only once.
var errConnUsed = errors.New("the link has ended")

// NewForwarder returns a listening forwarder over a duplicate of the socket conn. Close stops it. The caller still has to close
// conn.
func NewForwarder(conn *os.File, transport Protocol) (*Forwarder, error) {
	if transport != ProtocolHTTP && transport != ProtocolStream {
		return nil, caisson.Invalidf("transport", "%.40q is none; it is http or stream", string(transport))
	}
	c, err := net.FileConn(conn)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		c.Close()
		return nil, err
	}
	f := &Forwarder{transport: transport, link: linkClient(c), listener: ln}
	if transport == ProtocolStream {
		f.running.Go(f.acceptStreams)
		return f, nil
	}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: discardLogger()}
	f.running.Go(func() { f.server.Serve(ln) })
	return f, nil
}

// linkClient returns an HTTP/2 client that uses only the connection c.
func linkClient(c net.Conn) *http.Client {
	var once sync.Once
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{
		Transport: &onceTransport{c: c, Transport: &http.Transport{
			Protocols: protocols,
			DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
				err = errConnUsed
				once.Do(func() { conn, err = c, nil })
				return conn, err
			},
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A onceTransport sends requests over one connection. It can close the connection even if no request was sent.
type onceTransport struct {
	*http.Transport
	c net.Conn // the connection that it closes
}

// CloseIdleConnections closes the connection, even if it was not used. [http.Client.CloseIdleConnections] calls it.
func (t *onceTransport) CloseIdleConnections() {
	t.Transport.CloseIdleConnections()
	t.c.Close()
}

// Allow sets how many bytes the remote may send from now on.
func (f *Forwarder) Allow(bytes int64) { f.budget.Store(bytes) }

// URL returns the URL that git fetches from or pushes to.
func (f *Forwarder) URL() string {
	if f.transport == ProtocolStream {
		return "git://" + f.listener.Addr().String() + "/repo"
	}
	return "http://" + f.listener.Addr().String() + "/repo"
}

// Protocol returns an environment variable, as name=value, that permits git the scheme of the URL of f.
func (f *Forwarder) Protocol() string {
	if f.transport == ProtocolStream {
		return "GIT_ALLOW_PROTOCOL=git"
	}
	return "GIT_ALLOW_PROTOCOL=http"
}

// Close closes the listener and the connection to the transport, and waits until requests in progress have ended.
func (f *Forwarder) Close() error {
	f.listener.Close()
	if f.server != nil {
		f.server.Close()
	}
	f.link.CloseIdleConnections()
	f.running.Wait()
	return nil
}

// fail records err if it is the first failure.
func (f *Forwarder) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure == nil {
		f.failure = err
	}
}

// Explain returns the recorded failure, or err if there is none.
func (f *Forwarder) Explain(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil || f.failure == nil {
		return err
	}
	return f.failure
}

// roundTrip sends one request over the connection to the transport and checks the type of the answer. The caller closes the
// answer's body.
func (f *Forwarder) roundTrip(req *http.Request, want string) (*http.Response, error) {
	resp, err := f.link.Do(req)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "the connection to the remote was lost; try again")
	}
	if err := f.check(resp, want); err != nil {
		resp.Body.Close()
		return nil, err
	}
	resp.Body = &limitedBody{ReadCloser: resp.Body, resp: resp, budget: &f.budget}
	return resp, nil
}

// check returns the error that an answer of the transport reports, and an error if the content type is not want.
func (f *Forwarder) check(resp *http.Response, want string) error {
	if kind := resp.Header.Get(LinkKind); kind != "" {
		return linkError(kind, resp.Header.Get(LinkMessage))
	}
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		return statusError(resp.StatusCode, string(said))
	}
	if got := resp.Header.Get("Content-Type"); got != want {
		return caisson.Errorf(caisson.Denied, "what the remote answers is not git's smart HTTP (its type is %.100q); check the URL", got)
	}
	return nil
}

// statusError returns the error for an HTTP status of the remote; said is the plain text that came with it.
func statusError(status int, said string) error {
	if said = git.OneLine(said, 200); said != "" {
		said = ": " + said
	}
	switch {
	case status == http.StatusUnauthorized:
		return caisson.Errorf(caisson.Denied, "the remote does not accept the credential (401); set another one%s", said)
	case status == http.StatusForbidden:
		return caisson.Errorf(caisson.Denied, "the remote does not allow this with the credential (403); give it the right to do so%s", said)
	case status == http.StatusNotFound, status == http.StatusGone:
		return caisson.Errorf(caisson.NotFound, "the remote has no such repository, or the credential does not show it (%d)%s", status, said)
	case status == http.StatusRequestEntityTooLarge:
		return caisson.Errorf(caisson.Denied, "the remote does not take that much at once (413)%s", said)
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= 500:
		return caisson.Errorf(caisson.Unavailable, "the remote answers %d %s; try again later%s", status, http.StatusText(status), said)
	case status >= 300 && status < 400:
		return caisson.Errorf(caisson.Denied, "the remote redirects to another place (%d); set the repository's URL to that", status)
	}
	return caisson.Errorf(caisson.Denied, "the remote answers %d %s%s", status, http.StatusText(status), said)
}

// ServeHTTP forwards a request of git's HTTP client.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, want := newLinkRequest(r)
	if req == nil {
		http.NotFound(w, r)
		return
	}
	resp, err := f.roundTrip(req, want)
	if err != nil {
		f.fail(err)
		// The remote's status is not passed on to git, because git would prompt for a password, or try another request.
		http.Error(w, "failed", http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", want)
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	if err := copyStream(FlushWriter{w}, resp.Body); err != nil {
		f.fail(err)
		panic(http.ErrAbortHandler)
	}
}

// newLinkRequest returns the request to the transport for a request r of git, and the content type that the answer must have. It
// returns nil if r is not allowed.
func newLinkRequest(r *http.Request) (req *http.Request, want string) {
	path := strings.TrimPrefix(r.URL.Path, "/repo")
	switch service := r.URL.Query().Get("service"); {
	case r.Method == http.MethodGet && path == "/info/refs" && (service == UploadPack || service == ReceivePack):
		path, want = path+"?service="+service, "application/x-"+service+"-advertisement"
	case r.Method == http.MethodPost && (path == "/"+UploadPack || path == "/"+ReceivePack):
		want = "application/x-" + path[1:] + "-result"
	default:
		return nil, ""
	}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, "http://link"+path, nil)
	if err != nil {
		return nil, ""
	}
	if r.Method == http.MethodPost {
		req.Body, req.ContentLength = r.Body, r.ContentLength
	}
	for _, name := range []string{"Content-Type", "Content-Encoding", "Accept", HeaderProtocol} {
		if v := r.Header.Get(name); v != "" {
			req.Header.Set(name, v)
		}
	}
	return req, want
}

// A limitedBody is the body of an answer of the transport. The forwarder's budget limits its size. If the transport reports in a
// trailer why the body ended early, Read returns that as an error.
type limitedBody struct {
	io.ReadCloser
	resp   *http.Response // the answer, which has the trailers
	budget *atomic.Int64  // bytes that the remote may still send
}

// Read reads from the answer. It returns an Exhausted error if the remote has sent more than it may.
func (c *limitedBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if c.budget.Add(-int64(n)) < 0 {
		return 0, caisson.Errorf(caisson.Exhausted, "the remote sends more than is allowed for a repository; raise the limit, or use a smaller one")
	}
	switch {
	case err == nil:
		return n, nil
	case !errors.Is(err, io.EOF):
		return n, caisson.Wrap(err, caisson.Unavailable, "the connection to the remote was lost; try again")
	}
	if kind := c.resp.Trailer.Get(LinkKind); kind != "" {
		return n, linkError(kind, c.resp.Trailer.Get(LinkMessage))
	}
	return n, err
}

// copyStream copies r to w until the end of r. It returns only errors of r: if w fails, git has exited and reports the reason.
func copyStream(w io.Writer, r io.Reader) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// A FlushWriter writes to W and flushes every write.
type FlushWriter struct{ W http.ResponseWriter }

func (f FlushWriter) Write(p []byte) (int, error) {
	n, err := f.W.Write(p)
	if err == nil {
		err = http.NewResponseController(f.W).Flush()
	}
	return n, err
}
