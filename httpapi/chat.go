package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// defaultAgent is the id of the agent for chat requests that name no agent, unless the configuration sets another id.
const defaultAgent = "caisson"

// earlyFailureWait is how long the response to a chat request waits for the agent to start. The failure of a run in this time
// determines the HTTP status of the response; a later failure can only be an event.
const earlyFailureWait = 500 * time.Millisecond

// chatRoutes serves chats with agents. Each chat request starts a run and streams its events.
type chatRoutes struct {
	agents   caisson.Agents
	runs     caisson.Runs
	fallback string // id of the agent for chat requests that name no agent
}

// chatDescription is the description of chat requests in the OpenAPI document.
const chatDescription = `The agent answers as a run: it continues when the client disconnects, and its events can be read again with GET /runs/{id}/events.

The answer is a stream of server-sent events: RunEvents named by their type, with seq as id. With ?protocol=ui-message, or that parameter in
Accept (text/event-stream; protocol=ui-message), it is a stream of UI message chunks for the AI SDK.

The conversation is named by stateKey or X-State-Key; without one a new name is made. X-State-Key of the answer has it. It is the
conversation of this account, agent and X-User-Id, which is the account's name for the person who chats.

A failure before the agent has begun is answered with its status: 400 with all that is wrong in details, 402 if there is no credit, 403, 404 for
an unknown agent, 408 if time was over, 409 if the conversation has another run under way or the model may not be used (defaultModelId names
another), 429, 503 if there is no capacity. A later failure is an event.`

func (h chatRoutes) register(rt *router) {
	const tag = "chat"
	registerRoute(rt, getOp("/ai/agents", "list-chat-agents", tag, "List the agents that are available for chats, sorted by name"), h.catalog)
	o := withEventStream(postOp("/ai/chat", "chat", tag, "Send a message to an agent, and stream its answer"),
		"Events named by their type, with a RunEvent each and its seq as id")
	o.Description = chatDescription
	o.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {}}}
	registerStreamRoute(rt, o, h.chat(rt))
	setBodySchema(o, &huma.Schema{Ref: "#/components/schemas/ChatRequest"})
	o.Responses["default"] = &huma.Response{Description: "Error", Content: map[string]*huma.MediaType{
		protocol.ProblemType: {Schema: &huma.Schema{Ref: "#/components/schemas/ChatProblem"}},
	}}
}

func (h chatRoutes) catalog(ctx context.Context, _ *struct{}) (protocol.AgentCatalog, error) {
	list, err := h.agents.ListAgents(ctx)
	return newAgentCatalog(list, h.fallback), err
}

// chatInput contains the parameters of a chat request except its body, which [readChat] reads.
type chatInput struct {
	// The handler validates the fields of chatInput itself, so that errors in them have the same format as errors in the body.
	StateKey string `header:"X-State-Key" doc:"Key of the conversation; 1 to 512 letters, digits and . _ : -"`
	User     string `header:"X-User-Id" doc:"The account's name for the person who chats; at most 256 characters"`
	Protocol string `query:"protocol" doc:"ui-message for the AI SDK's stream"`
}

// chat returns the handler of chat requests. The handler writes errors that occur before the response has begun as a
// [protocol.ChatProblem].
func (h chatRoutes) chat(rt *router) func(http.ResponseWriter, *http.Request, *chatInput) error {
	return func(w http.ResponseWriter, r *http.Request, in *chatInput) error {
		err := h.serve(w, r, in)
		if t, ok := w.(*responseTracker); err != nil && ok && !t.wrote {
			p := h.problem(r.Context(), rt, err)
			writeProblem(w, p.Status, p)
			return nil
		}
		return err
	}
}

// serve handles a chat request. If it returns an error before it has written anything, the caller must write the response.
func (h chatRoutes) serve(w http.ResponseWriter, r *http.Request, in *chatInput) error {
	say, err := encoderFor(r, in.Protocol)
	if err != nil {
		return err
	}
	req, err := readChat(w, r, in)
	if err != nil {
		return err
	}
	req.agent = cmp.Or(req.agent, h.fallback)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	run, err := h.runs.StartRun(ctx, caisson.RunRequest{
		Agent: req.agent, Prompt: req.prompt, History: req.history, Model: req.model, Session: req.stateKey, User: in.User,
	})
	if err != nil {
		return chatError{err, req.agent}
	}
	w.Header().Set(protocol.StateKeyHeader, req.stateKey)
	w.Header().Set(protocol.RunHeader, string(run.ID))
	events, err := h.runs.WatchRun(ctx, run.ID, 0)
	if err != nil {
		return err
	}
	early, err := readUntilStarted(events)
	if err != nil {
		return chatError{err, req.agent}
	}
	s := newSSEWriter(w)
	say.setHeader(w.Header())
	if err := sendRun(r.Context(), s, say, early, events); err != nil {
		return err
	}
	return say.end(s)
}

