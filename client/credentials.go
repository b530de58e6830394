package client

import (
	"context"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// credentials implements [caisson.Credentials] by requests to a daemon.
type credentials struct{ c *requester }

// SetCredential implements [caisson.Credentials].
func (c credentials) SetCredential(ctx context.Context, name string, value caisson.Secret) (*caisson.Credential, error) {
	return callWithValue[*caisson.Credential](ctx, c.c, put(nil, "credentials", name), value)
}

// RotateCredential implements [caisson.Credentials].
func (c credentials) RotateCredential(ctx context.Context, name string, value caisson.Secret) (*caisson.Credential, error) {
	return callWithValue[*caisson.Credential](ctx, c.c, post(nil, "credentials", name, "rotate"), value)
}

// MatchCredential implements [caisson.Credentials].
func (c credentials) MatchCredential(ctx context.Context, name string, value caisson.Secret) (bool, error) {
	m, err := callWithValue[protocol.Matched](ctx, c.c, post(nil, "credentials", name, "match"), value)
	return m.Matches, err
}

// callWithValue sends the request r with the value of a credential as the body, and decodes the JSON response. Returns Invalid if
// the value is not UTF-8.
func callWithValue[T any](ctx context.Context, c *requester, r request, value caisson.Secret) (t T, err error) {
	v := protocol.CredentialValue{Value: value.Reveal()}
	if !utf8.ValidString(v.Value) { // an error, because encoding/json would replace invalid bytes
		return t, caisson.Invalidf("value", "is not text in UTF-8; encode it, for example as base64")
	}
	r.jsonBody = v
	return call[T](ctx, c, r)
}

// ListCredentials implements [caisson.Credentials].
func (c credentials) ListCredentials(ctx context.Context) ([]*caisson.Credential, error) {
	return callList[*caisson.Credential](ctx, c.c, get("credentials"))
}

// RemoveCredential implements [caisson.Credentials].
func (c credentials) RemoveCredential(ctx context.Context, name string) error {
	return c.c.do(ctx, remove("credentials", name))
}

// audit implements [caisson.Audit] by requests to a daemon.
type audit struct{ c *requester }

// VerifyAudit implements [caisson.Audit].
func (a audit) VerifyAudit(ctx context.Context, head string) (*caisson.AuditReport, error) {
	return call[*caisson.AuditReport](ctx, a.c, get("audit", "verify").withParam("head", head))
}
