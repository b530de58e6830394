package models

import (
	"context"
	"sync"

	"github.com/caisson-dev/caisson"
)

// GatewayConfig configures a gateway that serves other machines, or the use of one. The zero value disables both.
type GatewayConfig struct {
	// Listen is the TCP address where the wire process serves sandboxes of other machines; "" disables it.
	Listen      string
	Certificate string // PEM file of the server certificate; required unless Listen is a loopback address
	Key         string // PEM file of the certificate's key
	// RunKeys are the keys of run tokens. The first one signs; all of them verify.
	RunKeys []SecretSource
	// RemoteURL is the URL of a gateway on another machine that serves the local sandboxes; "" selects the local gateway.
	RemoteURL string
	RemoteCA  string // PEM file of the certificate authorities to trust for RemoteURL; "" selects the host's
	// RemoteToken is a token for the API of that gateway, and Remote returns a client of that API. Required with RemoteURL.
	RemoteToken SecretSource
	Remote      func(token caisson.Secret) (RemoteGateway, error)
}

// A RemoteGateway is the API of a gateway on another machine: the management of runs and the ledger.
type RemoteGateway interface {
	caisson.GatewayRuns
	callLister
}

// callLister lists the calls in a ledger.
type callLister interface {
	Calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error)
}

// A SecretSource is the name of a credential of the account local, or a value.
type SecretSource struct {
	Credential string
	Value      caisson.Secret
}

// get returns the value, which it reads from secrets if s names a credential.
func (s SecretSource) get(ctx context.Context, secrets caisson.Secrets) (caisson.Secret, error) {
	if s.Credential == "" {
		return s.Value, nil
	}
	return secrets.Secret(ctx, caisson.LocalAccount, s.Credential)
}

// RemoteClient is a client of a gateway on another machine. It is safe for concurrent use. It reconnects with the new token when the
// token changes.
type RemoteClient struct {
	cfg     GatewayConfig
	secrets caisson.Secrets
	local   callLister // ledger of this machine

	mu    sync.Mutex
	token caisson.Secret // guarded by mu
	api   RemoteGateway  // client for token; nil before the first use; guarded by mu
}

// NewRemoteClient returns a client of the gateway in cfg. here is the ledger of this machine.
func NewRemoteClient(cfg GatewayConfig, secrets caisson.Secrets, here callLister) *RemoteClient {
	return &RemoteClient{cfg: cfg, secrets: secrets, local: here}
}

// Runs returns the API that manages the runs of the gateway.
func (r *RemoteClient) Runs(ctx context.Context) (caisson.GatewayRuns, error) { return r.get(ctx) }

// Calls returns the calls of a run from the remote ledger, or from the local ledger if the remote ledger has none.
func (r *RemoteClient) Calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error) {
	rctx, cancel := context.WithTimeout(ctx, remoteTimeout)
	defer cancel()
	far, err := r.get(rctx)
	var page []caisson.Call
	var more bool
	if err == nil {
		page, more, err = far.Calls(rctx, caisson.UsageQuery{Run: q.Run}, after, limit)
	}
	// The remote ledger returns Invalid if after is the id of a call in the local ledger.
	if err != nil && caisson.KindOf(err) != caisson.Invalid || len(page) > 0 {
		return page, more, err
	}
	return r.local.Calls(ctx, q, after, limit)
}

// get returns a client with the current token.
func (r *RemoteClient) get(ctx context.Context) (RemoteGateway, error) {
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
