package httpapi

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// tokenRoutes serves the management of tokens.
type tokenRoutes struct {
	core  caisson.Tokens
	calls *tokenCalls // the requests with a token that are being served; those of a removed token are cancelled
}

func (h tokenRoutes) register(rt *router) {
	const tag = "tokens"
	registerRoute(rt, withCreated(postOp("/tokens", "create-token", tag, "Create a token for an account (unix socket only)")), localOnly(h.create))
	registerListRoute(rt, getOp("/tokens", "list-tokens", tag, "List tokens, newest first"), withoutInput(h.core.ListTokens))
	registerActionRoute(rt, deleteOp("/tokens/{id}", "remove-token", tag, "Revoke a token"), h.remove)
}

func (h tokenRoutes) create(ctx context.Context, in *body[protocol.TokenRequest]) (protocol.NewToken, error) {
	req := in.Body
	if req.SSHKey != "" {
		token, err := h.core.CreateSSHKey(ctx, req.Account, req.Name, req.SSHKey, time.Duration(req.TTL))
		return protocol.NewToken{Token: token}, err
	}
	token, secret, err := h.core.CreateToken(ctx, req.Account, req.Name, time.Duration(req.TTL))
	return protocol.NewToken{Token: token, Secret: secret.Reveal()}, err
}

func (h tokenRoutes) remove(ctx context.Context, in *struct {
	ID string `path:"id"`
},
) error {
	id, err := caisson.ParseID(caisson.TokenPrefix, in.ID)
	if err != nil {
		return err
	}
	if err := h.core.RemoveToken(ctx, id); err != nil {
		return err
	}
	h.calls.revoke(id)
	return nil
}
