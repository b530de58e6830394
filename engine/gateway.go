package engine

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/ledger"
	"github.com/caisson-dev/caisson/llm/prices"
	"github.com/caisson-dev/caisson/runs"
	"github.com/caisson-dev/caisson/wire"
)

// models is the engine's side of the model gateway: which models there are, at what price and with whose key.
type models struct {
	providers []caisson.Provider
	models    []caisson.Model
	forbidden []netip.AddrPort
	public    []netip.Prefix
	roots     string
	gateway   GatewayConfig
	secrets   caisson.Secrets
	ledger    caisson.LedgerStore
	refresh   func(ctx context.Context) error // gives the settings to the wire process again
	events    caisson.Publisher
	log       *slog.Logger

	mu   sync.Mutex
	last *caisson.GatewayConfig // guarded by mu; nil until there were settings
}

var _ caisson.Models = (*models)(nil)

// resolved returns the configured models with what is known about their prices, in the order of the configuration.
func (m *models) resolved(ctx context.Context) ([]caisson.GatewayModel, error) {
	list := []caisson.GatewayModel{}
	for _, model := range m.models {
		g := caisson.GatewayModel{Model: model}
		if g.Upstream == "" {
			g.Upstream = g.Alias
		}
		i := slices.IndexFunc(m.providers, func(p caisson.Provider) bool { return p.Name == model.Provider })
		if i < 0 {
			return nil, caisson.Invalidf("models", "model %s has the provider %s, which is not configured", model.Alias, model.Provider)
		}
		p := m.providers[i]
		g.Kind = p.Kind
		listed, err := m.ledger.Price(ctx, p.Name, g.Upstream)
		if caisson.KindOf(err) == caisson.NotFound {
			listed, err = m.ledger.Price(ctx, p.Kind, g.Upstream)
		}
		if err != nil && caisson.KindOf(err) != caisson.NotFound {
			return nil, err
		}
		if err == nil {
			if g.Context == 0 {
				g.Context = listed.Context
			}
			if g.Output == 0 {
				g.Output = listed.Output
			}
		}
		switch {
		case g.Free:
			g.PriceSource = "free"
		case g.Prices != nil:
			g.PriceSource = "config"
		case err == nil:
			g.Prices, g.PriceSource = &listed.Prices, listed.Source
			if listed.Context > 0 {
				g.Context = min(g.Context, listed.Context) // beyond it the list's price may not hold
			}
		default:
			g.Problem = "no price is known; set prices, or free: true, in the configuration, or run caisson model import-prices"
		}
		if p.Credential != "" {
			if _, err := m.key(ctx, p); caisson.KindOf(err) == caisson.NotFound {
				g.Problem = fmt.Sprintf("its provider's credential is missing; run caisson credential set %s", p.Credential)
			} else if err != nil {
				g.Problem = caisson.MessageOf(err)
			}
		}
		list = append(list, g)
	}
	return list, nil
}

// key returns a provider's key. One that no header of a request can carry is Invalid: the gateway would refuse all settings
// because of it.
func (m *models) key(ctx context.Context, p caisson.Provider) (caisson.Secret, error) {
	key, err := m.secrets.Secret(ctx, accountOf(p), p.Credential)
	if err == nil && strings.ContainsFunc(key.Reveal(), unicode.IsControl) {
		return caisson.Secret{}, caisson.Errorf(caisson.Invalid,
			"its provider's credential has a line break or another control character in it; run caisson credential rotate %s", p.Credential)
	}
	return key, err
}

// needs reports whether a credential is part of the settings, so that a change of it changes them.
func (c *Config) needs(account, name string) bool {
	return slices.ContainsFunc(c.Providers, func(p caisson.Provider) bool { return accountOf(p) == account && p.Credential == name }) ||
		account == caisson.LocalAccount && slices.ContainsFunc(c.Gateway.RunKeys, func(s SecretSource) bool { return s.Credential == name })
}

func accountOf(p caisson.Provider) string {
	if p.Account == "" {
		return caisson.LocalAccount
	}
	return p.Account
}

// usable reports whether an account may use a model. A provider without an account is the operator's, and for everybody.
func (m *models) usable(account string, model caisson.Model) bool {
	return slices.ContainsFunc(m.providers, func(p caisson.Provider) bool {
		return p.Name == model.Provider && (p.Account == "" || p.Account == account)
	})
}

