package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// bodyLimit is the maximum size of a JSON body in bytes, unless an operation sets another one.
const bodyLimit = 1 << 20

// router registers routes with Huma.
type router struct {
	mux        *http.ServeMux
	api        huma.API
	log        *slog.Logger
	apiContext context.Context // context that ends when the API is closed, to end streamed responses and exec sessions
	// document, set by finish, returns the OpenAPI document. The first call generates it, because few daemons ever serve it.
	document func() ([]byte, error)
}

// newRouter returns a router without routes. The context open must end when the API is closed.
func newRouter(open context.Context, log *slog.Logger) *router {
	rt := &router{mux: http.NewServeMux(), log: log, apiContext: open}
	registry := huma.NewMapRegistry("#/components/schemas/", schemaName)
	registerDomainSchemas(registry)
	json := huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: unmarshal}
	rt.api = humago.NewWithPrefix(rt.mux, protocol.Prefix, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title:       "Caisson",
				Version:     "1",
				Description: "Sealed sandboxes for AI agents. No authentication is needed over the unix socket; a bearer token is required over TCP.",
			},
			Components: &huma.Components{
				Schemas:         registry,
				SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}},
			},
			Security: []map[string][]string{{"token": {}}, {}},
		},
		Formats:                      map[string]huma.Format{"application/json": json, "json": json},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{translateErrors},
	})
	rt.api.UseMiddleware(func(ctx huma.Context, next func(huma.Context)) { next(&statusContext{humaContext: ctx}) })
	return rt
}

// finish sets document and registers the route of the OpenAPI document. It must be called after all other routes are registered.
func (rt *router) finish() {
	registry := rt.api.OpenAPI().Components.Schemas
	for _, t := range []reflect.Type{ // types that only streamed responses contain, so that no operation refers to them
		reflect.TypeFor[caisson.ExecRequest](), reflect.TypeFor[caisson.AttachRequest](), reflect.TypeFor[protocol.Message](), reflect.TypeFor[caisson.Progress](),
		reflect.TypeFor[caisson.Event](), reflect.TypeFor[caisson.FileEvent](), reflect.TypeFor[protocol.Handles](),
		reflect.TypeFor[caisson.RunEvent](), reflect.TypeFor[protocol.ChatRequest](), reflect.TypeFor[protocol.ChatProblem](),
	} {
		registry.Schema(t, true, "")
	}
	schemas := registry.Map()
	delete(schemas, "ErrorModel") // Huma's own type of errors, which no response contains
	delete(schemas, "ErrorDetail")
	rt.document = sync.OnceValues(func() ([]byte, error) {
		doc, err := json.MarshalIndent(rt.api.OpenAPI(), "", "  ")
		if err != nil {
			return nil, fmt.Errorf("describe the API: %w", err)
		}
		return append(doc, '\n'), nil
	})
	rt.mux.HandleFunc("GET "+protocol.Prefix+"/openapi.json", func(w http.ResponseWriter, r *http.Request) {
		doc, err := rt.document()
		if err != nil {
			writeError(w, rt.problem(r.Context(), err))
			return
		}
		w.Header().Set("Content-Type", "application/openapi+json")
		w.Write(doc)
	})
}

// newOperation returns the description of an operation. id is the operation's name in generated clients.
func newOperation(method, path, id, tag, summary string) huma.Operation {
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{tag},
		MaxBodyBytes: bodyLimit, BodyReadTimeout: bodyTimeout,
	}
}

func getOp(path, id, tag, summary string) huma.Operation {
	return newOperation(http.MethodGet, path, id, tag, summary)
}

func postOp(path, id, tag, summary string) huma.Operation {
	return newOperation(http.MethodPost, path, id, tag, summary)
}

func putOp(path, id, tag, summary string) huma.Operation {
	return newOperation(http.MethodPut, path, id, tag, summary)
}

func deleteOp(path, id, tag, summary string) huma.Operation {
	return newOperation(http.MethodDelete, path, id, tag, summary)
}

// withCreated returns o with status 201 for success.
func withCreated(o huma.Operation) huma.Operation {
	o.DefaultStatus = http.StatusCreated
	return o
}

// withResponse returns o with a response whose media type is not JSON, or which has no content if contentType is "".
func withResponse(o huma.Operation, status int, contentType, description string) huma.Operation {
	r := &huma.Response{Description: description}
	if contentType != "" {
		r.Content = map[string]*huma.MediaType{contentType: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}
	}
	o.Responses = map[string]*huma.Response{strconv.Itoa(status): r}
	o.DefaultStatus = status
	return o
}

