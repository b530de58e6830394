package models

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/smallfile"
)

// SettingsConfig configures Settings. Catalog, Wire and Log are required.
type SettingsConfig struct {
	Catalog         *Catalog       // models and their providers
	Gateway         GatewayConfig  // model gateways that machines share
	WarmScript      string         // script of the scripted model that is used to make warm snapshots
	Listen          []string       // addresses of the daemon's listeners, which no sandbox may reach
	PublicAddresses []netip.Prefix // networks that lead to this machine although none of its interfaces has an address in them
	Wire            WireProcess    // informs the wire process of changed settings
	Log             *slog.Logger
}

// Settings computes the settings that the wire process has besides the spec of each wire.
type Settings struct {
	SettingsConfig
	forbidden []netip.AddrPort // addresses and ports of the daemon's listeners, which no sandbox may reach

	mu   sync.Mutex
	last *caisson.GatewayConfig // settings that were last computed; nil before a call of Current has succeeded; guarded by mu
}

// NewSettings returns Settings, or an Invalid error if the address of a listener cannot be resolved.
func NewSettings(cfg SettingsConfig) (_ *Settings, err error) {
	s := &Settings{SettingsConfig: cfg}
	s.forbidden, err = listenerAddrs(cfg.Listen...)
	return s, err
}

// Current returns the settings. If they cannot be computed, it logs the error and returns the previous settings: a configured
// file that is missing must not take down the network of all sandboxes when the wire process restarts. At the start of the
// daemon, when there are no previous settings, it returns the error.
func (s *Settings) Current(ctx context.Context) (*caisson.GatewayConfig, error) {
	cfg, err := s.compute(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.last = cfg
		return cfg, nil
	}
	if s.last == nil || ctx.Err() != nil {
		return nil, err
	}
	s.Log.ErrorContext(ctx, "the settings of the model gateway could not be loaded; the last ones stay in force", "err", err)
	return s.last, nil
}

// compute computes the settings. A provider whose key is missing or invalid has no key in the settings, and calls of its models
// are refused.
func (s *Settings) compute(ctx context.Context) (*caisson.GatewayConfig, error) {
	offer := s.Catalog.Offered()
	cfg := &caisson.GatewayConfig{
		Providers: offer.Providers, Keys: map[string]string{}, Scripts: map[string]string{},
		Forbidden: s.forbidden, PublicAddresses: s.PublicAddresses, Roots: s.Catalog.Roots,
	}
	var err error
	if cfg.Nameservers, err = nameservers(resolvConf); err != nil {
		s.Log.WarnContext(ctx, "the host's nameservers cannot be read; sandboxes resolve no names", "err", err)
	}
	if cfg.Remote, err = s.remoteConfig(ctx); err != nil {
		return nil, err
	}
	list, err := s.Catalog.resolved(ctx, offer)
	if err != nil {
		return nil, err
	}
	for _, g := range list {
		cfg.Models = append(cfg.Models, g.Model)
	}
	s.addWarmModel(cfg)
	for _, p := range offer.Providers {
		if p.Script != "" {
			script, err := smallfile.Read(p.Script)
			if err != nil {
				return nil, caisson.Wrap(err, caisson.Invalid, "the script of provider %s cannot be read", p.Name)
			}
			cfg.Scripts[p.Name] = string(script)
		}
		if p.Credential == "" {
			continue
		}
		key, err := s.Catalog.key(ctx, p)
		if offer.Builtin != "" && caisson.KindOf(err) == caisson.NotFound {
			continue // the user need not have keys of all providers of the built-in offer
		}
		if err != nil {
			s.Log.WarnContext(ctx, "a provider's key is not available; calls of its models are refused", "provider", p.Name, "credential", p.Credential, "err", err)
			continue
		}
		cfg.Keys[p.Name] = key.Reveal()
	}
	return cfg, nil
}

