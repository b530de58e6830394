// Package dialect is what the model gateway has to know of an API: which requests there are, what in them may pass, what
// they can cost at most, how an answer says what it cost, and how a refusal looks. Each API is a package below llm.
//
// The gateway forwards to a provider of the same dialect as the request; it does not translate.
package dialect

import (
	"errors"
	"net/http"

	"github.com/caisson-dev/caisson"
)

// An Endpoint is one kind of call of an API.
type Endpoint struct {
	API    string // chat, responses, embeddings, messages, count_tokens, generate, models: caisson.Call.API
	Model  string // where the model is in the path (Gemini); else ""
	Stream bool   // where streaming is in the path (Gemini); else false
	Path   string // what to append to the provider's base URL; canonical, without query; "{model}" in it is the provider's name for the model
	Query  string // the only query that passes on, as alt=sse; else ""
	// Free calls cost nothing and take no output (count_tokens); List is answered by the gateway itself (models).
	Free, List bool
}

// A Dialect is one API. It is stateless and safe for concurrent use.
type Dialect interface {
	// Endpoint finds the call that a request means; false for everything that is not the API's own. path is the request's
	// escaped path, as sent; only one spelling of each is accepted (no "..", "//" or needless escapes).
	Endpoint(method, path string) (Endpoint, bool)
	// Parse reads a body. The error is a [*Refusal].
	Parse(e Endpoint, body []byte, allow Allow) (Request, error)
	// Header returns the headers of the request to the provider: the key, and those of the guest's that may pass.
	Header(guest http.Header, key caisson.Secret, allow Allow) http.Header
	// Meter returns what reads the tokens from an answer.
	Meter(e Endpoint, stream bool) Meter
	// Final is the status of errors that no known client of the API tries again.
	Final() int
	// Error writes a refusal as the API's own errors look: status, headers and body.
	Error(w http.ResponseWriter, r *Refusal)
	// List returns the body that answers a listing of models.
	List(models []caisson.Model) []byte
}

// Allow says which of the grants a request has.
type Allow struct{ ProviderTools, RemoteURLs, Beta, ServerState bool }

// A Request is a body of which every field is known.
type Request interface {
	Model() string // as asked for; "" if missing
	Stream() bool
	// Input bounds the tokens of input from above; false if they cannot be bounded from the body. The caller also knows the
	// context limit of the model.
	Input() (tokens int64, bounded bool)
	// Images are how many there are, and their part of the bound.
	Images() (n, tokens int64)
	// Output is how many tokens of output are asked for; 0 if the request does not say. Min is the least that makes sense.
	// Both are 0 for calls without output (embeddings).
	Output() (want, least int64)
	// ServerIDs are ids of what the provider keeps, that the request refers to (previous_response_id and the like).
	ServerIDs() []string
	// Encode returns the body for the provider.
	Encode(t Target) ([]byte, error)
}

// A Target is what the gateway decides about a request.
type Target struct {
	Model  string // the provider's name for it
	User   string // to whom the provider may attribute the call
	Output int64  // limit on output, in tokens
	// Limit is the field that the provider obeys as the limit, where its API has two ("max_tokens"); "" is the newer one.
	Limit string
}

// A Meter reads an answer as it passes, in pieces of any size, and keeps no more of it than a bounded part. It never changes
// or delays it.
type Meter interface {
	Write(p []byte) (int, error) // always len(p), nil
	// Usage returns what the provider said so far; complete says that this is the final word. Where it is not, Seen
	// is how many bytes of output text passed, from which output can be estimated: a token has at least one byte.
	Usage() (t caisson.TokenCount, complete bool)
	Seen() int64
	// IDs are ids of what the provider keeps now (response id), to be remembered as the account's.
	IDs() []string
	// Done says that the answer's own end was seen (data: [DONE], message_stop, the whole JSON value).
	Done() bool
}

// A Refusal is an error for a guest, in words that are the same in every dialect.
type Refusal struct {
	Status  int    // HTTP status
	Code    string // invalid_request, unauthorized, not_found, too_large, model_not_allowed, model_unpriced, over_budget, rate_limited, credential, upstream, timeout, internal
	Param   string // the field at fault, as "tools[0].type"; or ""
	Message string // a sentence that says what to do next
	Retry   int    // seconds, for Retry-After; 0 for none
	Final   bool   // no client is to try it again; Status is the dialect's Final then
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// Refused returns err as a Refusal; errors of other types become an internal one that says nothing.
func Refused(err error) *Refusal {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	return &Refusal{Status: http.StatusInternalServerError, Code: "internal", Message: "the model gateway failed; its log has the details"}
}
