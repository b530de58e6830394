// Package client is a client of Caisson's API. A [Client] implements the interfaces of the services that the daemon implements,
// such as [caisson.Sandboxes]. Its methods return the errors that the daemon's implementation returned, without their causes.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// Config contains the address of the daemon and the credentials for it. Exactly one of Socket and URL is required.
type Config struct {
	Socket string         // path of the daemon's unix socket
	URL    string         // URL of the daemon: http://host:port or https://host:port
	Token  caisson.Secret // token that authenticates the client; sent with every request unless it is zero
	// Account is the account for which requests over the unix socket are made; "" means [caisson.LocalAccount].
	Account string
	CAFile  string // PEM file with the certificate authorities that are trusted for https, instead of the system's
	// Start is called when a request is made and no process listens on Socket, for example because an idle daemon has exited. It
	// must start a daemon that listens there. If Start is nil, the request fails.
	Start func(context.Context) error
	// Notice, unless it is nil, is called for each response, with the information about the daemon in the response's headers.
	Notice func(Notice)
}

// A Notice is the information about a daemon in the headers of its responses over the unix socket. Older daemons do not send it.
type Notice struct {
	Version string // version of the daemon
	Changed string // keys of settings whose values in the configuration file differ from those that the daemon uses
}

// A Client sends requests to a daemon. It is safe for concurrent use.
type Client struct {
	caisson.API
	c *requester // sends the requests
}