// withEventStream returns o with a response of server-sent events.
func withEventStream(o huma.Operation, description string) huma.Operation {
	return withResponse(o, http.StatusOK, protocol.EventType, description)
}

// withUpload returns o with a request body of this media type, which the handler reads itself as a stream.
func withUpload(o huma.Operation, contentType string) huma.Operation {
	o.RequestBody = &huma.RequestBody{
		Required: true,
		Content:  map[string]*huma.MediaType{contentType: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
	}
	return o
}

// setBodySchema sets the schema of the body of o. It must be called after the registration of o: otherwise Huma would read and
// validate the body itself.
func setBodySchema(o huma.Operation, schema *huma.Schema) {
	for _, m := range o.RequestBody.Content {
		m.Schema = schema
	}
}

// body is a request or a response with a JSON body, in the form that Huma requires.
type body[T any] struct{ Body T }

// noContent is a response without a body.
type noContent struct{}

// withJSONResponse returns o with a JSON response that the handler writes itself.
func withJSONResponse[T any](rt *router, o huma.Operation) huma.Operation {
	schema := rt.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
	o.Responses = map[string]*huma.Response{"200": {
		Description: "OK", Content: map[string]*huma.MediaType{"application/json": {Schema: schema}},
	}}
	return o
}

// register registers fn as the handler of the operation o. An error of fn is answered with a problem.
func register[I, O any](rt *router, o huma.Operation, fn func(context.Context, *I) (*O, error)) {
	if o.Responses == nil {
		o.Responses = map[string]*huma.Response{}
	}
	problem := rt.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[protocol.Problem](), true, "Problem")
	o.Responses["default"] = &huma.Response{
		Description: "Error",
		Content:     map[string]*huma.MediaType{protocol.ProblemType: {Schema: problem}},
	}
	huma.Register(rt.api, o, func(ctx context.Context, in *I) (*O, error) {
		out, err := fn(ctx, in)
		if err != nil {
			return nil, problemError{rt.problem(ctx, err)}
		}
		return out, nil
	})
}

// registerRoute registers a route whose response is the result of fn as JSON, or a problem for its error.
func registerRoute[I, T any](rt *router, o huma.Operation, fn func(context.Context, *I) (T, error)) {
	register(rt, o, func(ctx context.Context, in *I) (*body[T], error) {
		v, err := fn(ctx, in)
		return &body[T]{v}, err
	})
}

// registerListRoute registers a route whose response contains all that fn returns, as a list without further pages.
func registerListRoute[I, T any](rt *router, o huma.Operation, fn func(context.Context, *I) ([]T, error)) {
	registerRoute(rt, o, func(ctx context.Context, in *I) (protocol.Page[T], error) {
		list, err := fn(ctx, in)
		return newPage(list, false, asIs, nil), err
	})
}

// registerActionRoute registers a route whose response has no body.
func registerActionRoute[I any](rt *router, o huma.Operation, fn func(context.Context, *I) error) {
	register(rt, o, func(ctx context.Context, in *I) (*noContent, error) { return nil, fn(ctx, in) })
}

// registerStreamRoute registers a route whose response fn writes itself. An error before the first byte is answered with a
// problem; a later error closes the connection, so that the client does not take a partial response for complete. The request's
// context is also cancelled when the API is closed.
func registerStreamRoute[I any](rt *router, o huma.Operation, fn func(http.ResponseWriter, *http.Request, *I) error) {
	register(rt, o, func(_ context.Context, in *I) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			r, w := humago.Unwrap(hc)
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(rt.apiContext, cancel)()
			err := fn(w, r.WithContext(ctx), in)
			if err == nil {
				return
			}
			t, ok := w.(*responseTracker)
			if ok && !t.wrote {
				rt.fail(t, r, err)
				return
			}
			rt.problem(ctx, err)
			panic(http.ErrAbortHandler)
		}}, nil
	})
}

// problemError is a problem as an error that Huma writes as the response.
type problemError struct{ *protocol.Problem }

func (p problemError) Error() string             { return p.Detail }
func (p problemError) GetStatus() int            { return p.Status }
func (p problemError) ContentType(string) string { return protocol.ProblemType }

// writeJSON writes v as JSON, for routes that write their response themselves.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, err = w.Write(append(b, '\n'))
	return err
}

