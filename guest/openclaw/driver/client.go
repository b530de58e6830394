package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/caisson-dev/caisson/guest/task"
)

// errNotListening is the error of dial if no process listens on the port of OpenClaw's gateway.
var errNotListening = errors.New("connection refused")

// protocol is the version of OpenClaw's WebSocket protocol that this package implements.
const protocol = 4

const (
	maxFrame    = 26 << 20         // maximum size of a message, in bytes; OpenClaw's own limit is 25 MiB
	dialTime    = 10 * time.Second // timeout of one try to connect
	defaultWait = 30 * time.Second // default time that OpenClaw's gateway may take to start
	callTime    = 10 * time.Second // timeout of a request other than a prompt
)

// frame is any message of OpenClaw's WebSocket protocol.
type frame struct {
	Type    string          `json:"type"`              // req (a request), res (an answer) or event
	ID      string          `json:"id,omitempty"`      // id of a request; an answer has the id of its request
	Method  string          `json:"method,omitempty"`  // of a request: name of the method that is called
	Params  any             `json:"params,omitempty"`  // of a request: its parameters
	OK      bool            `json:"ok,omitempty"`      // of an answer: the request has succeeded
	Event   string          `json:"event,omitempty"`   // name of the event
	Payload json.RawMessage `json:"payload,omitempty"` // data of an answer or of an event
	Error   *callError      `json:"error,omitempty"`   // of an answer: the error, if OK is false
}

// callError is the error in OpenClaw's answer to a request.
type callError struct {
	Code       string          `json:"code"`                   // OpenClaw's keyword for the error
	Message    string          `json:"message"`                // OpenClaw's description of the error
	Details    json.RawMessage `json:"details,omitempty"`      // further information about the error
	Retryable  bool            `json:"retryable,omitempty"`    // the same request may succeed later
	RetryAfter int64           `json:"retryAfterMs,omitempty"` // delay before a retry, in milliseconds
}

// Error returns OpenClaw's description of the error and, in parentheses, its keyword for the error, both truncated.
func (e *callError) Error() string {
	return truncate(e.Message, 500) + " (" + truncate(e.Code, 40) + ")"
}

// A client is a connection to OpenClaw's gateway. Only one goroutine may read from it.
type client struct {
	conn    *websocket.Conn // connection to OpenClaw's gateway
	version string          // version of OpenClaw's gateway
	last    int             // number of requests sent; the number of a request is its id
}

// dial connects to OpenClaw's gateway, and retries while it is starting.
func dial(ctx context.Context, t *task.Task) (*client, error) {
	wait := time.Duration(t.ReadyTime)
	if wait <= 0 {
		wait = defaultWait
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		c, err := dialOnce(ctx, t)
		var refused *callError
		if err == nil || !errors.As(err, &refused) || !refused.Retryable {
			return c, err
		}
		select {
		case <-time.After(min(max(time.Duration(refused.RetryAfter)*time.Millisecond, 20*time.Millisecond), time.Second)):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// dialOnce connects to OpenClaw's gateway without retries. The error wraps errNotListening if no process listens on its port.
func dialOnce(ctx context.Context, t *task.Task) (*client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	// Proxies in the environment are ignored, because OpenClaw's gateway runs in this sandbox.
	dialer := &http.Client{Transport: &http.Transport{Proxy: nil, DialContext: (&net.Dialer{}).DialContext, DisableCompression: true}}
	//nolint:bodyclose // the body is closed with the connection
	conn, _, err := websocket.Dial(ctx, "ws://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(t.Port)), &websocket.DialOptions{
		HTTPClient: dialer, CompressionMode: websocket.CompressionDisabled,
	})
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w on port %d", errNotListening, t.Port)
	} else if err != nil {
		return nil, err
	}
	conn.SetReadLimit(maxFrame)
	c := &client{conn: conn}
	if err := c.hello(ctx, t); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// connectParams has the parameters of the request "connect". The client connects as what OpenClaw calls a backend: over loopback,
// such a client need not be paired as a device. With the capability tool-events, it receives events about tool calls.
type connectParams struct {
	MinProtocol int               `json:"minProtocol"`    // lowest version of the protocol that the client speaks
	MaxProtocol int               `json:"maxProtocol"`    // highest version of the protocol that the client speaks
	Client      map[string]string `json:"client"`         // name, version and kind of this client
	Role        string            `json:"role"`           // role of the client: operator
	Scopes      []string          `json:"scopes"`         // rights of the client
	Caps        []string          `json:"caps"`           // capabilities of the client
	Auth        map[string]string `json:"auth,omitempty"` // token of OpenClaw's gateway
}

// hello waits for the challenge of OpenClaw's gateway, sends the request "connect", and sets c.version from the answer.
func (c *client) hello(ctx context.Context, t *task.Task) error {
	for {
		f, err := c.read(ctx)
		if err != nil {
			return err
		}
		if f.Type == "event" && f.Event == "connect.challenge" {
			break
		}
	}
	p := connectParams{
		MinProtocol: protocol, MaxProtocol: protocol, Role: "operator",
		Client: map[string]string{"id": "gateway-client", "version": "1", "platform": "linux", "mode": "backend"},
		Scopes: []string{"operator.admin", "operator.read", "operator.write"}, Caps: []string{"tool-events"},
	}
	if t.Secret != "" {
		p.Auth = map[string]string{"token": t.Secret}
	}
	payload, err := c.call(ctx, "connect", p)
	if err != nil {
		return err
	}
	var hello struct {
		Server struct {
			Version string `json:"version"`
		} `json:"server"`
	}
	if err := json.Unmarshal(payload, &hello); err != nil {
		return fmt.Errorf("the gateway's greeting is not valid: %w", err)
	}
	c.version = truncate(hello.Server.Version, 64)
	return nil
}

// send sends a request and returns its id.
func (c *client) send(ctx context.Context, method string, params any) (string, error) {
	c.last++
	id := strconv.Itoa(c.last)
	b, err := json.Marshal(frame{Type: "req", ID: id, Method: method, Params: params})
	if err != nil {
		return "", err
	}
	return id, c.conn.Write(ctx, websocket.MessageText, b)
}

// call sends a request and returns the answer. It drops other messages that arrive meanwhile, so it must not be used in a turn.
func (c *client) call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	id, err := c.send(ctx, method, params)
	if err != nil {
		return nil, err
	}
	for {
		f, err := c.read(ctx)
		if err != nil {
			return nil, err
		}
		if f.Type == "res" && f.ID == id {
			return f.result()
		}
	}
}

// result returns the payload of f, an answer, or the error in it.
func (f *frame) result() (json.RawMessage, error) {
	switch {
	case f.OK:
		return f.Payload, nil
	case f.Error != nil:
		return nil, f.Error
	}
	return nil, &callError{Code: "UNAVAILABLE", Message: "refused without a reason"}
}

// read returns the next message. If ctx is done, the connection is closed.
func (c *client) read(ctx context.Context) (*frame, error) {
	_, b, err := c.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	f := &frame{}
	if err := json.Unmarshal(b, f); err != nil {
		return nil, fmt.Errorf("the gateway sent an invalid message: %w", err)
	}
	return f, nil
}

// close closes the connection without waiting for OpenClaw's gateway.
func (c *client) close() {
	c.conn.CloseNow() //nolint:errcheck // the connection may be closed already
}
