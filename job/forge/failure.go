package forge

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

const (
	maxErrorText  = 300       // maximum length of the forge's error message, in bytes
	maxMessage    = 600       // maximum length of a failure's message and of its cause, in bytes
	maxRetryDelay = time.Hour // maximum delay before a retry that a forge can request
)

// RetryAfter returns how long to wait before a retry, as requested by the forge in the answer that caused err. It is at most
// one hour; 0 means that the forge requested no delay.
func RetryAfter(err error) time.Duration {
	if w, ok := errors.AsType[*retryError](err); ok {
		return w.after
	}
	return 0
}

// retryError is the cause of an error for which the forge requested a delay before a retry.
type retryError struct {
	after time.Duration // delay that the forge requested
	cause string        // text of the wrapped error
}

func (w *retryError) Error() string {
	return fmt.Sprintf("%s (to be left alone for %v)", w.cause, w.after)
}

// failure is the form in which a job's error is sent to the caller. Errors of package worker have no field Wait.
type failure struct {
	Kind    caisson.Kind  // kind of the error
	Message string        // message of the error for users
	Cause   string        // text of the wrapped error
	Wait    time.Duration // delay that the forge requests before a retry; 0 if none
}

// err returns f as an error, redacted and bounded, because f comes from an untrusted process.
func (f *failure) err(secret caisson.Secret) error {
	kind := f.Kind
	if !slices.Contains([]caisson.Kind{caisson.Invalid, caisson.NotFound, caisson.Conflict, caisson.Denied, caisson.Unauthed, caisson.Exhausted, caisson.Unavailable}, kind) {
		kind = caisson.Internal
	}
	message := excerpt(redact(f.Message, secretParts(secret.Reveal())...), maxMessage)
	cause := errors.New(excerpt(redact(f.Cause, secretParts(secret.Reveal())...), maxMessage))
	if f.Wait > 0 && kind == caisson.Unavailable {
		return caisson.Wrap(&retryError{min(f.Wait, maxRetryDelay), cause.Error()}, kind, "%s", message)
	}
	return caisson.Wrap(cause, kind, "%s", message)
}

// redact redacts secrets from text that a forge may have inserted them into.
func redact(s string, secrets ...string) string {
	for _, secret := range secrets {
		if secret == "" {
			continue
		}
		for _, form := range []string{secret, url.QueryEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret))} {
			s = strings.ReplaceAll(s, form, "[redacted]")
		}
	}
	return s
}

// statusError is the error for an answer whose HTTP status is not 2xx.
type statusError struct {
	status      int           // HTTP status of the answer
	message     string        // message of the forge, from its JSON; "" if it cannot be decoded
	retryAfter  time.Duration // delay that the forge requests before a retry; 0 if none
	rateLimited bool          // whether a rate limit was exceeded
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.message) }

// hasStatus reports whether err is an answer with the given status whose message contains all of words, which must be in lower
// case.
func hasStatus(err error, status int, words ...string) bool {
	e, ok := errors.AsType[*statusError](err)
	if !ok || e.status != status {
		return false
	}
	said := strings.ToLower(e.message)
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(said, w) })
}

// newFailure returns the failure for an error of a request to host. It redacts secrets from the error.
func newFailure(err error, host string, secrets ...string) *failure {
	f := &failure{Kind: caisson.Internal, Cause: err.Error()}
	status, answered := errors.AsType[*statusError](err)
	if answered {
		f.Wait = status.retryAfter
	}
	if e, ok := errors.AsType[*caisson.Error](err); ok { // says more than a statusError that it may wrap
		f.Kind, f.Message = e.Kind, caisson.MessageOf(e)
	} else if answered {
		f.Kind, f.Message = status.explain(host)
	} else {
		f.Kind, f.Message = explainNetwork(err, host)
	}
	f.Message = excerpt(redact(f.Message, secrets...), maxMessage)
	f.Cause = excerpt(redact(f.Cause, secrets...), maxMessage)
	return f
}

