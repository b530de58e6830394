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

// SettingsConfig is what Settings are made of. Catalog, Wire and Log are required.
type SettingsConfig struct {
	Catalog         *Catalog
	Gateway         GatewayConfig
	WarmScript      string         // of the model that agents are warmed up on
	Listen          []string       // the daemon's own listeners: no sandbox may reach them
	PublicAddresses []netip.Prefix // lead to this machine although no interface has them
	Wire            Wire
	Log             *slog.Logger
}

// Settings is what the wire process is told besides each wire's spec.
type Settings struct {
	SettingsConfig
	forbidden []netip.AddrPort

	mu   sync.Mutex
	last *caisson.GatewayConfig // guarded by mu; nil until there were settings
}

// NewSettings returns Settings, or an Invalid error if an address of a listener cannot be found.
func NewSettings(cfg SettingsConfig) (_ *Settings, err error) {
	s := &Settings{SettingsConfig: cfg}
	s.forbidden, err = forbidden(cfg.Listen...)
	return s, err
}

// Lasting returns the settings, or those of the last time if they cannot be had now: a script that somebody moves must not
// take the network of all sandboxes down when the wire process starts again. At the start of the daemon it is an error.
func (s *Settings) Lasting(ctx context.Context) (*caisson.GatewayConfig, error) {
	cfg, err := s.settings(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.last = cfg
		return cfg, nil
	}
	if s.last == nil || ctx.Err() != nil {
		return nil, err
	}
	s.Log.ErrorContext(ctx, "the settings of the model gateway cannot be had; those it had last stay in force", "err", err)
	return s.last, nil
}

// settings is what the wire process has to know. Providers whose key is missing or cannot be used have none, and their models
// are refused.
func (s *Settings) settings(ctx context.Context) (*caisson.GatewayConfig, error) {
	cfg := &caisson.GatewayConfig{
		Providers: s.Catalog.Providers, Keys: map[string]string{}, Scripts: map[string]string{},
		Forbidden: s.forbidden, PublicAddresses: s.PublicAddresses, Roots: s.Catalog.Roots,
	}
	var err error
	if cfg.Nameservers, err = nameservers(resolvConf); err != nil {
		s.Log.WarnContext(ctx, "the host's nameservers cannot be read; sandboxes resolve no names", "err", err)
	}
	if cfg.Remote, err = s.remote(ctx); err != nil {
		return nil, err
	}
	list, err := s.Catalog.resolved(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range list {
		cfg.Models = append(cfg.Models, g.Model)
	}
	s.addWarm(cfg)
	for _, p := range s.Catalog.Providers {
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
		if err != nil {
			s.Log.WarnContext(ctx, "a provider's key cannot be had; its models are refused", "provider", p.Name, "credential", p.Credential, "err", err)
			continue
		}
		cfg.Keys[p.Name] = key.Reveal()
	}
	return cfg, nil
}

// minRunKey is the least number of bytes in a key of run tokens.
const minRunKey = 32

// remote is what the wire process has to know about other machines. A key that cannot be had is left out: the log says why.
func (s *Settings) remote(ctx context.Context) (r caisson.RemoteConfig, err error) {
	r.URL = s.Gateway.RemoteURL
	for i, source := range s.Gateway.RunKeys {
		key, err := source.get(ctx, s.Catalog.Secrets)
		switch {
		case err != nil:
			s.Log.WarnContext(ctx, "a key of run tokens cannot be had", "key", i, "credential", source.Credential, "err", err)
			continue
		case len(key.Reveal()) < minRunKey:
			s.Log.WarnContext(ctx, "a key of run tokens is too short; make one with: openssl rand -hex 32", "key", i, "credential", source.Credential)
			continue
		}
		r.RunKeys = append(r.RunKeys, key.Reveal())
	}
	for _, f := range []struct {
		name string
		to   *string
	}{{s.Gateway.Certificate, &r.Certificate}, {s.Gateway.Key, &r.CertificateKey}, {s.Gateway.RemoteCA, &r.Roots}} {
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

// addWarm adds the model that agents are warmed up on. It is nobody's to ask for: no list shows it.
func (s *Settings) addWarm(cfg *caisson.GatewayConfig) {
	name := s.Catalog.Warm
	if name == "" {
		return
	}
	cfg.Providers = append(slices.Clone(cfg.Providers), caisson.Provider{Name: name, Kind: caisson.ProviderScripted})
	cfg.Models = append(cfg.Models, caisson.Model{
		Alias: name, Provider: name, Upstream: name, Free: true, Context: 200_000, Output: 8192,
	})
	cfg.Scripts[name] = s.WarmScript // whichever agent asks, it answers
}

// KeyWatch gives the wire process its settings again when a credential that is part of them has changed.
type KeyWatch struct {
	Providers []caisson.Provider
	RunKeys   []SecretSource
	Wire      Wire
	Log       *slog.Logger
}

// Changed is to be called after a change of a credential. That the process cannot be told is logged: the next one will know.
func (w *KeyWatch) Changed(ctx context.Context, account, name string) {
	if !w.needs(account, name) {
		return
	}
	if err := w.Wire.Refresh(ctx); err != nil {
		w.Log.ErrorContext(ctx, "the model gateway could not be told that settings changed", "err", err)
	}
}

// needs reports whether a credential is part of the settings.
func (w *KeyWatch) needs(account, name string) bool {
	return slices.ContainsFunc(w.Providers, func(p caisson.Provider) bool { return accountOf(p) == account && p.Credential == name }) ||
		account == caisson.LocalAccount && slices.ContainsFunc(w.RunKeys, func(s SecretSource) bool { return s.Credential == name })
}
