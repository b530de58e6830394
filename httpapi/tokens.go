package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// tokenRoutes serves the management of tokens.
type tokenRoutes struct {
	core  caisson.Tokens
	calls *tokenCalls
}

func (h tokenRoutes) register(rt *router) {
	const tag = "tokens"
	registerRoute(rt, withCreated(newOperation(http.MethodPost, "/tokens", "create-token", tag, "Create a token for an account (unix socket only)")), h.create)
	registerRoute(rt, newOperation(http.MethodGet, "/tokens", "list-tokens", tag, "List tokens, newest first"), h.list)
	registerRoute(rt, newOperation(http.MethodDelete, "/tokens/{id}", "remove-token", tag, "Make a token useless at once"), h.remove)
}

func (h tokenRoutes) create(ctx context.Context, in *body[protocol.TokenRequest]) (*body[protocol.NewToken], error) {
	if err := requireLocal(ctx); err != nil {
		return nil, err
	}
	req := in.Body
	if req.SSHKey != "" {
		token, err := h.core.CreateSSHKey(ctx, req.Account, req.Name, req.SSHKey, time.Duration(req.TTL))
		if err != nil {
			return nil, err
		}
		return &body[protocol.NewToken]{protocol.NewToken{Token: token}}, nil
	}
	token, secret, err := h.core.CreateToken(ctx, req.Account, req.Name, time.Duration(req.TTL))
	if err != nil {
		return nil, err
	}
	return &body[protocol.NewToken]{protocol.NewToken{Token: token, Secret: secret.Reveal()}}, nil
}

func (h tokenRoutes) list(ctx context.Context, _ *struct{}) (*body[protocol.Page[*caisson.Token]], error) {
	list, err := h.core.ListTokens(ctx)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

func (h tokenRoutes) remove(ctx context.Context, in *struct {
	ID string `path:"id"`
},
) (*noContent, error) {
	id, err := caisson.ParseID(caisson.TokenPrefix, in.ID)
	if err != nil {
		return nil, err
	}
	if err := h.core.RemoveToken(ctx, id); err != nil {
		return nil, err
	}
	h.calls.revoke(id)
	return nil, nil
}
