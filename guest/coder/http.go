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

// Timeouts for a server.
const (
	dialTime = 20 * time.Second
	sendTime = time.Minute
	headTime = 10 * time.Minute // until the headers of an answer arrive; a model may think for long before it answers
	idleTime = 5 * time.Minute  // between two parts of an answer
)

const (
	maxHead    = 64 << 10 // bytes of a response's headers
	maxInterim = 8        // responses of status 1xx before the real one
)

// server is a plain HTTP server that the wire provides.
type server struct {
	url  string // without a slash at the end
	addr string // with a port
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

// errNetwork marks errors after which a retry may succeed.
var errNetwork = errors.New("the connection failed")

// do sends a request with additional headers on a new connection, and returns the response, whose body must be closed. It does
// not follow redirects, and does not use proxies from the environment. When ctx is done, reading the body fails.
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

// stream is the connection of one request.
type stream struct {
	net.Conn
	idle time.Duration // read timeout
	stop func() bool   // releases the context's function that closes the connection
}

func (c *stream) Read(p []byte) (int, error) {
	c.SetReadDeadline(time.Now().Add(c.idle))
	return c.Conn.Read(p)
}

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
			// %v, because callers interpret errTooLong as a body that is too long.
			return nil, fmt.Errorf("read the answer: %v", err)
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the server switched to another protocol, which was not asked for")
		case res.StatusCode < 200:
			continue
		}
		if coding := res.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
			return nil, errors.New("the answer is compressed, which was not asked for")
		}
		head.left, c.idle = math.MaxInt64, idleTime
		// The Close method of the original body would read it to its end.
		res.Body = struct {
			io.Reader
			io.Closer
		}{res.Body, c}
		return res, nil
	}
	return nil, errors.New("there are only interim answers")
}
