package models

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
)

// secretMap maps account/name to values.
type secretMap map[string]string

func (s secretMap) Secret(_ context.Context, account, name string) (caisson.Secret, error) {
	v, ok := s[account+"/"+name]
	if !ok {
		return caisson.Secret{}, caisson.Errorf(caisson.NotFound, "there is no credential %s", name)
	}
	return caisson.NewSecret(v), nil
}

// as returns a context with the caller.
func as(t *testing.T, account string, local bool) context.Context {
	return caisson.WithCaller(t.Context(), caisson.Caller{Account: account, Local: local})
}

// settingsOf returns the settings for a catalog.
func settingsOf(t *testing.T, c *Catalog, log io.Writer) *Settings {
	t.Helper()
	s, err := NewSettings(SettingsConfig{Catalog: c, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestUnusableKey checks that a key that cannot be sent in a header only disables the models of its provider.
func TestUnusableKey(t *testing.T) {
	for _, bad := range []string{"sk-1\nX-Header: 1", "sk-1\r", "sk\x00", "sk-1\n", "\x1b[2J"} {
		var log bytes.Buffer
		m := NewCatalog(CatalogConfig{
			Offer: Offer{
				Providers: []caisson.Provider{{Name: "bad", Credential: "BAD"}, {Name: "good", Credential: "GOOD"}},
				Models:    []caisson.Model{{Alias: "b", Provider: "bad", Free: true}, {Alias: "g", Provider: "good", Free: true}},
			},
			Secrets: secretMap{"local/BAD": bad, "local/GOOD": "sk-2"}, Prices: sqlitetest.New(t).Ledger(),
		})
		cfg, err := settingsOf(t, m, &log).compute(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := cfg.Keys["bad"]; ok || cfg.Keys["good"] != "sk-2" {
			t.Errorf("%q: keys of %d providers", bad, len(cfg.Keys))
		}
		if !strings.Contains(log.String(), "provider=bad") || strings.Contains(log.String(), "sk-1") {
			t.Errorf("%q: log %s", bad, log.String())
		}
		list, err := m.ListModels(as(t, "a", false))
		if err != nil || len(list) != 2 || !strings.Contains(list[0].Problem, "control character") || list[1].Problem != "" {
			t.Errorf("%q: %+v, %v", bad, list, err)
		}
	}
}

// TestModelsAreInTheOrderOfTheConfiguration checks the order because runs use the first model that fits.
func TestModelsAreInTheOrderOfTheConfiguration(t *testing.T) {
	m := NewCatalog(CatalogConfig{
		Secrets: secretMap{}, Prices: sqlitetest.New(t).Ledger(),
		Offer: Offer{
			Providers: []caisson.Provider{{Name: "p", Kind: caisson.ProviderOpenAI}},
			Models:    []caisson.Model{{Alias: "z", Provider: "p", Free: true}, {Alias: "m", Provider: "p", Free: true}, {Alias: "a", Provider: "p", Free: true}},
		},
	})
	list, err := m.ListModels(as(t, "a", false))
	if err != nil || len(list) != 3 || list[0].Alias != "z" || list[1].Alias != "m" || list[2].Alias != "a" {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestForbidden checks that sandboxes cannot reach the daemon's listeners, in any notation of their addresses.
func TestForbidden(t *testing.T) {
	for listen, want := range map[string]string{
		"":                    "",
		":80":                 "0.0.0.0:80",
		"127.0.0.1:80":        "127.0.0.1:80",
		"[::1]:80":            "[::1]:80",
		"[::ffff:1.2.3.4]:80": "1.2.3.4:80",
		"localhost:80":        "127.0.0.1:80",
	} {
		list, err := listenerAddrs(listen)
		if err != nil {
			t.Errorf("%s: %v", listen, err)
		}
		if want == "" && len(list) == 0 {
			continue
		}
		if !slices.Contains(list, netip.MustParseAddrPort(want)) {
			t.Errorf("%s: %v, want %s", listen, list, want)
		}
	}
	for _, listen := range []string{"localhost", "127.0.0.1:http", "no-such-host.invalid:80"} {
		if list, err := listenerAddrs(listen); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %v, %v, want it to be invalid", listen, list, err)
		}
	}
}

// TestOthersProviders checks that accounts cannot use or see providers of other accounts.
func TestOthersProviders(t *testing.T) {
	m := NewCatalog(CatalogConfig{
		Offer: Offer{
			Providers: []caisson.Provider{{Name: "all"}, {Name: "own", Account: "a", Credential: "KEY"}},
			Models:    []caisson.Model{{Alias: "everybody", Provider: "all", Free: true}, {Alias: "private", Provider: "own", Free: true}},
		},
		Secrets: secretMap{}, Prices: sqlitetest.New(t).Ledger(),
	})
	for _, c := range []struct {
		account string
		local   bool
		may     bool
		sees    int
	}{{"a", false, true, 2}, {"b", false, false, 1}, {"local", true, false, 2}, {"a", true, true, 2}} {
		ctx := as(t, c.account, c.local)
		if err := m.Check(ctx, &caisson.ModelGrant{Models: []string{"everybody"}}); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		err := m.Check(ctx, &caisson.ModelGrant{Models: []string{"everybody", "private"}})
		if c.may != (err == nil) || !c.may && caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%+v: %v", c, err)
		}
		list, err := m.ListModels(ctx)
		if err != nil || len(list) != c.sees {
			t.Errorf("%+v: %+v, %v", c, list, err)
		}
	}
	if err := m.Check(t.Context(), &caisson.ModelGrant{Models: []string{"everybody"}}); err == nil {
		t.Error("nobody was granted a model")
	}
	// A remote run belongs to its account, regardless of the caller that creates it.
	w := newGatewayWorld(t)
	w.Catalog = m
	for _, account := range []string{"a", "b"} {
		_, err := w.PutGatewayRun(as(t, "local", true), caisson.GatewayRun{
			Run: "run-" + account, Account: account, Models: caisson.ModelGrant{Models: []string{"private"}},
		})
		if (account == "a") != (err == nil) {
			t.Errorf("%s: %v", account, err)
		}
	}
}

func TestNeeds(t *testing.T) {
	m := &CredentialWatcher{
		Providers: func() []caisson.Provider {
			return []caisson.Provider{{Name: "all", Credential: "KEY"}, {Name: "own", Account: "a", Credential: "OWN"}, {Name: "none"}}
		},
		RunKeys: []string{"RUN"},
	}
	for c, want := range map[[2]string]bool{
		{"local", "KEY"}: true, {"a", "OWN"}: true, {"local", "RUN"}: true,
		{"a", "KEY"}: false, {"local", "OWN"}: false, {"b", "RUN"}: false, {"local", "OTHER"}: false,
	} {
		if got := m.uses(c[0], c[1]); got != want {
			t.Errorf("%v: %v", c, got)
		}
	}
}

// TestSettingsLast checks that a file that cannot be read any more does not take down the network.
func TestSettingsLast(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(script, []byte("fallback: {text: hello}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	catalog := NewCatalog(CatalogConfig{Offer: Offer{Providers: []caisson.Provider{{Name: "demo", Kind: caisson.ProviderScripted, Script: script}}}})
	s := settingsOf(t, catalog, io.Discard)
	first, err := s.Current(t.Context())
	if err != nil || first.Scripts["demo"] == "" {
		t.Fatal(first, err)
	}
	if err := os.Remove(script); err != nil {
		t.Fatal(err)
	}
	again, err := s.Current(t.Context())
	if err != nil || again.Scripts["demo"] != first.Scripts["demo"] {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := settingsOf(t, catalog, io.Discard).Current(t.Context()); err == nil {
		t.Error("at the start it is no error")
	}
}
