package wireproc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/connlimit"
	"github.com/caisson-dev/caisson/wire"
	"github.com/caisson-dev/caisson/wire/httpserver"
	"github.com/caisson-dev/caisson/wire/llm/remote"
	"github.com/caisson-dev/caisson/wire/llm/runtoken"
)

// remoteGateway connects the model gateway to other machines: it serves model calls of their sandboxes, or forwards those of the
// sandboxes here to the gateway of another machine.
type remoteGateway struct {
	env      wire.Env                      // functions that the wire process provides
	registry *remote.Registry              // runs on other machines whose calls are served here
	server   *remote.Server                // authenticates the calls of the runs in registry
	front    *httpserver.Server            // serves HTTP on TCP connections of other machines, with server as its handler
	client   atomic.Pointer[remote.Client] // forwards calls of sandboxes here to another machine; nil: they are served here

	mu   sync.Mutex           // held during configure; guards last
	last caisson.RemoteConfig // argument of the latest call of configure
}

// fromRemote is a context key that marks requests from other machines. Only the grants of marked requests are looked up in the
// registry; other requests have the grant of their wire.
type fromRemote struct{}

// Limits on connections of other machines to the model gateway, which has its own limits for calls.
const (
	headerTimeout  = 10 * time.Second // for the arrival of a request's header
	idleTimeout    = 2 * time.Minute  // for the next request on a connection
	writeTimeout   = time.Minute      // for writing each part of an answer over HTTP/2
	maxConns       = 2048             // maximum number of connections at the same time
	maxSourceConns = 256              // of these, maximum number from one IPv4 address or IPv6 /64 network
)

// newRemoteGateway returns a remoteGateway that serves no machine until configure is called. gateway, the model gateway, handles
// the requests of other machines; their context has the guest.
func newRemoteGateway(env wire.Env, gateway http.Handler) (*remoteGateway, error) {
	o := &remoteGateway{env: env, registry: remote.NewRegistry(remote.RegistryConfig{})}
	var err error
	if o.server, err = remote.NewServer(remote.ServerConfig{Runs: o.registry, Gateway: gateway, Log: env.Log}); err != nil {
		return nil, err
	}
	o.front = httpserver.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.server.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), fromRemote{}, true)))
	}), httpserver.Timeouts{Header: headerTimeout, Idle: idleTimeout, Write: writeTimeout})
	return o, nil
}

// grant returns the current grant of a guest on another machine; theirs is false if the request came from a sandbox here.
func (o *remoteGateway) grant(ctx context.Context, g caisson.Guest) (grant *caisson.ModelGrant, theirs bool) {
	if ctx.Value(fromRemote{}) == nil {
		return nil, false
	}
	return o.registry.Grant(ctx, g), true
}

// configure sets the keys of run tokens, the certificate that is shown to other machines, and the URL of the gateway to which
// calls are forwarded. An invalid setting is logged, and the functions that depend on it are disabled; the other settings apply.
func (o *remoteGateway) configure(c caisson.RemoteConfig) {
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.last
	o.last = c
	var tokens *runtoken.Tokens
	if len(c.RunKeys) > 0 {
		var keys []caisson.Secret
		for _, k := range c.RunKeys {
			keys = append(keys, caisson.NewSecret(k))
		}
		var err error
		if tokens, err = runtoken.New(runtoken.Config{Keys: keys}); err != nil {
			o.env.Log.Error("the keys of run tokens cannot be used; no other machine is served", "err", err)
		}
	}
	o.server.SetTokens(tokens)
	o.front.SetCertificate(o.certificate(c))
	if c.URL == "" {
		o.client.Store(nil)
		return
	}
	old := o.client.Load()
	if old != nil && c.URL == was.URL && c.Roots == was.Roots {
		old.SetTokens(tokens)
		return
	}
	client, err := o.newClient(c, tokens)
	if err != nil {
		o.env.Log.Error("the model gateway on another machine cannot be used", "err", err)
		client = &remote.Client{} // rejects requests: the gateway on this machine must not replace the configured one
	}
	if o.client.Store(client); old != nil {
		old.CloseIdleConnections()
	}
}

// certificate returns the configured certificate; nil if there is none or if it is invalid, which is logged.
func (o *remoteGateway) certificate(c caisson.RemoteConfig) *tls.Certificate {
	if c.Certificate == "" {
		return nil
	}
	cert, err := tls.X509KeyPair([]byte(c.Certificate), []byte(c.CertificateKey))
	if err != nil {
		o.env.Log.Error("the certificate for other machines cannot be used; no other machine is served", "err", err)
		return nil
	}
	return &cert
}

// newClient returns a client of the model gateway on another machine, at c.URL. It signs its requests with tokens.
func (o *remoteGateway) newClient(c caisson.RemoteConfig, tokens *runtoken.Tokens) (*remote.Client, error) {
	roots := o.env.Roots
	if c.Roots != "" {
		roots = x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(c.Roots))
	}
	return remote.NewClient(remote.ClientConfig{URL: c.URL, Tokens: tokens, Roots: roots, Dial: o.env.Dial, Log: o.env.Log})
}

// handler returns a handler of model calls of sandboxes on this machine. It forwards them to the gateway of another machine if
// one is configured; otherwise it serves them with here.
func (o *remoteGateway) handler(here http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if there := o.client.Load(); there != nil {
			there.ServeHTTP(w, r)
			return
		}
		here.ServeHTTP(w, r)
	})
}

// Runs implements [wire.Gateway]: it removes runs of other machines from the registry, and adds or replaces others.
func (g *gateway) Runs(c caisson.GatewayRunChange) error {
	for _, run := range c.Remove {
		g.remote.registry.Remove(run)
	}
	for _, r := range c.Put {
		if err := g.remote.registry.Put(caisson.WireSpec{Guest: r.Guest(), Models: &r.Models}, r.ExpiresAt); err != nil {
			return err
		}
	}
	return nil
}

// Listen implements [wire.Gateway]: it serves model calls of other machines on the listening socket f.
func (g *gateway) Listen(f *os.File) error {
	defer f.Close() // net.FileListener duplicates the descriptor
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	go func() {
		if err := g.remote.front.Serve(connlimit.New(l, maxConns, maxSourceConns), false); err != nil {
			g.env.Log.Error("other machines are not served any more", "err", err)
		}
	}()
	return nil
}