// New returns a client. It connects to the daemon only when a request is made.
func New(cfg Config) (*Client, error) {
	c, err := newRequester(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{caisson.API{
		Sandboxes: sandboxes{c}, Processes: processes{c}, Services: services{c}, Terminals: terminals{c}, Snapshots: snapshots{c},
		Templates: templates{c}, Images: images{c}, Files: files{c},
		Events: events{c}, Tokens: tokens{c}, Policies: policies{c}, Credentials: credentials{c}, Audit: audit{c}, Ledger: ledger{c},
		Models: models{c}, GatewayRuns: gatewayRuns{c}, Daemon: daemon{c}, Agents: agents{c}, Runs: runs{c}, Workspaces: workspaces{c},
		Repos: repos{c}, Volumes: volumes{c}, Routes: routes{c}, SSH: ssh{c}, Connections: connections{c},
	}, c}, nil
}

// Close closes the connections that no request uses.
func (c *Client) Close() error {
	c.c.http.CloseIdleConnections()
	return nil
}

// requester sends requests to a daemon and decodes responses. All parts of a [Client] share one requester. Its fields do not
// change.
type requester struct {
	http    *http.Client                // client that sends the requests
	base    *url.URL                    // scheme and host of the daemon; for a unix socket the host is a placeholder
	socket  string                      // path of the daemon's unix socket; "" if the daemon is reached by a URL
	start   func(context.Context) error // starts a daemon that listens on the unix socket; nil if that is not possible
	notice  func(Notice)                // called with the information in the headers of each response; may be nil
	account string                      // account for which requests over the unix socket are made
	token   caisson.Secret              // token that is sent with every request, unless it is zero
}

// dialTimeout is the timeout of each step of establishing a connection.
const dialTimeout = 10 * time.Second

// newRequester returns a requester for cfg. Returns Invalid if cfg is not valid.
func newRequester(cfg Config) (*requester, error) {
	c := &requester{socket: cfg.Socket, start: cfg.Start, notice: cfg.Notice, account: cfg.Account, token: cfg.Token}
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{
		DialContext:           dialer.DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ExpectContinueTimeout: dialTimeout,
		IdleConnTimeout:       time.Minute,
		MaxIdleConnsPerHost:   16,
		DisableCompression:    true,
	}
	switch {
	case (cfg.Socket == "") == (cfg.URL == ""):
		return nil, caisson.Errorf(caisson.Invalid, "give either a socket or a url")
	case cfg.Socket != "":
		c.base = &url.URL{Scheme: "http", Host: "caisson"}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.dial(ctx)
		}
	default:
		u, err := url.Parse(cfg.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
			return nil, caisson.Invalidf("url", "%.100q is not of the form https://host:port", cfg.URL)
		}
		c.base = &url.URL{Scheme: u.Scheme, Host: u.Host}
		transport.Proxy = http.ProxyFromEnvironment
	}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "cannot read the file of certificate authorities %s", cfg.CAFile)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, caisson.Invalidf("caFile", "%s contains no certificate", cfg.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	c.http = &http.Client{
		Transport: transport,
		// The API does not redirect; following a redirect would send the token to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// request describes one request to the API. At most one of jsonBody and body is set.
type request struct {
	method      string      // HTTP method, such as GET
	path        []string    // segments of the path below the API's prefix, not escaped
	query       url.Values  // query parameters
	header      http.Header // additional headers; nil for none
	jsonBody    any         // value that is encoded as JSON and sent as the body; nil for none
	body        io.Reader   // reader of the body, which is sent unchanged; nil for none
	contentType string      // content type of the field body
}

// get returns a request with the method GET for the path with these segments.
func get(path ...string) request { return request{method: http.MethodGet, path: path} }

// post returns a request with the method POST for the path with these segments. in is the JSON body; nil means no body.
func post(in any, path ...string) request {
	return request{method: http.MethodPost, path: path, jsonBody: in}
}

// put returns a request with the method PUT for the path with these segments. in is the JSON body; nil means no body.
func put(in any, path ...string) request {
	return request{method: http.MethodPut, path: path, jsonBody: in}
}

// remove returns a request with the method DELETE for the path with these segments.
func remove(path ...string) request { return request{method: http.MethodDelete, path: path} }

// withHeader returns r with the headers h instead of its own.
func (r request) withHeader(h http.Header) request {
	r.header = h
	return r
}

// addParam adds a query parameter to r.
func (r *request) addParam(name, value string) {
	if r.query == nil {
		r.query = url.Values{}
	}
	r.query.Add(name, value)
}

// withParam returns r with a query parameter added, or r unchanged if value is empty.
func (r request) withParam(name, value string) request {
	if value != "" {
		r.addParam(name, value)
	}
	return r
}

// withFlag returns r with the query parameter name=true added if set is true, or else r unchanged.
func (r request) withFlag(name string, set bool) request {
	if set {
		r.addParam(name, "true")
	}
	return r
}

// withNumber returns r with a query parameter added, or r unchanged if n is 0.
func (r request) withNumber(name string, n int64) request {
	if n != 0 {
		r.addParam(name, strconv.FormatInt(n, 10))
	}
	return r
}

// withStates returns r with query parameters that select the objects in one of these states, or all objects if states is empty.
func withStates[S ~string](r request, states []S) request {
	for _, s := range states {
		r.addParam("state", string(s))
	}
	return r
}

// requestURL returns the URL for the path segments below the API's prefix. Returns Invalid if a segment is "", "." or "..", which
// the server does not accept.
func (c *requester) requestURL(segments []string, query url.Values) (string, error) {
	path := protocol.Prefix
	for _, s := range segments {
		if s == "" || s == "." || s == ".." {
			return "", caisson.Invalidf("ref", "%q is not a name or id", s)
		}
		path += "/" + url.PathEscape(s)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.base.String() + path, nil
}

// authorize adds the headers that identify the caller.
func (c *requester) authorize(h http.Header) {
	if c.account != "" {
		h.Set(protocol.AccountHeader, c.account)
	}
	if !c.token.IsZero() {
		h.Set("Authorization", "Bearer "+c.token.Reveal())
	}
}

// send sends a request. It returns the response, whose body the caller must close, or the error that an error response contains.
func (c *requester) send(ctx context.Context, req request) (*http.Response, error) {
	target, err := c.requestURL(req.path, req.query)
	if err != nil {
		return nil, err
	}
	body := req.body
	if req.jsonBody != nil {
		b, err := json.Marshal(req.jsonBody)
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "the request cannot be encoded")
		}
		body, req.contentType = bytes.NewReader(b), "application/json"
	}
	hr, err := http.NewRequestWithContext(ctx, req.method, target, body)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "the request is malformed")
	}
	for k, v := range req.header {
		hr.Header[k] = v
	}
	if req.contentType != "" {
		hr.Header.Set("Content-Type", req.contentType)
	}
	if req.body != nil {
		// The body is not sent before the server's 100 Continue, or a timeout. Otherwise, if the server refused the request
		// without reading the body, the client could get an error of the connection instead of the refusal.
		hr.Header.Set("Expect", "100-continue")
	}
	c.authorize(hr.Header)
	resp, err := c.doWithRetry(hr)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if c.notice != nil {
		c.notice(Notice{Version: resp.Header.Get(protocol.VersionHeader), Changed: resp.Header.Get(protocol.ChangedHeader)})
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		err := responseError(resp)
		if caisson.KindOf(err) == caisson.NotFound && strings.HasPrefix(caisson.MessageOf(err), protocol.UnknownRequest) {
			err = caisson.Wrap(err, caisson.Unavailable, "the daemon is older than this command and does not know its request; to replace it by one of this version: caisson daemon restart")
		}
		return nil, err
	}
	return resp, nil
}

