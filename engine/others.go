package engine

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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

// minRunKey is the least number of bytes in a key of run tokens.
const minRunKey = 32

// remote is what the wire process has to know about other machines. A key that cannot be had is left out: the log says why.
func (m *models) remote(ctx context.Context) (r caisson.RemoteConfig, err error) {
	r.URL = m.gateway.RemoteURL
	for i, source := range m.gateway.RunKeys {
		key, err := source.get(ctx, m.secrets)
		switch {
		case err != nil:
			m.log.WarnContext(ctx, "a key of run tokens cannot be had", "key", i, "credential", source.Credential, "err", err)
			continue
		case len(key.Reveal()) < minRunKey:
			m.log.WarnContext(ctx, "a key of run tokens is too short; make one with: openssl rand -hex 32", "key", i, "credential", source.Credential)
			continue
		}
		r.RunKeys = append(r.RunKeys, key.Reveal())
	}
	for _, f := range []struct {
		name string
		to   *string
	}{{m.gateway.Certificate, &r.Certificate}, {m.gateway.Key, &r.CertificateKey}, {m.gateway.RemoteCA, &r.Roots}} {
		if f.name == "" {
			continue
		}
		pem, err := readSmallFile(f.name)
		if err != nil {
			return r, caisson.Wrap(err, caisson.Invalid, "the file %s cannot be read", f.name)
		}
		*f.to = string(pem)
	}
	return r, nil
}

// How long to wait for the wire process of an earlier daemon to be gone, which has the socket too.
const (
	listenTries = 20
	listenPause = 100 * time.Millisecond
)

// listen returns a socket that listens. The engine accepts nobody there.
func listen(addr string) (*os.File, error) {
	l, err := net.Listen("tcp", addr)
	for try := 1; errors.Is(err, unix.EADDRINUSE) && try < listenTries; try++ {
		time.Sleep(listenPause)
		l, err = net.Listen("tcp", addr)
	}
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot listen on %s: %v", addr, err)
	}
	defer l.Close() // the file is a duplicate
	return l.(*net.TCPListener).File()
}

func (e *Engine) closeListener() error {
	if e.listener == nil {
		return nil
	}
	return e.listener.Close()
}

// remoteAPI makes the API of the gateway of another machine, again when the token has changed.
type remoteAPI struct {
	cfg     GatewayConfig
	secrets caisson.Secrets

	mu    sync.Mutex
	token caisson.Secret // guarded by mu
	api   RemoteGateway  // for token, nil until there is one; guarded by mu
}

// runs is get for what manages runs.
func (r *remoteAPI) runs(ctx context.Context) (caisson.GatewayRuns, error) { return r.get(ctx) }

// calls returns the calls of a run from the ledger of that gateway, or from the one here where that has none.
func (r *remoteAPI) calls(ctx context.Context, here lister, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error) {
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
	return here.Calls(ctx, q, after, limit)
}

func (r *remoteAPI) get(ctx context.Context) (RemoteGateway, error) {
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

// newGatewayRuns constructs the management of runs on other machines.
func newGatewayRuns(e *Engine) *gatewayRuns {
	return &gatewayRuns{
		serves: e.cfg.Gateway.Listen != "", store: e.Store, check: e.models.Check, budget: e.cfg.Limits.Budget,
		change: e.manager.ChangeRuns, forget: e.manager.Forget, events: e.Events,
	}
}

// GatewayRuns returns the management of runs on other machines.
func (e *Engine) GatewayRuns() caisson.GatewayRuns { return e.runs }
