package scripted

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// apiError is an error that is sent in the error format of the requested API.
type apiError struct {
	status     int // HTTP status
	message    string
	param      string // invalid field of the request; the formats of Anthropic and Gemini have it in the message
	code       string // error code; only OpenAI's format has one
	body       string // body to send in place of one made from the other fields
	retryAfter int    // seconds for the header Retry-After; 0: no header
}

func (e *apiError) Error() string { return e.message }

// newError returns an apiError with a status and a message only.
func newError(status int, message string) error { return &apiError{status: status, message: message} }

// invalid returns an error about a field of a request.
func invalid(param, format string, args ...any) error {
	return &apiError{status: http.StatusBadRequest, param: param, message: fmt.Sprintf(format, args...)}
}

// Names of the types of errors in the formats of OpenAI and Anthropic, by HTTP status. Other statuses have a default type.
var (
	openaiTypes = map[int]string{
		http.StatusTooManyRequests: "rate_limit_error", http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error",
	}
	anthropicTypes = map[int]string{
		http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error", http.StatusNotFound: "not_found_error",
		http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: "rate_limit_error", 529: "overloaded_error",
	}
)

// geminiTypes are Gemini's names of errors by HTTP status. Other statuses have a default name.
var geminiTypes = map[int]string{
	http.StatusUnauthorized: "UNAUTHENTICATED", http.StatusForbidden: "PERMISSION_DENIED", http.StatusNotFound: "NOT_FOUND",
	http.StatusTooManyRequests: "RESOURCE_EXHAUSTED", http.StatusServiceUnavailable: "UNAVAILABLE",
}

// errorStyle is the format in which an error is sent: that of OpenAI's, Anthropic's or Gemini's API.
type errorStyle int

const (
	styleOpenAI    errorStyle = iota // errors in the format of OpenAI's API
	styleAnthropic                   // errors in the format of Anthropic's API
	styleGemini                      // errors in the format of Gemini's API
)

// format returns the body of a response that reports e in the format of an API.
func (e *apiError) format(as errorStyle) object {
	anthropic := as == styleAnthropic
	types, kind := openaiTypes, "invalid_request_error"
	if anthropic {
		types = anthropicTypes
	}
	if e.status >= 500 {
		kind = "server_error"
		if anthropic {
			kind = "api_error"
		}
	}
	if t, ok := types[e.status]; ok {
		kind = t
	}
	message := e.message
	if message == "" {
		message = "an error from the script"
	}
	if as == styleGemini {
		name := "INVALID_ARGUMENT"
		if e.status >= 500 {
			name = "INTERNAL"
		}
		if t, ok := geminiTypes[e.status]; ok {
			name = t
		}
		if e.param != "" {
			message = e.param + ": " + message
		}
		return object{"error": object{"code": e.status, "message": message, "status": name}}
	}
	if anthropic {
		if e.param != "" {
			message = e.param + ": " + message
		}
		return object{"type": "error", "error": object{"type": kind, "message": message}, "request_id": nil}
	}
	return object{"error": object{"message": message, "type": kind, "param": orNull(e.param), "code": orNull(e.code)}}
}

// orNull returns s, or nil if s is "".
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// writeError responds with err: with its body, or else in the format of an API. Errors other than an apiError become status 500.
func writeError(w http.ResponseWriter, err error, as errorStyle) {
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		e = &apiError{status: http.StatusInternalServerError, message: "internal error"}
	}
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	if e.body == "" {
		writeJSON(w, e.status, e.format(as))
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if json.Valid([]byte(e.body)) {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(e.status)
	w.Write([]byte(e.body))
}
