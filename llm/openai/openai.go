// Package openai is the dialect of OpenAI and of the many that speak it: chat completions, responses, embeddings and the list
// of models, with or without /v1 before the path.
//
// Of a body only known fields pass, at the top and in messages, parts of content, items and tools:
//
//   - Unknown fields are dropped, so that newer clients keep working; what they may mean is not known, so it does not pass.
//   - Fields that would lead elsewhere, run something, or cost what cannot be bounded are refused with the reason: api_base,
//     fallbacks, plugins, web_search_options, audio, background, stored prompts and conversations, n above 1.
//   - Some are set: store is false unless server-state is granted, user is the gateway's, stream_options.include_usage is true.
//     Output is limited by the one field that the provider obeys (see [caisson.Provider]), by whatever name the guest limits it.
//     service_tier, metadata, safety_identifier and prompt_cache_retention are dropped; so is prediction, because
//     what is not accepted of it is billed beyond any limit; prompt_cache_key is mixed with the user, so that nobody
//     shares one with another account.
//   - Types of content, items and tools that are not known are refused. A namespace of tools passes with functions and custom tools
//     in it, which the client runs. Tools that the provider runs need provider-tools; images
//     and files by URL need remote-urls; ids of files, responses and items need server-state.
//
// Input is bounded by bytes, as a token has at least one: text is never longer than its JSON, and what is structured counts
// as long as it can get when it is written anew. An image
// counts as imageTokens. Files, stored responses and tools of the provider have no bound but the model's context. Schemas
// with references count as they are written.
package openai

import (
	"net/http"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/llm/dialect"
	"github.com/caisson-dev/caisson/llm/internal/strictjson"
)

// Dialect is OpenAI's API.
type Dialect struct{}

var _ dialect.Dialect = Dialect{}

// New returns the dialect.
func New() Dialect { return Dialect{} }

const (
	chat       = "chat"
	responses  = "responses"
	embeddings = "embeddings"
)

// Endpoint accepts the paths of the API below /v1 and, for clients with another idea of the base URL, without it.
func (Dialect) Endpoint(method, path string) (dialect.Endpoint, bool) {
	if len(path) > 3 && path[:4] == "/v1/" {
		path = path[3:]
	}
	switch method + " " + path {
	case "POST /chat/completions":
		return dialect.Endpoint{API: chat, Path: path}, true
	case "POST /responses":
		return dialect.Endpoint{API: responses, Path: path}, true
	case "POST /embeddings":
		return dialect.Endpoint{API: embeddings, Path: path}, true
	case "GET /models":
		return dialect.Endpoint{API: "models", Path: path, List: true}, true
	}
	return dialect.Endpoint{}, false
}

// Header returns the headers of a request. Of the guest's only OpenAI-Beta can pass, if beta is granted.
func (Dialect) Header(guest http.Header, key caisson.Secret, allow dialect.Allow) http.Header {
	h := http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json, text/event-stream"},
		"User-Agent":   {"caisson"},
	}
	if !key.IsZero() {
		h["Authorization"] = []string{"Bearer " + key.Reveal()}
	}
	if beta := guest.Get("OpenAI-Beta"); allow.Beta && beta != "" && len(beta) <= 256 {
		h["Openai-Beta"] = []string{beta}
	}
	return h
}

// Final implements [dialect.Dialect]. Codex tries again after a 401, a 403 and all others but a 400.
func (Dialect) Final() int { return http.StatusBadRequest }

// Error writes {"error": {"message", "type", "param", "code"}}.
func (Dialect) Error(w http.ResponseWriter, r *dialect.Refusal) {
	b := strictjson.Quote([]byte(`{"error":{"message":`), r.Message)
	b = append(append(b, `,"type":"`...), errorType(r.Code)...)
	b = append(b, `","param":`...)
	if r.Param == "" {
		b = append(b, "null"...)
	} else {
		b = strictjson.Quote(b, r.Param)
	}
	b = append(strictjson.Quote(append(b, `,"code":`...), r.Code), "}}\n"...)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	if r.Retry > 0 {
		h.Set("Retry-After", strconv.Itoa(r.Retry))
	}
	if r.Final {
		h.Set("X-Should-Retry", "false")
	}
	w.WriteHeader(r.Status)
	w.Write(b)
}

func errorType(code string) string {
	switch code {
	case "unauthorized":
		return "authentication_error"
	case "model_not_allowed", "model_unpriced":
		return "permission_error"
	case "over_budget":
		return "insufficient_quota"
	case "rate_limited":
		return "rate_limit_error"
	case "upstream", "timeout", "internal":
		return "server_error"
	}
	return "invalid_request_error"
}

// List returns a list of models as GET /models does.
func (Dialect) List(models []caisson.Model) []byte {
	b := []byte(`{"object":"list","data":[`)
	for i, m := range models {
		if i > 0 {
			b = append(b, ',')
		}
		b = strictjson.Quote(append(b, `{"id":`...), m.Alias)
		b = append(b, `,"object":"model","created":0,"owned_by":"caisson"}`...)
	}
	return append(b, "]}\n"...)
}
