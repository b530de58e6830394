package transport

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
)

// serveRemote forwards the requests of the git job at the other end of conn to a remote on the network.
func serveRemote(ctx context.Context, conn net.Conn, req Request) error {
	remote, err := parseRemote(req.URL)
	if err != nil {
		return err
	}
	if remote.Scheme == remoteurl.SSH {
		s, err := newSSH(remote, req)
		if err != nil {
			return err
		}
		defer s.close()
		return Serve(ctx, conn, streamHandler{push: req.Push, run: s.run})
	}
	h, err := newHTTP(remote, req)
	if err != nil {
		return err
	}
	defer h.close()
	return Serve(ctx, conn, h)
}

// serveLocal answers the requests of the git job at the other end of conn with git programs that run on the repository in dir.
func serveLocal(ctx context.Context, conn net.Conn, dir string, push bool) error {
	return Serve(ctx, conn, streamHandler{push: push, run: func(ctx context.Context, s stream) error {
		return runLocal(ctx, dir, s.service, s.protocol, s.in, s.out)
	}})
}

// Serve serves HTTP/2 with h, without TLS, on conn until its other end is closed or ctx ends.
func Serve(ctx context.Context, conn net.Conn, h http.Handler) error {
	ln := &singleListener{conn: conn, done: make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler: h, Protocols: protocols, MaxHeaderBytes: 64 << 10, ErrorLog: log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				ln.Close()
			}
		},
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	defer srv.Close()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return ctx.Err()
}

// singleListener is a listener that accepts one connection.
type singleListener struct {
	mu        sync.Mutex
	conn      net.Conn      // nil after it was accepted; guarded by mu
	closeOnce sync.Once     // closes done
	done      chan struct{} // closed by Close
}

// Accept returns the connection on its first call. Later calls wait for Close and return an error.
func (l *singleListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	c := l.conn
	l.conn = nil
	l.mu.Unlock()
	if c != nil {
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *singleListener) Close() error {
	l.closeOnce.Do(func() { close(l.done) })
	return nil
}

func (l *singleListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "link"} }

// refuse reports to the git job why there is no answer of the remote.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set(remote.LinkKind, string(caisson.KindOf(err)))
	w.Header().Set(remote.LinkMessage, oneLine(caisson.MessageOf(err)))
	w.WriteHeader(http.StatusBadGateway)
}

// oneLine returns at most 1000 bytes of s as the value of an HTTP header, with spaces for characters other than printable ASCII.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return ' '
		}
		return r
	}, s)
	return s[:min(len(s), 1000)]
}

// A stream is one execution of a git program at the remote.
type stream struct {
	service  string    // name of the program, "git-upload-pack" or "git-receive-pack"
	protocol string    // value of the header Git-Protocol, validated
	in       io.Reader // input of the program
	out      io.Writer // gets the output of the program
}

// A streamHandler answers requests of a git job by running git programs at a remote: over SSH, or in a directory of the host.
type streamHandler struct {
	push bool                                      // whether pushes are allowed
	run  func(ctx context.Context, s stream) error // returns when the program has exited
}

// ServeHTTP runs the git program that the path names, with the body of the request as its input.
func (s streamHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	service, ok := strings.CutPrefix(r.URL.Path, remote.StreamPath)
	if r.Method != http.MethodPost || !ok || service != remote.UploadPack && service != remote.ReceivePack {
		http.NotFound(w, r)
		return
	}
	protocol := r.Header.Get(remote.HeaderProtocol)
	switch {
	case service == remote.ReceivePack && !s.push:
		refuse(w, errNoPush)
		return
	case !remote.ValidProtocol(protocol):
		refuse(w, caisson.Invalidf("protocol", "%.40q is no version of git's protocol", protocol))
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Trailer", remote.LinkKind+", "+remote.LinkMessage)
	out := &statusWriter{w: w}
	err := s.run(r.Context(), stream{service: service, protocol: protocol, in: r.Body, out: out})
	switch {
	case err == nil:
		out.begin()
	case out.begun:
		w.Header().Set(remote.LinkKind, string(caisson.KindOf(err)))
		w.Header().Set(remote.LinkMessage, oneLine(caisson.MessageOf(err)))
	default:
		w.Header().Del("Trailer")
		refuse(w, err)
	}
}

// errNoPush is the error for a push over a connection that allows only fetches.
var errNoPush = caisson.Errorf(caisson.Denied, "this link may only be fetched over")

// statusWriter sends the HTTP status 200 with the first write, and flushes every write.
type statusWriter struct {
	w     http.ResponseWriter
	begun bool // whether the status was sent
}

// begin sends the status, unless it was sent before.
func (l *statusWriter) begin() {
	if !l.begun {
		l.begun = true
		l.w.WriteHeader(http.StatusOK)
	}
}

// Write sends p to the git job, after the HTTP status 200 if that was not sent yet.
func (l *statusWriter) Write(p []byte) (int, error) {
	l.begin()
	return remote.FlushWriter{W: l.w}.Write(p)
}

// dialTimeout is the time limit for connecting to a remote.
const dialTimeout = 30 * time.Second

// dialer returns a dialer that connects only to addresses that req allows.
func dialer(remote remoteurl.URL, req Request) *net.Dialer {
	return reach.Dialer(dialTimeout, func(a netip.AddrPort) error { return req.Own.Check(a.Addr(), remote.Loopback(), req.Local) })
}
