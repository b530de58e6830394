package models

import (
	"context"
	"sync"

	"github.com/caisson-dev/caisson"
)

// GatewayConfig is about model gateways and sandboxes on different machines. The zero GatewayConfig is about none.
type GatewayConfig struct {
	// Listen is the TCP address where sandboxes of other machines are served; "" for nowhere. The wire process speaks there,
	// not the engine.
	Listen      string
	Certificate string // PEM file that is shown there; required beyond loopback
	Key         string // its PEM file
	// RunKeys are the keys of run tokens: the first signs, both verify.
	RunKeys []SecretSource
	// RemoteURL is the gateway of another machine that serves the sandboxes here; "" for the one here.
	RemoteURL string
	RemoteCA  string // PEM file of the authorities to trust for RemoteURL; "" for the host's
	// RemoteToken is a token of that gateway's API, and Remote returns its API. Required with RemoteURL.
	RemoteToken SecretSource
	Remote      func(token caisson.Secret) (RemoteGateway, error)
}

// A RemoteGateway is the API of a gateway on another machine: what it manages runs with, and its ledger.
type RemoteGateway interface {
	caisson.GatewayRuns
	lister
}

// lister is the part of a ledger that lists calls.
type lister interface {
	Calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error)
}

// A SecretSource is a credential of the account local, or a value.
type SecretSource struct {
	Credential string
	Value      caisson.Secret
}

func (s SecretSource) get(ctx context.Context, secrets caisson.Secrets) (caisson.Secret, error) {
	if s.Credential == "" {
		return s.Value, nil
	}
	return secrets.Secret(ctx, caisson.LocalAccount, s.Credential)
}

// Remote is the gateway of another machine. It makes its API again when the token has changed.
type Remote struct {
	cfg     GatewayConfig
	secrets caisson.Secrets
	here    lister

	mu    sync.Mutex
	token caisson.Secret // guarded by mu
	api   RemoteGateway  // for token, nil until there is one; guarded by mu
}

// NewRemote returns the gateway that cfg names. here is the ledger of this machine.
func NewRemote(cfg GatewayConfig, secrets caisson.Secrets, here lister) *Remote {
	return &Remote{cfg: cfg, secrets: secrets, here: here}
}

// Runs returns what manages the runs of that gateway.
func (r *Remote) Runs(ctx context.Context) (caisson.GatewayRuns, error) { return r.get(ctx) }

// Calls returns the calls of a run from the ledger of that gateway, or from the one here where that has none.
func (r *Remote) Calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error) {
	rctx, cancel := context.WithTimeout(ctx, remoteTime)
	defer cancel()
	far, err := r.get(rctx)
	var page []caisson.Call
	var more bool
	if err == nil {
		page, more, err = far.Calls(rctx, caisson.UsageQuery{Run: q.Run}, after, limit)
	}
	// The ledger there does not know a call of the one here.
	if err != nil && caisson.KindOf(err) != caisson.Invalid || len(page) > 0 {
		return page, more, err
	}
	return r.here.Calls(ctx, q, after, limit)
}

func (r *Remote) get(ctx context.Context) (RemoteGateway, error) {
	token, err := r.cfg.RemoteToken.get(ctx, r.secrets)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.api != nil && r.token.Equal(token) {
		return r.api, nil
	}
	api, err := r.cfg.Remote(token)
	if err != nil {
		return nil, err
	}
	r.api, r.token = api, token
	return api, nil
}
