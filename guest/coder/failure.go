package coder

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

const maxFailure = 64 << 10 // maximum number of bytes that are read of the body of an error response

// failure is an error response of the gateway.
type failure struct {
	status int           // HTTP status; never 0
	code   string        // code or type of the error in the model API; "" if there is none
	text   string        // the error message, without control characters; may be empty
	retry  time.Duration // delay that the response requests before a retry; 0 if none
}

func (f *failure) Error() string {
	if f.text == "" {
		return fmt.Sprintf("the model gateway answered %d", f.status)
	}
	return fmt.Sprintf("the model gateway answered %d: %s", f.status, f.text)
}

// readFailure reads an error response of the gateway.
func readFailure(r *http.Response) *failure {
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxFailure)) // after a read error, the part that was read is used
	f := parseFailure(r.StatusCode, body)
	f.retry = retryAfter(r.Header)
	if to := r.Header.Get("Location"); to != "" && r.StatusCode < 400 {
		f.text = "it is a redirect, which is not followed; correct --gateway"
	}
	return f
}

// parseFailure parses the body of an error response, in the form of any of the model APIs. status is the HTTP status; if it is 0,
// as for an error within a stream, the status is derived from the error's code.
func parseFailure(status int, body []byte) *failure {
	f := &failure{status: status}
	var outer struct {
		Error   raw    `json:"error"`
		Message string `json:"message"`
		Detail  string `json:"detail"`
	}
	var inner struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    any    `json:"code"`
	}
	switch {
	case json.Unmarshal(body, &outer) != nil:
		f.text = string(body)
	case json.Unmarshal(outer.Error, &inner) == nil && inner.Message+inner.Type != "":
		f.text = inner.Message
		f.code = inner.Type
		switch c := inner.Code.(type) {
		case string:
			f.code = c
		case float64:
			if status == 0 && c >= 400 && c < 600 {
				f.status = int(c)
			}
		}
	case json.Unmarshal(outer.Error, &f.text) == nil && f.text != "":
	default:
		f.text = outer.Message + outer.Detail
	}
	f.text = strings.TrimSpace(clip(clean(f.text), 2<<10))
	if f.status == 0 {
		f.status = map[string]int{
			"over_budget": 402, "insufficient_quota": 402, "rate_limit_error": 429, "rate_limit_exceeded": 429, "rate_limited": 429,
			"invalid_request_error": 400, "invalid_request": 400, "context_length_exceeded": 400, "overloaded_error": 529,
			"billing_error": 402, "authentication_error": 401, "permission_error": 403, "not_found_error": 404, "request_too_large": 413, "timeout_error": 504,
		}[f.code]
	}
	if f.status == 0 {
		f.status = 500
	}
	return f
}

// retryAfter returns the delay that the headers of a response request before a retry; 0 if they request none.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseUint(h.Get("Retry-After-Ms"), 10, 31); err == nil {
		return time.Duration(ms) * time.Millisecond
	}
	after := h.Get("Retry-After")
	if s, err := strconv.ParseUint(after, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if at, err := time.Parse(time.RFC1123, after); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// outOfCredit reports whether a budget for the call, or the credit of the API key at the model's provider, is exhausted.
func (f *failure) outOfCredit() bool {
	return f.status == 402 || f.code == "insufficient_quota" || f.code == "over_budget"
}

// retryable reports whether the same call may succeed later.
func (f *failure) retryable() bool {
	return !f.outOfCredit() && (f.status == 408 || f.status == 409 || f.status == 429 || f.status >= 500)
}

// contextTooLong reports whether the conversation is too long for the model. Providers have no common code for this error.
func (f *failure) contextTooLong() bool {
	if f.status == 413 || f.code == "context_length_exceeded" {
		return true
	}
	if f.status != 400 && f.status != 422 && f.status != 500 {
		return false
	}
	text := strings.ToLower(f.text)
	for _, sign := range []string{
		"context length", "context_length", "maximum context", "context window", "context size", "prompt is too long", "input is too long",
		"exceeds the maximum number of tokens", "too many tokens", "input token count", "reduce the length", "exceed context limit",
	} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// runError converts f to the error of a run.
func (f *failure) runError() *caisson.RunError {
	e := &caisson.RunError{Code: caisson.RunAgentError, Message: f.Error()}
	switch {
	case f.outOfCredit():
		e.Code = caisson.RunNoCredits
	case f.contextTooLong():
		e.Code, e.Message = caisson.RunInvalid, "the task does not fit into what the model can read, even alone; shorten it, or use another model: "+f.Error()
	case f.status == 429:
		e.Code = caisson.RunRateLimit
	case f.status == 404:
		e.Code = caisson.RunNotFound
	case f.status >= 500:
		e.Code = caisson.RunInternal
	}
	return e
}
