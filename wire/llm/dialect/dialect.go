// Package dialect defines what the model gateway requires of an API: its requests, the fields of a request that are forwarded,
// the maximum cost of a request, the usage reported in an answer, and the format of an error. Each API is implemented by a
// package below llm.
//
// The gateway forwards to a provider of the same dialect as the request; it does not translate.
package dialect

import (
	"errors"
	"net/http"

	"github.com/caisson-dev/caisson"
)

// An Endpoint is one operation of an API.
type Endpoint struct {
	API    string // value of caisson.Call.API: chat, responses, embeddings, messages, count_tokens, generate or models
	Model  string // model in the path (Gemini); otherwise ""
	Stream bool   // whether the path requests a stream (Gemini); otherwise false
	Path   string // path below the base URL; canonical, without query; "{model}" stands for the provider's name of the model
	Query  string // the only query that is forwarded, such as alt=sse; otherwise ""
	// Free operations cost nothing and have no output (count_tokens). The gateway answers List operations itself (models).
	Free, List bool
}

// A Dialect implements one API. It is stateless and safe for concurrent use.
type Dialect interface {
	// Endpoint returns the operation of a request, or false if the API has no such operation. path is the escaped path of the
	// request, as sent. Each path has only one accepted spelling (no "..", "//" or needless escapes).
	Endpoint(method, path string) (Endpoint, bool)
	// Parse checks the body of a request, which may use only the features in allow. The error is a [*Refusal].
	Parse(e Endpoint, body []byte, allow Allow) (Request, error)
	// Header returns the headers of the request to the provider: the key, and those of the guest that may be forwarded.
	Header(guest http.Header, key caisson.Secret, allow Allow) http.Header
	// Meter returns the Meter that reads one answer of the model and determines its usage.
	Meter(e Endpoint, stream bool) Meter
	// FinalStatus returns the status of errors that no known client of the API retries.
	FinalStatus() int
	// Error writes a refusal in the format of the API's errors: status, headers and body.
	Error(w http.ResponseWriter, r *Refusal)
	// List returns the body of a list of models.
	List(models []caisson.Model) []byte
}

// Allow contains the grants that apply to a request. If a field is true, the request may use: ProviderTools: tools that the
// provider executes, such as web search; RemoteURLs: URLs that the provider fetches or calls; Beta: beta features of the API, in
// headers or fields of the body; ServerState: ids of objects that the provider stores, such as earlier responses.
type Allow struct{ ProviderTools, RemoteURLs, Beta, ServerState bool }

// A Request is the checked body of a request to a model API.
type Request interface {
	Model() string // the requested model; "" if missing
	Stream() bool  // whether the body requests a stream
	// Input returns an upper bound of the input tokens; false if the body does not determine one. The context limit of the model
	// is not taken into account.
	Input() (tokens int64, bounded bool)
	// Images returns the number of images, and how many tokens of Input's bound are for images.
	Images() (n, tokens int64)
	// Output returns the requested number of output tokens, 0 if the request has no limit, and the least limit that the provider
	// accepts. Both are 0 for calls without output (embeddings).
	Output() (want, least int64)
	// ServerIDs returns the ids in the request of objects that the provider stores, such as files and earlier responses.
	ServerIDs() []string
	// Encode returns the body that is sent to the provider, with the values in t.
	Encode(t Target) ([]byte, error)
}

// A Target contains the values of a request that the gateway sets.
type Target struct {
	Model  string // the provider's name of the model
	User   string // id of the end user for the provider
	Output int64  // output limit, in tokens
	// LimitField is the field that limits the output in chats of OpenAI's API; "" means max_completion_tokens.
	LimitField string
}

// A Meter reads an answer in pieces of any size while it is forwarded, and keeps at most a bounded part of it. It never changes
// or delays the answer.
type Meter interface {
	Write(p []byte) (int, error) // always returns len(p), nil
	// Usage returns the usage that the provider has reported so far. complete reports whether that is final.
	Usage() (t caisson.TokenCount, complete bool)
	// OutputBytes returns the number of bytes of output text so far. It bounds the output tokens of an answer whose usage is not
	// final, because a token has at least one byte.
	OutputBytes() int64
	// IDs returns the ids of the objects that the answer has created and the provider stores, such as files and the response.
	IDs() []string
	// Done reports whether the end of the answer was read (data: [DONE], message_stop, the whole JSON value).
	Done() bool
}

// A Refusal is an error for a guest. Its codes are the same in every dialect: invalid_request, unauthorized, not_found,
// too_large, model_not_allowed, model_unpriced, over_budget, rate_limited, credential, upstream, timeout and internal.
type Refusal struct {
	Status  int    // HTTP status
	Code    string // one of the codes above
	Param   string // the invalid field, such as "tools[0].type"; or ""
	Message string // one sentence that tells the user what to do next
	Retry   int    // seconds after which the client may retry, for the header Retry-After; 0 for no header
	Final   bool   // clients must not retry; Status is the dialect's FinalStatus, which none of them retries
}

// Error returns r.Message.
func (r *Refusal) Error() string { return r.Message }

// AsRefusal returns err as a Refusal. An error of another type becomes an internal error without details.
func AsRefusal(err error) *Refusal {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	return &Refusal{Status: http.StatusInternalServerError, Code: "internal", Message: "the model gateway failed; its log has the details"}
}
