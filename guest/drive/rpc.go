package drive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/caisson-dev/caisson"
)

// maxQueued is the maximum number of messages that wait to be sent to the agent.
const maxQueued = 64

// Error codes of JSON-RPC.
const (
	rpcUnknownMethod = -32601 // there is no such method
	rpcBadParams     = -32602 // the parameters of the request are invalid
	rpcInternal      = -32603 // the request has failed for another reason
)

// rpcError is an error of JSON-RPC.
type rpcError struct {
	Code    int             `json:"code"`           // such as rpcInternal
	Message string          `json:"message"`        // description of the error
	Data    json.RawMessage `json:"data,omitempty"` // further information about the error
}

func (e *rpcError) Error() string {
	if len(e.Data) > 0 && string(e.Data) != "null" {
		return e.Message + " " + truncate(string(e.Data), 1<<10, "…")
	}
	return e.Message
}

// rpcMessage is a request, a notification or an answer.
type rpcMessage struct {
	Version string          `json:"jsonrpc"`          // version of JSON-RPC: 2.0
	ID      json.RawMessage `json:"id,omitempty"`     // id of the request; not set in a notification
	Method  string          `json:"method,omitempty"` // of a request or notification: name of the method that is called
	Params  json.RawMessage `json:"params,omitempty"` // of a request or notification: its parameters
	Result  json.RawMessage `json:"result,omitempty"` // of an answer: the result
	Error   *rpcError       `json:"error,omitempty"`  // of an answer: the error
}

// rpc is the driver's end of a JSON-RPC 2.0 connection to an agent, with one message per line. Incoming messages are handled one
// at a time and in order. No input is read while a message is handled, so the full pipe blocks an agent that sends too fast.
type rpc struct {
	out    Out                                                      // receives lines that are not messages, as a log
	handle func(method string, params json.RawMessage) (any, error) // returns the result of a request or notification of the agent
	send   chan []byte                                              // queue of encoded messages that the method write sends

	mu      sync.Mutex                  // guards lastID and pending
	lastID  int                         // id of the last request that the driver has sent
	pending map[string]chan *rpcMessage // for each request without an answer, by id, the channel that receives the answer
	closed  chan struct{}               // closed at the end of the input, while mu is held
}

// newRPC returns an rpc that has no streams yet. Lines from the agent that are not messages go to the log of out.
func newRPC(out Out) *rpc {
	return &rpc{out: out, send: make(chan []byte, maxQueued), pending: map[string]chan *rpcMessage{}, closed: make(chan struct{})}
}

// isClosed reports whether the input from the agent has ended.
func (c *rpc) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// write writes the queued messages to w until ctx is done. It runs in a goroutine of its own, because the agent may stop reading
// while its own messages are not read.
func (c *rpc) write(ctx context.Context, w io.Writer) {
	for {
		select {
		case b := <-c.send:
			if _, err := w.Write(b); err != nil {
				return // the agent has closed its input; the method read detects the end of the agent's output
			}
		case <-ctx.Done():
			return
		}
	}
}

// read reads messages of the agent from r and handles them, until the end of r.
func (c *rpc) read(ctx context.Context, r io.Reader) {
	defer c.close()
	in := newLines(r, maxJSON)
	for {
		line, whole, ok := in.next()
		if !ok {
			return
		}
		var m rpcMessage
		if !whole || json.Unmarshal(line, &m) != nil || m.Method == "" && m.ID == nil {
			c.out.Log(caisson.LogStdout, append(line, '\n')) // not a message: programs may print other text too
			continue
		}
		if m.Method == "" {
			c.handleAnswer(&m)
			continue
		}
		result, err := c.handle(m.Method, m.Params)
		if m.ID != nil {
			c.reply(ctx, m.ID, result, err)
		}
	}
}

// close makes all calls that wait for an answer, and all later calls, return errClosed.
func (c *rpc) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.closed)
	for id, waits := range c.pending {
		delete(c.pending, id)
		close(waits)
	}
}

// handleAnswer passes an answer to the call that waits for it. An answer that no call waits for is dropped.
func (c *rpc) handleAnswer(m *rpcMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := string(bytes.Trim(m.ID, `"`))
	if waits := c.pending[id]; waits != nil {
		delete(c.pending, id)
		waits <- m // does not block, because the channel has a buffer for one message
	}
}

// reply answers the agent's request with this id: with err, or if that is nil with result.
func (c *rpc) reply(ctx context.Context, id json.RawMessage, result any, err error) {
	m := rpcMessage{ID: id}
	if err == nil {
		m.Result, err = json.Marshal(result)
	}
	if err != nil {
		m.Result, m.Error = nil, &rpcError{Code: rpcInternal, Message: err.Error()}
		var known *rpcError
		if errors.As(err, &known) {
			m.Error = known
		}
	}
	_ = c.post(ctx, &m)
}

// post adds a message to the queue of messages to send. It waits while the queue is full.
func (c *rpc) post(ctx context.Context, m *rpcMessage) error {
	m.Version = "2.0"
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	select {
	case c.send <- append(b, '\n'):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// notify sends a notification, a message that the agent does not answer.
func (c *rpc) notify(ctx context.Context, method string, params any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	return c.post(ctx, &rpcMessage{Method: method, Params: raw})
}

// errClosed is the error of a call if the agent closed the connection before it answered.
var errClosed = errors.New("the agent has closed the connection without an answer")

// call sends a request to the agent, waits for the answer and decodes it into result, unless that is nil. Returns errClosed if
// the connection is closed. All messages that arrived before the answer have been handled when call returns.
func (c *rpc) call(ctx context.Context, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	waits := make(chan *rpcMessage, 1)
	c.mu.Lock()
	c.lastID++
	id := fmt.Sprint(c.lastID)
	if c.isClosed() {
		c.mu.Unlock()
		return errClosed
	}
	c.pending[id] = waits
	c.mu.Unlock()
	if err := c.post(ctx, &rpcMessage{ID: json.RawMessage(id), Method: method, Params: raw}); err != nil {
		return err
	}
	select {
	case m, ok := <-waits:
		switch {
		case !ok:
			return errClosed
		case m.Error != nil:
			return m.Error
		case result == nil:
			return nil
		}
		if err := json.Unmarshal(m.Result, result); err != nil {
			return fmt.Errorf("the agent's answer to %s: %w", method, err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
