package client

import (
	"context"
	"net/http"
	"net/url"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// credentials implements [caisson.Credentials] by requests to a daemon.
type credentials struct{ c *requester }

// SetCredential implements [caisson.Credentials].
func (c credentials) SetCredential(ctx context.Context, name string, value caisson.Secret) (*caisson.Credential, error) {
	return c.send(ctx, request{method: http.MethodPut, path: []string{"credentials", name}}, value)
}

// RotateCredential implements [caisson.Credentials].
func (c credentials) RotateCredential(ctx context.Context, name string, value caisson.Secret) (*caisson.Credential, error) {
	return c.send(ctx, request{method: http.MethodPost, path: []string{"credentials", name, "rotate"}}, value)
}

// MatchCredential implements [caisson.Credentials].
func (c credentials) MatchCredential(ctx context.Context, name string, value caisson.Secret) (bool, error) {
	m, err := callWithValue[protocol.Matched](ctx, c.c, request{method: http.MethodPost, path: []string{"credentials", name, "match"}}, value)
	return m.Matches, err
}

// send sends a request whose body contains the value of a credential.
func (c credentials) send(ctx context.Context, r request, value caisson.Secret) (*caisson.Credential, error) {
	return callWithValue[*caisson.Credential](ctx, c.c, r, value)
}

// callWithValue is [call] with the value of a credential as the body. Returns Invalid if the value is not UTF-8.
func callWithValue[T any](ctx context.Context, c *requester, r request, value caisson.Secret) (t T, err error) {
	v := protocol.CredentialValue{Value: value.Reveal()}
	if !utf8.ValidString(v.Value) { // encoding/json would replace invalid bytes
		return t, caisson.Invalidf("value", "is not text in UTF-8; encode it, for example as base64")
	}
	r.jsonBody = v
	return call[T](ctx, c, r)
}

// ListCredentials implements [caisson.Credentials].
func (c credentials) ListCredentials(ctx context.Context) ([]*caisson.Credential, error) {
	return callList[*caisson.Credential](ctx, c.c, request{method: http.MethodGet, path: []string{"credentials"}})
}

// RemoveCredential implements [caisson.Credentials].
func (c credentials) RemoveCredential(ctx context.Context, name string) error {
	return c.c.do(ctx, request{method: http.MethodDelete, path: []string{"credentials", name}})
}

// audit implements [caisson.Audit] by requests to a daemon.
type audit struct{ c *requester }

// VerifyAudit implements [caisson.Audit].
func (a audit) VerifyAudit(ctx context.Context, head string) (*caisson.AuditReport, error) {
	q := url.Values{}
	if head != "" {
		q.Set("head", head)
	}
	return call[*caisson.AuditReport](ctx, a.c, request{method: http.MethodGet, path: []string{"audit", "verify"}, query: q})
}
