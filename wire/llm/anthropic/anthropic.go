// Package anthropic is the dialect of Anthropic's Messages API.
//
// Some features are not billed by tokens (web searches are billed by their number), or have other prices for tokens (faster
// modes). The ledger lacks these prices, so requests for such features are refused, or require the grant of provider tools.
package anthropic

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

// Version is the default version of the API.
const Version = "2023-06-01"

// Dialect implements the Messages API. The zero value is ready to use.
type Dialect struct{}

var _ dialect.Dialect = Dialect{}

// New returns the dialect.
func New() Dialect { return Dialect{} }

// Endpoint implements [dialect.Dialect]. The base URL of a provider does not include /v1: https://api.anthropic.com.
func (Dialect) Endpoint(method, path string) (dialect.Endpoint, bool) {
	switch method + " " + path {
	case "POST /v1/messages":
		return dialect.Endpoint{API: "messages", Path: path}, true
	case "POST /v1/messages/count_tokens":
		return dialect.Endpoint{API: "count_tokens", Path: path, Free: true}, true
	case "GET /v1/models":
		return dialect.Endpoint{API: "models", Path: path, Free: true, List: true}, true
	}
	return dialect.Endpoint{}, false
}

// Header returns the key, the API version, and the guest's names of beta features if these are granted.
func (Dialect) Header(guest http.Header, key caisson.Secret, allow dialect.Allow) http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "Anthropic-Version": {Version}}
	if v := guest.Get("Anthropic-Version"); isDate(v) {
		h.Set("Anthropic-Version", v)
	}
	if beta := betas(guest.Values("Anthropic-Beta")); allow.Beta && beta != "" {
		h.Set("Anthropic-Beta", beta)
	}
	if !key.IsZero() {
		h.Set("X-Api-Key", key.Reveal())
	}
	return h
}

// isDate reports whether s has the format of a version, such as 2023-06-01.
func isDate(s string) bool {
	if len(s) != len(Version) {
		return false
	}
	for i := range len(s) {
		dash := Version[i] == '-'
		if dash && s[i] != '-' || !dash && (s[i] < '0' || s[i] > '9') {
			return false
		}
	}
	return true
}

// betas returns the valid names of beta features in the values of the header Anthropic-Beta, joined by commas.
func betas(values []string) string {
	var names []string
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			name = strings.TrimSpace(name)
			odd := func(r rune) bool {
				return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
			}
			if name != "" && len(name) <= 64 && !strings.ContainsFunc(name, odd) && len(names) < 32 {
				names = append(names, name)
			}
		}
	}
	return strings.Join(names, ",")
}

// FinalStatus returns 403, the status of errors that clients do not retry: after a 400 Claude Code retries the call in other
// forms, and after a 401 it retries the call unchanged.
func (Dialect) FinalStatus() int { return http.StatusForbidden }

// Error writes r in the API's format, which has the name of an invalid field in the message.
func (Dialect) Error(w http.ResponseWriter, r *dialect.Refusal) {
	var body struct {
		Type  string `json:"type"`
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Type, body.Error.Type, body.Error.Message = "error", errorType(r.Status), r.Message
	if r.Param != "" {
		body.Error.Message = r.Param + ": " + r.Message
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if r.Retry > 0 {
		h.Set("Retry-After", strconv.Itoa(r.Retry))
	}
	if r.Final {
		h.Set("X-Should-Retry", "false")
	}
	w.WriteHeader(r.Status)
	_ = json.NewEncoder(w).Encode(body) // a failed write cannot be reported
}

// errorType returns the API's type of an error with an HTTP status.
func errorType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusPaymentRequired:
		return "billing_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	}
	if status < http.StatusInternalServerError {
		return "invalid_request_error"
	}
	return "api_error"
}

// List returns a list of models in the format of GET /v1/models.
func (Dialect) List(models []caisson.Model) []byte {
	type item struct {
		Type        string `json:"type"`
		ID          string `json:"id"`
		DisplayName string `json:"display_name"`
		CreatedAt   string `json:"created_at"`
	}
	list := struct {
		Data    []item  `json:"data"`
		HasMore bool    `json:"has_more"`
		FirstID *string `json:"first_id"`
		LastID  *string `json:"last_id"`
	}{Data: []item{}}
	for _, m := range models {
		// Clients require a date; the real one is unknown.
		list.Data = append(list.Data, item{"model", m.Alias, m.Alias, "1970-01-01T00:00:00Z"})
	}
	if n := len(list.Data); n > 0 {
		list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[n-1].ID
	}
	b, _ := json.Marshal(list) // encoding strings and booleans cannot fail
	return b
}
