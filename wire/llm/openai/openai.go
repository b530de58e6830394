// Package openai is the dialect of OpenAI and compatible providers: chat completions, responses, embeddings and the list of
// models, with or without /v1 in front of the path.
//
// Only supported fields of a body are forwarded, at the top level and in messages, parts of content, items and tools:
//
//   - Unknown fields are dropped, so that newer clients keep working.
//   - Fields that would call other servers, run something, or have unbounded costs are refused with the reason: api_base,
//     fallbacks, plugins, web_search_options, audio, background, stored prompts and conversations, n above 1.
//   - The gateway sets some fields: store is false unless server-state is granted, user is the id of the end user,
//     stream_options.include_usage is true. Output is limited by the one field that the provider obeys, under
//     whichever name the guest limits it. service_tier, metadata, safety_identifier and prompt_cache_retention are dropped.
//     So is prediction, because rejected tokens of it are billed beyond any limit. prompt_cache_key is hashed together with the
//     user, so that accounts do not share keys.
//   - Unknown types of content, items and tools are refused. A namespace of tools is forwarded with functions and custom tools
//     only, which the client runs. Tools that the provider runs require provider-tools; images and files by URL require
//     remote-urls; ids of files, responses and items require server-state.
//
// Input is bounded by bytes, as a token has at least one: text is never longer than its JSON, and structured values count with
// the length that they can have when they are encoded again. An image counts as 50,000. Files, stored responses and tools of
// the provider are bounded by the model's context only. Schemas with references count as written.
package openai

import (
	"net/http"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// Dialect implements OpenAI's API.
type Dialect struct{}

var _ dialect.Dialect = Dialect{}

// New returns the dialect.
func New() Dialect { return Dialect{} }

// Values of [dialect.Endpoint.API].
const (
	chat       = "chat"
	responses  = "responses"
	embeddings = "embeddings"
)

// Endpoint accepts the paths of the API with /v1 and, for clients whose base URL lacks it, without.
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

// Header implements [dialect.Dialect]. Of the guest's headers it forwards only OpenAI-Beta, if beta is granted.
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

// FinalStatus returns 400, the status of errors that clients do not retry: Codex retries all others, including 401 and 403.
func (Dialect) FinalStatus() int { return http.StatusBadRequest }

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

// errorType returns the API's type of the error with the code of a [dialect.Refusal].
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

// List returns a list of models in the format of GET /models.
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
