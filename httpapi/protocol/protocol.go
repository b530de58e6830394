// Package protocol contains the parts of the HTTP API that the server and the client share: headers, the table of statuses,
// problems, bodies that differ from the domain's types, the frames of an exec session with their flow control, and server-sent
// events.
package protocol

import (
	"encoding/json"
	"net/http"

	"github.com/caisson-dev/caisson"
)

// Prefix is the path prefix of version 1 of the API.
const Prefix = "/api/v1"

// Headers of requests.
const (
	AccountHeader     = "X-Caisson-Account" // the account that a local caller acts for
	HandlesHeader     = "X-Caisson-Handles" // ids of passed descriptors, separated by commas
	IdempotencyHeader = "Idempotency-Key"   // chosen by the client; a second request with the same key gets the first answer
)

// Headers of responses over the unix socket.
const (
	VersionHeader = "X-Caisson-Version" // version of the daemon
	ChangedHeader = "X-Caisson-Changed" // keys of settings whose values in the configuration file differ from those in force
)

// Content types.
const (
	ProblemType = "application/problem+json"
	EventType   = "text/event-stream"
	BinaryType  = "application/octet-stream"
	TarType     = "application/x-tar"
)

// statuses maps kinds of errors to HTTP statuses. The server sends the status of an error's kind; the client uses the inverse.
var statuses = map[caisson.Kind]int{
	caisson.Internal:    http.StatusInternalServerError,
	caisson.Invalid:     http.StatusBadRequest,
	caisson.NotFound:    http.StatusNotFound,
	caisson.Conflict:    http.StatusConflict,
	caisson.Denied:      http.StatusForbidden,
	caisson.Unauthed:    http.StatusUnauthorized,
	caisson.Exhausted:   http.StatusTooManyRequests,
	caisson.Unavailable: http.StatusServiceUnavailable,
}

// StatusOf returns the HTTP status of errors of kind k; 500 if k is unknown.
func StatusOf(k caisson.Kind) int {
	if s, ok := statuses[k]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// KindOf returns the kind of errors with this HTTP status; Internal if no kind has it.
func KindOf(status int) caisson.Kind {
	for k, s := range statuses {
		if s == status {
			return k
		}
	}
	return caisson.Internal
}

// UnknownRequest is the beginning of the error message for a request whose method and path the API does not have.
const UnknownRequest = "the API has no "

// Problem is the body of an error response, as in RFC 9457.
type Problem struct {
	Type   string       `json:"type" doc:"Always about:blank; code identifies the problem"`
	Title  string       `json:"title" doc:"Name of the status"`
	Status int          `json:"status"`
	Code   caisson.Kind `json:"code" enum:"internal,invalid,not_found,conflict,denied,unauthenticated,exhausted,unavailable" doc:"Kind of error, stable"`
	Field  string       `json:"field,omitempty" doc:"For invalid: the invalid field"`
	Detail string       `json:"detail" doc:"One sentence that describes the problem"`
}

// ProblemOf returns the Problem for err: with its kind, field and message, and without its cause, which users must not see.
func ProblemOf(err error) *Problem {
	kind, field := caisson.KindOf(err), caisson.FieldOf(err)
	detail := caisson.MessageOf(err)
	if field != "" {
		detail = detail[len(field)+len(": "):] // MessageOf prefixes the message with the field
	}
	status := StatusOf(kind)
	return &Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Code: kind, Field: field, Detail: detail,
	}
}

// Err returns an error with the kind, field and message of p.
func (p *Problem) Err() error {
	kind := p.Code
	if _, known := statuses[kind]; !known {
		kind = KindOf(p.Status)
	}
	return &caisson.Error{Kind: kind, Field: p.Field, Msg: p.Detail}
}

// ParseProblem returns the error for a response with this status and body. If the body is not a problem, as for example that of a
// proxy, the error does not quote it.
func ParseProblem(status int, body []byte) error {
	var p Problem
	if err := json.Unmarshal(body, &p); err != nil || p.Detail == "" {
		return caisson.Errorf(KindOf(status), "the server responded with %d %s", status, http.StatusText(status))
	}
	p.Status = status
	return p.Err()
}