// minRunKey is the minimum length in bytes of a key that signs run tokens, which authenticate gateway runs.
const minRunKey = 32

// CheckRunKey returns an Invalid error if value is too short for a key of run tokens, and the credential of that name contains
// such a key: the account is local, and the name is in keys, the [GatewaySettings.RunTokenKeys].
func CheckRunKey(keys []string, account, name string, value caisson.Secret) error {
	if account == caisson.LocalAccount && slices.Contains(keys, name) && len(value.Reveal()) < minRunKey {
		return caisson.Invalidf("value", "gateway.runTokenKeys of the configuration names %s, and a key of run tokens has at least %d bytes; make one with: openssl rand -hex 32", name, minRunKey)
	}
	return nil
}

// remoteConfig returns the settings for serving other machines, or for the use of a gateway on another machine. A key of run
// tokens that cannot be read is logged and left out.
func (s *Settings) remoteConfig(ctx context.Context) (r caisson.RemoteConfig, err error) {
	r.URL = s.Gateway.RemoteURL
	for i, name := range s.Gateway.RunTokenKeys {
		key, err := lookupSecret(ctx, s.Catalog.Secrets, name)
		switch {
		case err != nil:
			s.Log.WarnContext(ctx, "a key of run tokens is not available", "key", i, "credential", name, "err", err)
			continue
		case len(key.Reveal()) < minRunKey:
			s.Log.WarnContext(ctx, "a key of run tokens is too short; make one with: openssl rand -hex 32", "key", i, "credential", name)
			continue
		}
		r.RunKeys = append(r.RunKeys, key.Reveal())
	}
	for _, f := range []struct {
		name string
		to   *string
	}{{s.Gateway.TLSCert, &r.Certificate}, {s.Gateway.TLSKey, &r.CertificateKey}, {s.Gateway.RemoteCA, &r.Roots}} {
		if f.name == "" {
			continue
		}
		pem, err := smallfile.Read(f.name)
		if err != nil {
			return r, caisson.Wrap(err, caisson.Invalid, "the file %s cannot be read", f.name)
		}
		*f.to = string(pem)
	}
	return r, nil
}

// addWarmModel adds the scripted model for warm snapshots to cfg. The API does not list the model, because it is not configured.
func (s *Settings) addWarmModel(cfg *caisson.GatewayConfig) {
	name := s.Catalog.WarmModel
	if name == "" {
		return
	}
	cfg.Providers = append(slices.Clone(cfg.Providers), caisson.Provider{Name: name, Kind: caisson.ProviderScripted})
	cfg.Models = append(cfg.Models, caisson.Model{
		Alias: name, Provider: name, Upstream: name, Free: true, Context: 200_000, Output: 8192,
	})
	cfg.Scripts[name] = s.WarmScript // the same script for all agents
}

// CredentialWatcher refreshes the settings of the wire process when a credential that they use changes.
type CredentialWatcher struct {
	Providers func() []caisson.Provider // returns the providers of the current offer
	RunKeys   []string                  // names of secrets with keys of run tokens: credentials, or env:VARIABLE
	Wire      WireProcess               // informs the wire process of changed settings
	Log       *slog.Logger
}

// Changed must be called after a credential has changed. A failed refresh is logged; the next refresh includes the change.
func (w *CredentialWatcher) Changed(ctx context.Context, account, name string) {
	if !w.uses(account, name) {
		return
	}
	if err := w.Wire.Refresh(ctx); err != nil {
		w.Log.ErrorContext(ctx, "the model gateway could not be updated with changed settings", "err", err)
	}
}

// uses reports whether the settings of the wire process contain the value of the credential.
func (w *CredentialWatcher) uses(account, name string) bool {
	return slices.ContainsFunc(w.Providers(), func(p caisson.Provider) bool { return credentialAccount(p) == account && p.Credential == name }) ||
		account == caisson.LocalAccount && slices.Contains(w.RunKeys, name)
}