// explain returns the kind and the message of the error that users get if host answered with e.
func (e *statusError) explain(host string) (caisson.Kind, string) {
	said := ""
	if e.message != "" {
		said = ": " + e.message
	}
	switch {
	case e.rateLimited:
		return caisson.Unavailable, host + " limits the rate of requests" + said
	case e.status == http.StatusUnauthorized:
		return caisson.Unauthed, host + " does not accept the repository's credential; renew it" + said
	case e.status == http.StatusForbidden, e.status == http.StatusLocked:
		return caisson.Denied, host + " denies the request; does the credential have the right to write code and pull requests?" + said
	case e.status == http.StatusNotFound, e.status == http.StatusGone:
		return caisson.NotFound, host + " has no such project or branch, or does not show it to this credential" + said
	case e.status == http.StatusConflict:
		return caisson.Conflict, host + " reports a conflict with its current state" + said
	case e.status == http.StatusBadRequest, e.status == http.StatusUnprocessableEntity:
		return caisson.Invalid, host + " refuses the request" + said
	case e.status >= 500, e.status == http.StatusRequestTimeout, e.status == http.StatusTooEarly:
		return caisson.Unavailable, fmt.Sprintf("%s has a server error (status %d)%s", host, e.status, said)
	}
	return caisson.Invalid, fmt.Sprintf("%s answered with status %d; is the address of its API right?%s", host, e.status, said)
}

// explainNetwork returns the kind and the message of the error that users get if a request to host got no response.
func explainNetwork(err error, host string) (caisson.Kind, string) {
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return caisson.Unavailable, fmt.Sprintf("%s cannot be trusted (%.160s); if its authority is your own, have the administrator add it", host, e.Err)
	}
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), timedOut(err):
		return caisson.Unavailable, host + " took too long to answer"
	case errors.As(err, &dns):
		return caisson.Unavailable, fmt.Sprintf("%s cannot be reached: no address for %.80q", host, dns.Name)
	case errors.As(err, &op):
		return caisson.Unavailable, fmt.Sprintf("%s cannot be reached: %v", host, op.Err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return caisson.Unavailable, host + " broke off"
	case errors.Is(err, http.ErrSchemeMismatch):
		return caisson.Invalid, host + " does not support TLS at this address; is the address of its API right?"
	}
	return caisson.Unavailable, host + " cannot be reached"
}

// timedOut reports whether err is a timeout of the network.
func timedOut(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// retryDelay returns the delay that a forge requests before the next request, and whether the reason is a rate limit. words is
// the error message of the forge.
func retryDelay(h http.Header, status int, words string, now time.Time) (after time.Duration, limited bool) {
	limited = status == http.StatusTooManyRequests
	if status == http.StatusForbidden {
		limited = h.Get("Retry-After") != "" || h.Get("X-RateLimit-Remaining") == "0" || strings.Contains(strings.ToLower(words), "rate limit")
	}
	if !limited && status < 500 {
		return 0, false
	}
	if s := h.Get("Retry-After"); s != "" {
		if n, err := strconv.ParseInt(s, 10, 32); err == nil {
			after = time.Duration(n) * time.Second
		} else if at, err := http.ParseTime(s); err == nil {
			after = at.Sub(now)
		}
	} else if limited {
		after = time.Minute // GitHub's recommendation if it sends no header
		for _, name := range []string{"X-RateLimit-Reset", "RateLimit-Reset"} {
			if n, err := strconv.ParseInt(h.Get(name), 10, 64); err == nil && n > 0 && n < 1<<40 {
				after = time.Unix(n, 0).Sub(now)
				break
			}
		}
	}
	if limited {
		after = max(after, time.Second)
	}
	return min(max(after, 0), maxRetryDelay), limited
}

// errorMessage extracts the error message from a forge's JSON answer, in any of the known forms. Secrets are redacted before the
// text is shortened.
func errorMessage(body []byte, secrets ...string) string {
	var said struct {
		Message     json.RawMessage   `json:"message"`
		Error       json.RawMessage   `json:"error"`
		Description json.RawMessage   `json:"error_description"`
		Errors      []json.RawMessage `json:"errors"`
	}
	if json.Unmarshal(body, &said) != nil {
		return ""
	}
	var words []string
	for _, raw := range append([]json.RawMessage{said.Message, said.Error, said.Description}, said.Errors...) {
		if len(words) < 10 {
			words = append(words, errorTexts(raw)...)
		}
	}
	return excerpt(redact(strings.Join(words, "; "), secrets...), maxErrorText)
}

// errorTexts decodes a string, a list of strings, GitHub's error object for a field, or GitLab's object of lists.
func errorTexts(raw json.RawMessage) []string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		if s == "" {
			return nil
		}
		return []string{s}
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	var about struct{ Message, Resource, Field, Code string }
	if json.Unmarshal(raw, &about) == nil && about.Code+about.Message != "" {
		if about.Message != "" {
			return []string{about.Message}
		}
		return []string{about.Field + " is " + about.Code}
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	var out []string
	for name, v := range fields {
		if json.Unmarshal(v, &list) == nil {
			out = append(out, name+" "+strings.Join(list, ", "))
		}
	}
	slices.Sort(out)
	return out
}
