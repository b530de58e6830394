package models

import (
	"context"
	"os"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
)

// GatewaySettings configure model gateways that other machines share. Everything is off by default.
type GatewaySettings struct {
	// Listen is the address on which the model gateway of this machine serves sandboxes of other machines.
	Listen  string `yaml:"listen" json:"listen"`
	TLSCert string `yaml:"tlsCert" json:"tlsCert"` // path of the certificate for Listen
	TLSKey  string `yaml:"tlsKey" json:"tlsKey"`   // path of the certificate's key
	// RemoteURL is the URL of the model gateway of another machine, which sandboxes of this machine use instead of the local
	// gateway.
	RemoteURL string `yaml:"remoteURL" json:"remoteURL"`
	RemoteCA  string `yaml:"remoteCA" json:"remoteCA"` // path of the CAs to trust for RemoteURL
	// RemoteAPI is the URL of the API of the daemon whose gateway is at RemoteURL; sandboxes are registered there.
	RemoteAPI string `yaml:"remoteAPI" json:"remoteAPI"`
	// RemoteToken names the secret with the token for RemoteAPI: env:VARIABLE, or a credential of the account local.
	RemoteToken string `yaml:"remoteToken" json:"remoteToken"`
	// RunTokenKeys are the names of one or two secrets that contain keys of run tokens, which authenticate gateway runs:
	// env:VARIABLE, or the name of a credential of the account local. The first key signs run tokens, and all keys verify them.
	RunTokenKeys []string `yaml:"runTokenKeys" json:"runTokenKeys"`
}

// GatewayConfig configures a gateway that serves other machines, or the use of a gateway on another machine. The zero value
// disables both.
type GatewayConfig struct {
	GatewaySettings
	// Remote returns a client of the API at RemoteAPI. Required with RemoteURL.
	Remote func(token caisson.Secret) (RemoteGateway, error)
}

// A RemoteGateway is the API of a gateway on another machine: the management of runs and the ledger.
type RemoteGateway interface {
	caisson.GatewayRuns
	Calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error)
}

// listCalls returns a page of the calls in a ledger.
type listCalls func(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error)

// lookupSecret returns the secret with a name: the value of the environment variable VARIABLE if the name is env:VARIABLE,
// otherwise the credential with that name of the account local.
func lookupSecret(ctx context.Context, secrets caisson.Secrets, name string) (caisson.Secret, error) {
	if variable, ok := strings.CutPrefix(name, "env:"); ok {
		return caisson.NewSecret(os.Getenv(variable)), nil
	}
	return secrets.Secret(ctx, caisson.LocalAccount, name)
}

// RemoteClient is a client of a gateway on another machine. It is safe for concurrent use. It reconnects with the new token
// when the token changes.
type RemoteClient struct {
	cfg     GatewayConfig   // addresses of the other machine, and the name of the secret with the token for it
	secrets caisson.Secrets // values of credentials
	local   listCalls       // lists the calls in the ledger of this machine

	mu    sync.Mutex
	token caisson.Secret // token with which api was created; guarded by mu
	api   RemoteGateway  // client with token; nil before the first call of get; guarded by mu
}

// NewRemoteClient returns a client of the gateway in cfg. local lists calls in the ledger of this machine.
func NewRemoteClient(cfg GatewayConfig, secrets caisson.Secrets, local listCalls) *RemoteClient {
	return &RemoteClient{cfg: cfg, secrets: secrets, local: local}
}

// Runs returns the API that manages the gateway runs at the gateway of the other machine.
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
	return r.local(ctx, q, after, limit)
}

// get returns a client with the current token, and creates it if the token has changed.
func (r *RemoteClient) get(ctx context.Context) (RemoteGateway, error) {
	token, err := lookupSecret(ctx, r.secrets, r.cfg.RemoteToken)
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
