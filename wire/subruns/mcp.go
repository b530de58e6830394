package subruns

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// The supported revisions of the Model Context Protocol, newest first. The sessions of the protocol are not used, because the
// wire identifies the sandbox of each request.
const (
	revision2025June  = "2025-06-18"
	revision2025March = "2025-03-26" // assumed for requests that name no revision
)

var revisions = []string{revision2025June, revision2025March}

const maxBatch = 16 // messages in one batch; only the older revision of the protocol has batches

// Error codes of JSON-RPC.
const (
	rpcNotJSON       = -32700 // the body is not JSON
	rpcInvalid       = -32600 // the JSON is not a valid message
	rpcNoMethod      = -32601 // the method does not exist
	rpcInvalidParams = -32602 // the params do not fit the method
	rpcRefused       = -32000 // defined by this server: the revision of the protocol is not supported
)

// A message is a JSON-RPC message of any kind.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`
}

// An rpcError is the error object of a JSON-RPC response.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// A response answers a request. ID is null if the request could not be parsed.
type response struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

func newResponse(id json.RawMessage, result any, err *rpcError) *response {
	if id == nil {
		id = json.RawMessage("null")
	}
	return &response{"2.0", id, result, err}
}

// messageKind is the kind of a JSON-RPC message.
type messageKind int

const (
	invalid      messageKind = iota // not a message of JSON-RPC 2.0
	request                         // a message of the client with a method and an id, which this server answers
	notification                    // a message of the client with a method and no id, which gets no answer
	reply                           // a response; this server sends no requests, so it expects none
)

// kind returns the kind of m. The ids of requests are strings or integers.
func (m *message) kind() messageKind {
	whole := len(m.ID) > 0 && isStringOrInt(m.ID)
	if string(m.Params) == "null" {
		m.Params = nil // some clients send null for no params
	}
	switch answered := m.Result != nil || m.Error != nil; {
	case m.Version != "2.0" || m.Params != nil && m.Params[0] != '{' && m.Params[0] != '[':
		return invalid
	case m.Method != "" && !answered && m.ID == nil:
		return notification
	case m.Method != "" && !answered && whole:
		return request
	case m.Method == "" && answered && whole:
		return reply
	}
	return invalid
}

// isStringOrInt reports whether v is a string of at most 256 bytes or an integer of at most 20 characters.
func isStringOrInt(v json.RawMessage) bool {
	if len(v) > 256 {
		return false
	}
	return v[0] == '"' || len(v) <= 20 && len(bytes.Trim(v, "-0123456789")) == 0
}

// mcp handles a POST request, whose body is one message or, in the older revision, a batch.
func (h *handler) mcp(w http.ResponseWriter, r *http.Request, e *engineClient, sandbox caisson.ID) {
	body, err := readBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	revision := cmp.Or(r.Header.Get("Mcp-Protocol-Version"), revision2025March)
	known := slices.Contains(revisions, revision)
	if err := wellFormed(body); err != nil {
		writeJSON(w, http.StatusBadRequest, newResponse(nil, nil, &rpcError{rpcNotJSON, "the body is not one JSON value: " + err.Error()}))
		return
	}
	if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
		if revision != revision2025March {
			writeJSON(w, http.StatusBadRequest, newResponse(nil, nil, &rpcError{rpcInvalid, "revision " + clip(revision, 20) + " does not support batches; send one message"}))
			return
		}
		h.batch(w, r, e, sandbox, body)
		return
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil || m.kind() == invalid {
		writeJSON(w, http.StatusBadRequest, newResponse(nil, nil, &rpcError{rpcInvalid, "this is no message of JSON-RPC 2.0"}))
		return
	}
	// An initialize request negotiates the revision, so it may name an unsupported one.
	if !known && m.Method != "initialize" {
		writeJSON(w, http.StatusBadRequest, newResponse(nil, nil, &rpcError{rpcRefused, "unsupported protocol version: there are " + strings.Join(revisions, " and ")}))
		return
	}
	if m.kind() != request {
		h.handleNotification(sandbox, &m)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	ctx, done := h.pending.begin(r.Context(), sandbox, m.ID)
	defer done()
	var s *stream
	if m.mayWait() && strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/event-stream") {
		s = newStream(w)
	}
	got := h.handleRequest(ctx, e, &m, s)
	if s == nil {
		writeJSON(w, http.StatusOK, got)
		return
	}
	s.end(got)
}

