package httpapi

import (
	"context"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// credentialRoutes serves the management of credentials. Values occur only in request bodies: not in paths or queries, which
// proxies log, and not in responses. Requests with values do not support Idempotency-Key, because a hash of the request, for
// which no secret key is used, would be stored, and a short value can be guessed from its hash.
type credentialRoutes struct{ core caisson.Credentials }

func (h credentialRoutes) register(rt *router) {
	const tag = "credentials"
	registerListRoute(rt, getOp("/credentials", "list-credentials", tag, "List credentials by name, without their values"),
		withoutInput(h.core.ListCredentials))
	registerRoute(rt, withCreated(putOp("/credentials/{name}", "set-credential", tag, "Store a new credential")), h.set)
	registerRoute(rt, postOp("/credentials/{name}/rotate", "rotate-credential", tag, "Replace the value of a credential"), h.rotate)
	registerRoute(rt, postOp("/credentials/{name}/match", "match-credential", tag, "Compare a value with that of a credential (unix socket only)"),
		localOnly(h.match))
	registerActionRoute(rt, deleteOp("/credentials/{name}", "remove-credential", tag, "Delete a credential"),
		removeByRef[CredentialParam](h.core.RemoveCredential))
}

// CredentialParam is the name of a credential in a path.
type CredentialParam struct {
	Name string `path:"name" maxLength:"64" doc:"Name, in the form of an environment variable's name"`
}

// ref returns the name in the path; see [refParam].
func (p CredentialParam) ref() string { return p.Name }

// CredentialValue is the body of a request with the value of a credential.
type CredentialValue struct {
	Value caisson.Secret `json:"value" doc:"Text in UTF-8 without NUL, at most 64 KiB; it cannot be read back"`
}

// credentialInput is a request with the value of a credential.
type credentialInput struct {
	CredentialParam
	RawBody []byte // the body as the client has sent it
	Body    CredentialValue
}

// value returns the value of the credential in the body. The body must be UTF-8, because encoding/json replaces invalid bytes and
// a secret must not be altered.
func (in *credentialInput) value() (caisson.Secret, error) {
	if !utf8.Valid(in.RawBody) {
		return caisson.Secret{}, caisson.Invalidf("value", "is not text in UTF-8; encode it, for example as base64")
	}
	return in.Body.Value, nil
}

func (h credentialRoutes) set(ctx context.Context, in *credentialInput) (*caisson.Credential, error) {
	value, err := in.value()
	if err != nil {
		return nil, err
	}
	return h.core.SetCredential(ctx, in.Name, value)
}

func (h credentialRoutes) rotate(ctx context.Context, in *credentialInput) (*caisson.Credential, error) {
	value, err := in.value()
	if err != nil {
		return nil, err
	}
	return h.core.RotateCredential(ctx, in.Name, value)
}

// match responds whether the value in the request is that of the credential.
func (h credentialRoutes) match(ctx context.Context, in *credentialInput) (protocol.Matched, error) {
	value, err := in.value()
	if err != nil {
		return protocol.Matched{}, err
	}
	same, err := h.core.MatchCredential(ctx, in.Name, value)
	return protocol.Matched{Matches: same}, err
}
