package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/daemon/models"
)

// TestSettings checks what a reload puts in force, also while requests look at the settings, and that one that fails changes nothing.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("dataDir: "+dir+"\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	load := func() (*config, error) {
		cfg, err := loadConfig(globals{Config: file}, func(string) string { return "" })
		if err != nil {
			return nil, err
		}
		return cfg, cfg.validate()
	}
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	offer, err := cfg.offer()
	if err != nil {
		t.Fatal(err)
	}
	var offered models.Offer
	var refuse error
	s := &settings{
		load: load, level: &slog.LevelVar{}, log: slog.New(slog.DiscardHandler), inForce: cfg, offer: offer, seen: cfg.stamps(),
		setOffer: func(_ context.Context, o models.Offer) error {
			if refuse == nil {
				offered = o
			}
			return refuse
		},
	}
	want := func(step, changed, level, alias string) {
		t.Helper()
		var st caisson.DaemonStatus
		s.State(&st)
		if got := strings.Join(s.changedNow(), " "); got != changed || st.Settings.InForce["logLevel"] != level || alias != "" && (len(offered.Models) == 0 || offered.Models[0].Alias != alias) {
			t.Errorf("%s: changed is %q, in force are %v and %+v", step, got, st.Settings.InForce["logLevel"], offered.Models)
		}
		if _, ok := st.Settings.InForce["token"]; ok {
			t.Errorf("%s: the token is among the settings", step)
		}
	}
	want("at first", "", "info", "")
	write("logLevel: warn\nidleExit: 5m\nhost: unix:///elsewhere\n")
	want("a changed file", "logLevel idleExit", "info", "")
	refuse = errors.New("no")
	write("logLevel: warn\neventRetention: 1d\nidleExit: 5m\n") // read first by the reload
	if _, err := s.Reload(t.Context()); err == nil {
		t.Error("a failure is not reported")
	}
	want("after a failure", "logLevel eventRetention idleExit", "info", "")
	refuse = nil
	write("logLevel: warn\nidleExit: 5m\nhost: unix:///elsewhere\n")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { s.changedNow(); s.State(new(caisson.DaemonStatus)) })
	}
	done, err := s.Reload(t.Context())
	wg.Wait()
	if err != nil || strings.Join(done.Applied, " ") != "logLevel" || strings.Join(done.NeedRestart, " ") != "idleExit" || s.level.Level() != slog.LevelWarn {
		t.Errorf("%+v, %v", done, err)
	}
	want("after a reload", "idleExit", "warn", "claude-sonnet-5")
	write("logLevel: loud\n")
	if _, err := s.Reload(t.Context()); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("an invalid file: %v", err)
	}
	want("after an invalid file", "", "warn", "claude-sonnet-5")

	// Own providers replace built-in ones, and a mistake in their file is one in the configuration.
	write("idleExit: 5m\nlogLevel: warn\n")
	own := `{"providers": [{"name": "anthropic", "kind": "anthropic", "baseURL": "http://127.0.0.1:1"}], "models": [{"alias": "mine", "provider": "anthropic", "free": true}]}`
	if err := os.WriteFile(cfg.ownProvidersFile(), []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	if done, err := s.Reload(t.Context()); err != nil || strings.Join(done.Applied, " ") != "models" {
		t.Errorf("%+v, %v", done, err)
	}
	want("own providers", "idleExit", "warn", "gpt-5.4")
	if err := os.WriteFile(cfg.ownProvidersFile(), []byte(strings.Replace(own, "http://127.0.0.1:1", "http://10.0.0.1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "would not be encrypted") || !strings.Contains(err.Error(), cfg.ownProvidersFile()) {
		t.Errorf("an own provider without encryption: %v", err)
	}
}

// TestNotices checks that a notice is shown once, on standard error, and that a daemon cannot write control characters with it.
func TestNotices(t *testing.T) {
	var errs strings.Builder
	n := &notices{a: &app{stdio: stdio{err: &errs}}}
	for range 2 {
		n.show(client.Notice{Version: "\x1b[2J", Changed: "models, \x1b[2J"})
	}
	if got := errs.String(); strings.Count(got, "\n") != 2 || strings.Contains(got, "\x1b") || !strings.Contains(got, "caisson daemon restart") || !strings.Contains(got, "caisson daemon reload") {
		t.Errorf("%q", got)
	}
	errs.Reset()
	(&notices{a: n.a}).show(client.Notice{Version: buildVersion().Version})
	if errs.Len() > 0 {
		t.Errorf("%q", errs.String())
	}
}