// batch handles a batch of messages and writes the responses in one array.
func (h *handler) batch(w http.ResponseWriter, r *http.Request, e *engineClient, sandbox caisson.ID, body []byte) {
	var list []message
	if err := json.Unmarshal(body, &list); err != nil || len(list) == 0 || len(list) > maxBatch {
		writeJSON(w, http.StatusBadRequest, newResponse(nil, nil, &rpcError{rpcInvalid, "a batch has from 1 to 16 messages of JSON-RPC 2.0"}))
		return
	}
	var out []*response
	for i := range list {
		switch m := &list[i]; {
		case m.kind() == invalid:
			out = append(out, newResponse(nil, nil, &rpcError{rpcInvalid, "this is no message of JSON-RPC 2.0"}))
		case m.kind() != request:
			h.handleNotification(sandbox, m)
		case m.Method == "initialize":
			out = append(out, newResponse(m.ID, nil, &rpcError{rpcInvalid, "initialize comes alone"}))
		default:
			ctx, done := h.pending.begin(r.Context(), sandbox, m.ID)
			out = append(out, h.handleRequest(ctx, e, m, nil))
			done()
		}
	}
	if out == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	writeJSON(w, http.StatusOK, out)
}

// handleNotification handles a message that needs no response. A notifications/cancelled message cancels the request that it
// names; other messages are ignored.
func (h *handler) handleNotification(sandbox caisson.ID, m *message) {
	var p struct {
		Request json.RawMessage `json:"requestId"`
	}
	if m.Method == "notifications/cancelled" && json.Unmarshal(m.Params, &p) == nil && p.Request != nil {
		h.pending.cancel(sandbox, p.Request)
	}
}

// handleRequest executes one request. Its progress is reported to s unless s is nil.
func (h *handler) handleRequest(ctx context.Context, e *engineClient, m *message, s *stream) *response {
	var result any
	var err *rpcError
	switch m.Method {
	case "initialize":
		result, err = initialize(m.Params)
	case "ping":
		result = struct{}{}
	case "tools/list":
		result = struct {
			Tools []toolSpec `json:"tools"`
		}{toolSpecs}
	case "tools/call":
		result, err = callTool(ctx, e, m.Params, s)
	default:
		err = &rpcError{rpcNoMethod, "there is no method " + clip(m.Method, 60)}
	}
	if err != nil {
		result = nil
	}
	return newResponse(m.ID, result, err)
}

const instructions = "These tools give tasks to other agents, each in a separate sandbox without access to your files. Their time and cost count against " +
	"your own limits, and they are cancelled when your run ends."

// initialize returns the result of an initialize request, which negotiates the revision of the protocol.
func initialize(params json.RawMessage) (any, *rpcError) {
	var p struct {
		Version string `json:"protocolVersion"`
	}
	if params == nil || json.Unmarshal(params, &p) != nil || p.Version == "" {
		return nil, &rpcError{rpcInvalidParams, "protocolVersion is missing"}
	}
	if !slices.Contains(revisions, p.Version) {
		p.Version = revisions[0] // the newest revision; the client decides whether it supports it
	}
	type info struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	return struct {
		Version      string                         `json:"protocolVersion"`
		Capabilities map[string]map[string]struct{} `json:"capabilities"`
		Server       info                           `json:"serverInfo"`
		Instructions string                         `json:"instructions"`
	}{p.Version, map[string]map[string]struct{}{"tools": {}}, info{"caisson", "1"}, instructions}, nil
}

// clip returns the first n bytes of s at most, without invalid UTF-8.
func clip(s string, n int) string {
	return strings.ToValidUTF8(s[:min(len(s), n)], "")
}