// ListModels implements [caisson.Models]. Callers with a token see the models that they may use.
func (m *models) ListModels(ctx context.Context) ([]caisson.GatewayModel, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	list, err := m.resolved(ctx)
	if err != nil || caller.Local {
		return list, err
	}
	return slices.DeleteFunc(list, func(g caisson.GatewayModel) bool { return !m.usable(caller.Account, g.Model) }), nil
}

// ImportPrices implements [caisson.Models].
func (m *models) ImportPrices(ctx context.Context, source string, data []byte) (int, error) {
	if err := localOnly(ctx); err != nil {
		return 0, err
	}
	list, err := prices.Parse(source, data)
	if err != nil {
		return 0, err
	}
	at := time.Now().UTC()
	for i := range list {
		list[i].At = at
	}
	if err := m.ledger.PutPrices(ctx, source, list); err != nil {
		return 0, err
	}
	// Prices decide what budgets are worth.
	m.events.Publish(ctx, caisson.LocalAccount, "prices.imported", source, map[string]string{"models": strconv.Itoa(len(list))})
	return len(list), m.refresh(ctx)
}

// ListPrices implements [caisson.Models].
func (m *models) ListPrices(ctx context.Context, match string) ([]caisson.ListedPrice, error) {
	if _, err := caisson.CallerOf(ctx); err != nil {
		return nil, err
	}
	return m.ledger.Prices(ctx, match)
}

var grantNames = []string{caisson.GrantProviderTools, caisson.GrantRemoteURLs, caisson.GrantBeta, caisson.GrantServerState}

// Check says whether a grant can be given to the account that the caller acts for.
func (m *models) Check(ctx context.Context, g *caisson.ModelGrant) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if len(g.Models) == 0 {
		return caisson.Invalidf("models", "names no model; caisson model ls lists them")
	}
	for _, alias := range g.Models {
		if alias == runs.WarmModel {
			continue // free, and no more than a script: there is no harm in it
		}
		known := func(model caisson.Model) bool { return model.Alias == alias && m.usable(caller.Account, model) }
		if m.gateway.RemoteURL == "" && !slices.ContainsFunc(m.models, known) {
			return caisson.Invalidf("models", "there is no model %.60q; caisson model ls lists them", alias)
		}
	}
	for _, name := range g.Allow {
		if !slices.Contains(grantNames, name) {
			return caisson.Invalidf("allow", "%.60q is not one of %s", name, strings.Join(grantNames, ", "))
		}
	}
	b := g.Budget
	if b.USD != nil && *b.USD < 0 || b.Tokens != nil && *b.Tokens < 0 || b.Calls != nil && *b.Calls < 0 {
		return caisson.Invalidf("budget", "must not be negative")
	}
	if g.Rate.Requests < 0 || g.Rate.Tokens < 0 {
		return caisson.Invalidf("rate", "must not be negative")
	}
	return nil
}

// lasting returns the settings, or those of the last time if they cannot be had now: a script that somebody moves must not
// take the network of all sandboxes down when the wire process starts again. At the start of the daemon it is an error.
func (m *models) lasting(ctx context.Context) (*caisson.GatewayConfig, error) {
	cfg, err := m.settings(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.last = cfg
		return cfg, nil
	}
	if m.last == nil || ctx.Err() != nil {
		return nil, err
	}
	m.log.ErrorContext(ctx, "the settings of the model gateway cannot be had; those it had last stay in force", "err", err)
	return m.last, nil
}