// writeError writes p as the response.
func writeError(w http.ResponseWriter, p *protocol.Problem) { writeProblem(w, p.Status, p) }

// writeProblem writes p as the response. p is a problem of any type that has only strings and numbers.
func writeProblem(w http.ResponseWriter, status int, p any) {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // cannot happen: p has only strings and numbers
	}
	w.Header().Set("Content-Type", protocol.ProblemType)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1)) // a client that is still sending can find the response's end
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

// schemaName returns the name of the schema of a type in the OpenAPI document.
func schemaName(t reflect.Type, hint string) string {
	if t == reflect.TypeFor[protocol.Message]() {
		return "ExecMessage" // caisson.Message has the schema with the name Message
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// registerDomainSchemas registers the schemas of domain types whose JSON differs from their Go structure.
func registerDomainSchemas(registry huma.Registry) {
	registry.RegisterTypeAlias(reflect.TypeFor[caisson.Size](), reflect.TypeFor[sizeSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[caisson.Duration](), reflect.TypeFor[durationSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[caisson.USD](), reflect.TypeFor[usdSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[caisson.State](), reflect.TypeFor[stateSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[caisson.RunState](), reflect.TypeFor[runStateSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[caisson.PortRange](), reflect.TypeFor[portRangeSchema]())
	// Responses never contain the types below. They are registered as function types, because Huma leaves fields of function
	// type out of schemas.
	registry.RegisterTypeAlias(reflect.TypeFor[caisson.Rootfs](), reflect.TypeFor[func()]())
	registry.RegisterTypeAlias(reflect.TypeFor[caisson.Plan](), reflect.TypeFor[func()]())
	registry.RegisterTypeAlias(reflect.TypeFor[caisson.Times](), reflect.TypeFor[func()]())
}

// sizeSchema is the schema of [caisson.Size]: a number of bytes, or text with a unit.
type sizeSchema struct{}

// Schema returns the schema of [caisson.Size].
func (sizeSchema) Schema(huma.Registry) *huma.Schema {
	zero := 0.0
	return &huma.Schema{AnyOf: []*huma.Schema{
		{Type: huma.TypeInteger, Format: "int64", Minimum: &zero},
		{Type: huma.TypeString, Pattern: `^\s*[0-9.]+\s*([kKmMgGtT]?([iI]?[bB])?)\s*$`, Examples: []any{"2GiB"}},
	}}
}

// usdSchema is the schema of [caisson.USD].
type usdSchema struct{}

// Schema returns the schema of [caisson.USD].
func (usdSchema) Schema(huma.Registry) *huma.Schema {
	zero := 0.0
	return &huma.Schema{Type: huma.TypeNumber, Minimum: &zero, Description: "US dollars, exact to nine decimal places", Examples: []any{0.25}}
}

// durationSchema is the schema of [caisson.Duration], which is text in JSON.
type durationSchema struct{}

// Schema returns the schema of [caisson.Duration].
func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Pattern: `^(0|[0-9]+d|([0-9]*\.?[0-9]+\.?(ns|us|µs|μs|ms|s|m|h))+)$`,
		PatternDescription: "a duration such as 90s, 1h30m or 7d", Examples: []any{"1h30m"},
	}
}

// portRangeSchema is the schema of [caisson.PortRange]: the number of a port, or text with the first and the last one.
type portRangeSchema struct{}

// Schema returns the schema of [caisson.PortRange].
func (portRangeSchema) Schema(huma.Registry) *huma.Schema {
	first, last := 1.0, 65535.0
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeInteger, Minimum: &first, Maximum: &last},
		{Type: huma.TypeString, Pattern: `^\s*[0-9]+\s*(-\s*[0-9]+\s*)?$`, Examples: []any{"8000-8010"}},
	}}
}

// stateSchema is the schema of [caisson.State].
type stateSchema struct{}

// Schema returns the schema of [caisson.State].
func (stateSchema) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString}
	for _, state := range caisson.States() {
		s.Enum = append(s.Enum, string(state))
	}
	return s
}

// runStateSchema is the schema of [caisson.RunState].
type runStateSchema struct{}

// Schema returns the schema of [caisson.RunState].
func (runStateSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: []any{
		string(caisson.RunQueued), string(caisson.RunStarting), string(caisson.RunRunning), string(caisson.RunSucceeded), string(caisson.RunFailed),
	}}
}
