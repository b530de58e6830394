// Package gemini is the dialect of Google's Gemini API.
package gemini

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

// Dialect implements the Gemini API. The zero value is ready to use.
type Dialect struct{}

var _ dialect.Dialect = Dialect{}

// New returns the dialect.
func New() Dialect { return Dialect{} }

// Endpoint implements [dialect.Dialect]. The base URL of a provider does not include the version:
// https://generativelanguage.googleapis.com. Only aliases of A-Z, a-z, 0-9, ".", "_" and "-" can be requested, because Google's
// clients do not escape the model in the path.
func (Dialect) Endpoint(method, path string) (dialect.Endpoint, bool) {
	version := "/v1beta/models"
	rest, ok := strings.CutPrefix(path, version)
	if !ok {
		version = "/v1/models"
		if rest, ok = strings.CutPrefix(path, version); !ok {
			return dialect.Endpoint{}, false
		}
	}
	if rest == "" && method == http.MethodGet {
		return dialect.Endpoint{API: "models", Path: path, Free: true, List: true}, true
	}
	model, verb, ok := strings.Cut(strings.TrimPrefix(rest, "/"), ":")
	if !ok || rest[0] != '/' || method != http.MethodPost || !isModel(model) {
		return dialect.Endpoint{}, false
	}
	e := dialect.Endpoint{Model: model, Path: version + "/{model}:" + verb}
	switch verb {
	case "generateContent":
		e.API = "generate"
	case "streamGenerateContent":
		e.API, e.Stream, e.Query = "generate", true, "alt=sse"
	case "countTokens":
		e.API, e.Free = "count_tokens", true
	default:
		return dialect.Endpoint{}, false
	}
	return e, true
}

// isModel reports whether s has the form of a model's name in a path.
func isModel(s string) bool {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}
	return s != "" && len(s) <= 128 && s[0] != '.' && !strings.ContainsFunc(s, odd)
}

// Header implements [dialect.Dialect]. It forwards no headers of the guest.
func (Dialect) Header(_ http.Header, key caisson.Secret, _ dialect.Allow) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	if !key.IsZero() {
		h.Set("X-Goog-Api-Key", key.Reveal())
	}
	return h
}

// FinalStatus returns 403, the status of errors that clients do not retry.
func (Dialect) FinalStatus() int { return http.StatusForbidden }

// Error writes r in the API's format.
func (Dialect) Error(w http.ResponseWriter, r *dialect.Refusal) {
	type detail struct {
		Type       string `json:"@type"`
		RetryDelay string `json:"retryDelay"`
	}
	var body struct {
		Error struct {
			Code    int      `json:"code"`
			Message string   `json:"message"`
			Status  string   `json:"status"`
			Details []detail `json:"details,omitempty"`
		} `json:"error"`
	}
	e := &body.Error
	e.Code, e.Message, e.Status = r.Status, r.Message, statusName(r.Status)
	if r.Param != "" {
		e.Message = r.Param + ": " + r.Message
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=UTF-8")
	if r.Retry > 0 {
		h.Set("Retry-After", strconv.Itoa(r.Retry))
		e.Details = []detail{{"type.googleapis.com/google.rpc.RetryInfo", strconv.Itoa(r.Retry) + "s"}}
	}
	w.WriteHeader(r.Status)
	_ = json.NewEncoder(w).Encode(body) // a failed write cannot be reported
}

// statusName returns the API's name of an HTTP status.
func statusName(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "UNAUTHENTICATED"
	case http.StatusPaymentRequired, http.StatusTooManyRequests:
		return "RESOURCE_EXHAUSTED"
	case http.StatusForbidden:
		return "PERMISSION_DENIED"
	case http.StatusNotFound:
		return "NOT_FOUND"
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return "UNAVAILABLE"
	case http.StatusGatewayTimeout:
		return "DEADLINE_EXCEEDED"
	}
	if status < http.StatusInternalServerError {
		return "INVALID_ARGUMENT"
	}
	return "INTERNAL"
}

// List returns a list of models in the API's format.
func (Dialect) List(models []caisson.Model) []byte {
	type item struct {
		Name        string   `json:"name"`
		BaseModelID string   `json:"baseModelId"`
		Version     string   `json:"version"`
		DisplayName string   `json:"displayName"`
		Input       int64    `json:"inputTokenLimit,omitempty"`
		Output      int64    `json:"outputTokenLimit,omitempty"`
		Methods     []string `json:"supportedGenerationMethods"`
	}
	list := struct {
		Models []item `json:"models"`
	}{[]item{}}
	for _, m := range models {
		list.Models = append(list.Models, item{"models/" + m.Alias, m.Alias, "1", m.Alias, m.Context, m.Output, []string{"generateContent", "countTokens"}})
	}
	b, _ := json.Marshal(list) // encoding strings and numbers cannot fail
	return b
}