// settings is what the wire process has to know. Providers whose key is missing or cannot be used have none, and their models
// are refused.
func (m *models) settings(ctx context.Context) (*caisson.GatewayConfig, error) {
	cfg := &caisson.GatewayConfig{
		Providers: m.providers, Keys: map[string]string{}, Scripts: map[string]string{}, Forbidden: m.forbidden, PublicAddresses: m.public, Roots: m.roots,
	}
	var err error
	if cfg.Nameservers, err = nameservers(resolvConf); err != nil {
		m.log.WarnContext(ctx, "the host's nameservers cannot be read; sandboxes resolve no names", "err", err)
	}
	if cfg.Remote, err = m.remote(ctx); err != nil {
		return nil, err
	}
	list, err := m.resolved(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range list {
		cfg.Models = append(cfg.Models, g.Model)
	}
	addWarm(cfg)
	for _, p := range m.providers {
		if p.Script != "" {
			script, err := readSmallFile(p.Script)
			if err != nil {
				return nil, caisson.Wrap(err, caisson.Invalid, "the script of provider %s cannot be read", p.Name)
			}
			cfg.Scripts[p.Name] = string(script)
		}
		if p.Credential == "" {
			continue
		}
		key, err := m.key(ctx, p)
		if err != nil {
			m.log.WarnContext(ctx, "a provider's key cannot be had; its models are refused", "provider", p.Name, "credential", p.Credential, "err", err)
			continue
		}
		cfg.Keys[p.Name] = key.Reveal()
	}
	return cfg, nil
}

// spendLogs asks a LiteLLM proxy of the configuration what it has recorded.
func (m *models) spendLogs(ctx context.Context, provider string, since time.Time) ([]ledger.SpendLog, error) {
	i := slices.IndexFunc(m.providers, func(p caisson.Provider) bool { return p.Name == provider })
	if i < 0 || m.providers[i].Kind != caisson.ProviderLiteLLM {
		return nil, caisson.Errorf(caisson.NotFound, "there is no provider %.40q of kind litellm", provider)
	}
	p := m.providers[i]
	key, err := m.key(ctx, p)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	pool.AppendCertsFromPEM([]byte(m.roots))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	return ledger.FetchSpendLogs(ctx, &http.Client{Transport: transport}, p.BaseURL, key, since, time.Now())
}

// maxScript bounds scripts and resolv.conf.
const maxScript = 1 << 20

func readSmallFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxScript+1))
	if err == nil && len(b) > maxScript {
		err = fmt.Errorf("%s is larger than %s", name, caisson.Size(maxScript))
	}
	return b, err
}

// resolvConf says which nameservers the host asks.
const resolvConf = "/etc/resolv.conf"

// nameservers reads a resolv.conf(5).
func nameservers(file string) ([]netip.AddrPort, error) {
	b, err := readSmallFile(file)
	if err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	lines := bufio.NewScanner(strings.NewReader(string(b)))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			list = append(list, netip.AddrPortFrom(a.Unmap(), 53))
		}
	}
	return list, lines.Err()
}

// forbidden returns the addresses of listeners, from the forms that net.Listen takes.
func forbidden(listen ...string) ([]netip.AddrPort, error) {
	var list []netip.AddrPort
	for _, l := range listen {
		if l == "" {
			continue
		}
		host, port, err := net.SplitHostPort(l)
		if err != nil {
			return nil, caisson.Invalidf("listen", "%.100q is not HOST:PORT", l)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, caisson.Invalidf("listen", "%.100q has no port number", l)
		}
		addrs := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
		if host != "" {
			if addrs, err = hostAddrs(host); err != nil {
				return nil, caisson.Wrap(err, caisson.Invalid, "the address of the listener %.100q cannot be found; give it as a number", l)
			}
		}
		for _, a := range addrs {
			list = append(list, netip.AddrPortFrom(a.Unmap(), uint16(n)))
		}
	}
	return list, nil
}

// lookupTime bounds finding a listener's addresses.
const lookupTime = 10 * time.Second

// hostAddrs returns all addresses of a host: net.Listen takes one of them.
func hostAddrs(host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// watchInterval is how soon a change of the host's nameservers is noticed.
const watchInterval = 5 * time.Second

// watchNameservers refreshes the settings when resolv.conf changes, until ctx ends.
func (m *models) watchNameservers(ctx context.Context) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last, _ := nameservers(resolvConf)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := nameservers(resolvConf)
		if err != nil || slices.Equal(now, last) {
			continue
		}
		if err := m.refresh(ctx); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "the wire process could not be told the host's new nameservers", "err", err)
			continue
		}
		last = now
	}
}

// gateway joins what the core needs of models and wires.
type gateway struct {
	*models
	wires *wire.Manager
}

// Network implements sandboxes.Gateway.
func (g gateway) Network(ctx context.Context, id caisson.ID) (*caisson.NetworkStats, error) {
	s, err := g.wires.Stats(ctx, id)
	if err != nil {
		return nil, err
	}
	return &caisson.NetworkStats{
		BytesOut: int64(s.BytesOut), BytesIn: int64(s.BytesIn), Dropped: int64(s.DroppedOut),
		Allowed: s.Flows.Allowed, Denied: s.Flows.Denied, Limited: s.Flows.Limited, Open: s.Flows.Open,
	}, nil
}

// Recent implements sandboxes.Gateway.
func (g gateway) Recent(ctx context.Context, id caisson.ID) ([]caisson.Decision, error) {
	return g.wires.Recent(ctx, id)
}
