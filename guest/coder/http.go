package coder

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Timeouts for a request to a server.
const (
	dialTime = 20 * time.Second // timeout for connecting to the server
	sendTime = time.Minute      // timeout for sending the request
	headTime = 10 * time.Minute // timeout of a read of the response's headers; a model may think long before it answers
	idleTime = 5 * time.Minute  // timeout of a read of the response's body
)

const (
	maxHead    = 64 << 10 // maximum size of a response's headers, in bytes
	maxInterim = 8        // maximum number of responses to a request, including those of status 1xx before the final one
)

// server is the address of an HTTP server that the wire provides, such as the model gateway.
type server struct {
	url  string // URL without a slash at the end
	addr string // HOST:PORT to connect to
}

// parseServer parses http://HOST[:PORT][/PATH].
func parseServer(text string) (server, error) {
	odd := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("@?#", r) }
	u, err := url.Parse(text)
	switch {
	case !strings.HasPrefix(text, "http://"):
		return server{}, fmt.Errorf("%.200q does not begin with http://, and nothing else is spoken here", text)
	case err != nil || u.Host == "" || strings.ContainsFunc(text, odd):
		return server{}, fmt.Errorf("%.200q does not have the form http://HOST:PORT/PATH", text)
	}
	return server{strings.TrimRight(text, "/"), net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))}, nil
}

// errNetwork is wrapped by errors of a connection, after which a retry may succeed.
var errNetwork = errors.New("the connection failed")

// do sends a request on a new connection, and returns the response, whose body must be closed. header is added to the request's
// headers. Redirects are not followed, and proxies from the environment are not used. When ctx is done, reading the body fails.
func (s server) do(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequest(method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Close, req.Header = true, http.Header{"User-Agent": {"caisson-agent"}, "Accept": {"*/*"}}
	maps.Copy(req.Header, header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNetwork, err)
	}
	c := &stream{Conn: conn, idle: headTime, stop: context.AfterFunc(ctx, func() { conn.Close() })}
	res, err := c.exchange(req)
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w: %w", errNetwork, err)
	}
	return res, nil
}

// stream is the connection to a server for one HTTP request.
type stream struct {
	net.Conn
	idle time.Duration // timeout of each read from the connection
	stop func() bool   // result of context.AfterFunc: keeps the end of the context from closing the connection
}

// Read implements [io.Reader] with the timeout c.idle.
func (c *stream) Read(p []byte) (int, error) {
	c.SetReadDeadline(time.Now().Add(c.idle))
	return c.Conn.Read(p)
}

// Close closes the connection.
func (c *stream) Close() error {
	c.stop()
	return c.Conn.Close()
}

// exchange sends a request and reads the head of the response. Closing the response's body closes the connection.
// http.Transport is not used because it drops the response if sending the request fails, as it does when a server refuses the
// body and closes the connection.
func (c *stream) exchange(req *http.Request) (*http.Response, error) {
	c.SetWriteDeadline(time.Now().Add(sendTime))
	sendErr := req.Write(c.Conn)
	head := &bounded{c, maxHead + 1}
	r := bufio.NewReaderSize(head, 32<<10)
	for range maxInterim {
		res, err := http.ReadResponse(r, req)
		switch {
		case err != nil && sendErr != nil:
			return nil, sendErr
		case err != nil:
			// Formatted with %v and not %w, because to callers a wrapped errTooLong means that the body is too long.
			return nil, fmt.Errorf("read the answer: %v", err)
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the server switched to another protocol, which was not requested")
		case res.StatusCode < 200:
			continue
		}
		if coding := res.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
			return nil, errors.New("the answer is compressed, which was not requested")
		}
		head.left, c.idle = math.MaxInt64, idleTime
		// Closing the body closes the connection. The original Close method would read the body to its end.
		res.Body = struct {
			io.Reader
			io.Closer
		}{res.Body, c}
		return res, nil
	}
	return nil, errors.New("there are only interim answers")
}
