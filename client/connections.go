package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// connections implements [caisson.Connections].
type connections struct{ c *requester }

// Connect implements [caisson.Connections].
func (s connections) Connect(ctx context.Context, ref string, req caisson.ConnectRequest) (caisson.Conn, error) {
	b, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	return s.c.upgrade(ctx, []string{"sandboxes", ref, "connections"}, protocol.StreamUpgrade, b)
}

// upgrade sends a request that changes its connection from HTTP to the protocol to, and returns the connection. ctx applies only
// to the request, and not to the connection.
func (c *requester) upgrade(ctx context.Context, path []string, to string, body []byte) (*upgradedConn, error) {
	target, err := c.requestURL(path, nil)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn = i.Conn }})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "the request is malformed")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", to)
	c.authorize(req.Header)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		if resp.StatusCode < http.StatusMultipleChoices {
			return nil, caisson.Errorf(caisson.Unavailable, "the daemon does not upgrade the connection to %s", to)
		}
		return nil, responseError(resp)
	}
	stream, ok := resp.Body.(stream)
	if !ok {
		resp.Body.Close()
		return nil, errors.New("this connection cannot be upgraded")
	}
	return &upgradedConn{conn, stream}, nil
}

// A stream is the body of a response that upgrades the connection. It reads from and writes to the connection.
type stream interface {
	io.ReadWriteCloser
	CloseWrite() error // ends the data to the daemon; reading continues
}

// An upgradedConn is a connection that carries another protocol than HTTP.
type upgradedConn struct {
	net.Conn        // the connection; used only for addresses and deadlines
	stream   stream // used for data, because its buffer may contain data that arrived together with the response
}

// Read implements [net.Conn].
func (u *upgradedConn) Read(p []byte) (int, error) { return u.stream.Read(p) }

// Write implements [net.Conn].
func (u *upgradedConn) Write(p []byte) (int, error) { return u.stream.Write(p) }

// Close implements [net.Conn].
func (u *upgradedConn) Close() error { return u.stream.Close() }

// CloseWrite implements [caisson.Conn].
func (u *upgradedConn) CloseWrite() error { return u.stream.CloseWrite() }