// dial connects to the daemon's unix socket, and starts a daemon if no process listens on the socket.
func (c *requester) dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	nc, err := dialer.DialContext(ctx, "unix", c.socket)
	if c.start == nil || !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return nc, err
	}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	return dialer.DialContext(ctx, "unix", c.socket)
}

// doWithRetry sends a request. It repeats a GET in two cases. If the connection was refused, it retries with backoff, because the
// daemon may be restarting. If the client can start daemons and the connection ended without a response, it retries once, because
// the daemon may have accepted the connection and then exited because it was idle; the retry may start another daemon.
func (c *requester) doWithRetry(r *http.Request) (*http.Response, error) {
	closed := false
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		resp, err := c.http.Do(r)
		if err == nil || r.Method != http.MethodGet || r.Context().Err() != nil {
			return resp, err
		}
		if c.start != nil && !closed && connectionClosed(err) {
			closed = true
			continue
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || wait > 400*time.Millisecond {
			return resp, err
		}
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
			return nil, err
		}
	}
}

// connectionClosed reports whether err means that the daemon closed the connection before it sent a response.
func connectionClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// unreachable returns the error for a request to which no response has arrived.
func (c *requester) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, ok := errors.AsType[*caisson.Error](err); ok {
		return err // the reader of the request's body has failed
	}
	if c.socket != "" {
		return caisson.Wrap(err, caisson.Unavailable, "no daemon answers on %s; start one with caisson serve", c.socket)
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return caisson.Wrap(err, caisson.Unavailable, "the server at %s does not use TLS; if it is a daemon on this machine without tlsCert, write http://", c.base)
	}
	return caisson.Wrap(err, caisson.Unavailable, "no daemon answers at %s; does it run there, with caisson serve --listen, and is the URL right?", c.base)
}

// Limits on the size of responses that are read into memory, in bytes.
const (
	maxAnswer  = 64 << 20 // for the JSON response to a successful request
	maxProblem = 64 << 10 // for an error response, and for the response to a request that passes descriptors
)

// responseError returns the error that the body of an error response describes.
func responseError(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		b = nil
	}
	return protocol.ParseProblem(resp.StatusCode, b)
}

// call sends a request and decodes the JSON response.
func call[T any](ctx context.Context, c *requester, req request) (T, error) {
	var v T
	resp, err := c.send(ctx, req)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	return decode[T](ctx, resp.Body)
}

// callPage requests one page of a listing, of at most limit items; 0 is the daemon's default. more reports whether more follow.
func callPage[T any](ctx context.Context, c *requester, req request, limit int) (page []T, more bool, err error) {
	p, err := call[protocol.Page[T]](ctx, c, req.withNumber("limit", int64(limit)))
	return p.Items, p.Next != "", err
}

// callList requests a listing that has no pages.
func callList[T any](ctx context.Context, c *requester, req request) ([]T, error) {
	p, err := call[protocol.Page[T]](ctx, c, req)
	return p.Items, err
}

// decode decodes a JSON response of at most maxAnswer bytes.
func decode[T any](ctx context.Context, r io.Reader) (T, error) {
	var v, zero T
	if err := json.NewDecoder(io.LimitReader(r, maxAnswer)).Decode(&v); err != nil {
		return zero, incompleteResponse(ctx, err)
	}
	return v, nil
}

// incompleteResponse returns the error for an incomplete or malformed response.
func incompleteResponse(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return caisson.Wrap(err, caisson.Unavailable, "the daemon's answer broke off or is malformed")
}

// do sends a request whose response has no body.
func (c *requester) do(ctx context.Context, req request) error {
	resp, err := c.send(ctx, req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// openStream sends a request whose response is a stream, and returns the stream, which the caller must close. The stream ends
// when ctx ends.
func (c *requester) openStream(ctx context.Context, req request) (io.ReadCloser, error) {
	resp, err := c.send(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