// readChat reads and validates a chat request. If it has no state key, the key of its conversation, readChat generates one.
func readChat(w http.ResponseWriter, r *http.Request, in *chatInput) (*chatRequest, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, chatErrors{{Message: "the body has more than " + caisson.Size(bodyLimit).String()}}
	} else if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "the body broke off")
	}
	req, err := parseChat(data)
	if err != nil {
		return nil, err
	}
	var c chatParser
	switch msg := checkStateKey(in.StateKey); {
	case msg != "":
		c.addError(protocol.StateKeyHeader, "%s", msg)
	case in.StateKey != "" && req.stateKey != "" && in.StateKey != req.stateKey:
		c.addError("stateKey", "is another one than that of %s", protocol.StateKeyHeader)
	}
	if len([]rune(in.User)) > 256 || strings.ContainsFunc(in.User, unicode.IsControl) {
		c.addError(protocol.UserHeader, "has at most 256 characters, none of them a control character")
	}
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	req.stateKey = cmp.Or(req.stateKey, in.StateKey, rand.Text())
	return req, nil
}

// readUntilStarted reads events until the agent has started or earlyFailureWait has passed, and returns them. If the run fails
// before that, it returns the run's error.
func readUntilStarted(events <-chan caisson.RunEvent) (early []caisson.RunEvent, err error) {
	timer := time.NewTimer(earlyFailureWait)
	defer timer.Stop()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return early, nil
			}
			if e.Type == caisson.EventError && e.Error != nil {
				return nil, e.Error
			}
			early = append(early, e)
			if hasStarted(e) {
				return early, nil
			}
		case <-timer.C:
			return early, nil
		}
	}
}

// hasStarted reports whether e shows that the agent has started.
func hasStarted(e caisson.RunEvent) bool {
	if e.Type == caisson.EventStatus {
		return e.Phase != "queued" && e.Phase != "starting" && e.Phase != "warning" && e.Phase != "ending"
	}
	return e.Type != caisson.EventUsage
}

// A chatEncoder writes the events of a run in one of the stream formats of chats.
type chatEncoder interface {
	setHeader(h http.Header)                       // adds the format's headers to the response
	encode(s *sseWriter, e caisson.RunEvent) error // writes one event
	end(s *sseWriter) error                        // writes what the format requires after the last event
}

// encoderFor returns the encoder for the stream format that the request selects: with name, the value of the query parameter
// protocol, or, if name is "", with the parameter protocol of the media type text/event-stream in Accept.
func encoderFor(r *http.Request, name string) (chatEncoder, error) {
	for _, accepted := range strings.Split(strings.Join(r.Header.Values("Accept"), ","), ",") {
		if kind, params, err := mime.ParseMediaType(accepted); err == nil && kind == protocol.EventType && name == "" {
			name = params["protocol"]
		}
	}
	switch name {
	case "", "events":
		return eventEncoder{}, nil
	case "ui-message":
		return &uiMessageEncoder{}, nil
	}
	return nil, chatErrors{{Path: "protocol", Message: "must be events or ui-message"}}
}

// eventEncoder writes each event of a run as JSON in a server-sent event that has the event's type as its name.
type eventEncoder struct{}

func (eventEncoder) setHeader(http.Header) {}

func (eventEncoder) encode(s *sseWriter, e caisson.RunEvent) error { return s.send(e.Seq, e.Type, e) }

func (eventEncoder) end(*sseWriter) error { return nil }

// chatError adds the id of the chat's agent to an error.
type chatError struct {
	err   error
	agent string // id of the chat's agent
}

func (e chatError) Error() string { return e.err.Error() }
func (e chatError) Unwrap() error { return e.err }

// runErrorStatuses maps the error code of a run that failed before the response began to the HTTP status of the response.
var runErrorStatuses = map[string]int{
	caisson.RunInvalid:    http.StatusBadRequest,
	caisson.RunNotFound:   http.StatusNotFound,
	caisson.RunTimeout:    http.StatusRequestTimeout,
	caisson.RunAborted:    http.StatusConflict,
	caisson.RunRateLimit:  http.StatusTooManyRequests,
	caisson.RunNoCredits:  http.StatusPaymentRequired,
	caisson.RunAgentError: http.StatusBadGateway,
	caisson.RunProvider:   http.StatusBadGateway,
	caisson.RunInternal:   http.StatusInternalServerError,
}

// problem returns the error response to a chat request for err.
func (h chatRoutes) problem(ctx context.Context, rt *router, err error) *protocol.ChatProblem {
	p := protocol.ChatProblemOf(err)
	if failed, ok := errors.AsType[*caisson.RunError](err); ok && runErrorStatuses[failed.Code] != 0 {
		p.Status, p.Code, p.Detail = runErrorStatuses[failed.Code], failed.Code, failed.Message
	} else if p.Status >= http.StatusInternalServerError {
		p = protocol.ChatProblemOf(rt.problem(ctx, err).Err()) // rt.problem logs err
	}
	if faults, ok := errors.AsType[chatErrors](err); ok {
		p.Details = faults
	}
	if e, ok := errors.AsType[chatError](err); ok && p.Field == "model" {
		p.Status = http.StatusConflict
		p.DefaultModelID = h.defaultModel(ctx, e.agent)
	}
	p.Title, p.Error = http.StatusText(p.Status), p.Detail
	return p
}

// defaultModel returns the first model that an agent may use, nil if the agent lists none or cannot be read.
func (h chatRoutes) defaultModel(ctx context.Context, agent string) *string {
	a, err := h.agents.GetAgent(ctx, agent)
	if err != nil || len(a.Models) == 0 {
		return nil
	}
	return &a.Models[0]
}
