package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// settings is the configuration of a daemon: the settings in force, and the keys of settings that have other values in the files
// now. The files are the configuration file and the file of own providers. settings is safe for concurrent use.
type settings struct {
	load       func() (*config, error)                   // reads the files, whose settings the environment and the flags override
	background bool                                      // the daemon was started by a command and ends when it is idle
	level      *slog.LevelVar                            // level of the daemon's log
	setOffer   func(context.Context, models.Offer) error // puts an offer in force in the daemon
	log        *slog.Logger

	reloading sync.Mutex // held while the configuration is read again and applied; taken before mu

	mu      sync.Mutex
	inForce *config      // the settings in force; guarded by mu
	offer   models.Offer // the offer in force; guarded by mu
	seen    [2]fileStamp // versions of the two files when changed and invalid were determined; guarded by mu
	changed []string     // keys whose values in the files are not those in force; guarded by mu
	invalid string       // the error in the files, "" if they are valid; guarded by mu
}

// fileStamp identifies the version of a file by its size and its modification time.
type fileStamp struct {
	size  int64     // size of the file in bytes
	mtime time.Time // modification time of the file
}

// stampOf returns the size and the modification time of a file, or zero values if it does not exist or stat fails.
func stampOf(file string) fileStamp {
	info, err := os.Stat(file)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{info.Size(), info.ModTime()}
}

// stamps returns the size and the modification time of the configuration file, and those of the file of own providers.
func (c *config) stamps() [2]fileStamp {
	return [2]fileStamp{stampOf(c.lookedFor), stampOf(c.ownProvidersFile())}
}

// clientKeys are the keys of settings that only commands use.
var clientKeys = []string{"host", "account", "caFile", "token"}

// runTimeKeys are the keys of settings that a reload puts in force; changes of other settings need a restart of the daemon.
var runTimeKeys = []string{"providers", "models", "logLevel"}

// changedKeys returns the keys of settings whose values differ in a and b, except of settings that only commands use.
func changedKeys(a, b *config) (keys []string) {
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range x.NumField() {
		key, _, _ := strings.Cut(x.Type().Field(i).Tag.Get("yaml"), ",")
		if key == "-" || key == "" || slices.Contains(clientKeys, key) {
			continue
		}
		u, v := x.Field(i), y.Field(i)
		if u.Kind() == reflect.Slice && u.Len()+v.Len() == 0 { // nil and an empty list mean the same
			continue
		}
		if !reflect.DeepEqual(u.Interface(), v.Interface()) {
			keys = append(keys, key)
		}
	}
	return keys
}

// read returns the configuration and the offer that the files contain now. It sets s.changed to the keys of settings with values
// that are not in force, or s.invalid to the error in the files. The caller must hold mu.
func (s *settings) read() (cfg *config, offer models.Offer, err error) {
	s.seen, s.changed, s.invalid = s.inForce.stamps(), nil, ""
	if cfg, err = s.load(); err == nil {
		offer, err = cfg.offer()
	}
	if err != nil {
		s.invalid = newErrorReport(splitErrors(err)[0]).Message
		return nil, offer, err
	}
	s.changed = changedKeys(s.inForce, cfg)
	if !reflect.DeepEqual(offer, s.offer) && !slices.Contains(s.changed, "providers") && !slices.Contains(s.changed, "models") {
		s.changed = append(s.changed, "models")
	}
	return cfg, offer, nil
}

// check brings s.changed and s.invalid up to date: it calls read if the configuration file or the file of own providers has
// changed since the last call of read. The caller must hold mu.
func (s *settings) check() {
	if s.inForce.stamps() != s.seen {
		_, _, _ = s.read() // the error is ignored: read has set s.invalid to it
	}
}

// State implements [engine.Settings].
func (s *settings) State(st *caisson.DaemonStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.check()
	st.Background = s.background
	st.Listen = append(st.Listen, s.inForce.SocketPath())
	for _, l := range []struct{ prefix, addr string }{
		{"", s.inForce.Listen}, {"gateway ", s.inForce.Gateway.Listen}, {"ingress ", s.inForce.Ingress.Listen}, {"ssh ", s.inForce.SSH.Listen},
	} {
		if l.addr != "" {
			st.Listen = append(st.Listen, l.prefix+l.addr)
		}
	}
	st.Settings = caisson.Settings{File: s.inForce.File, InForce: map[string]any{}, Changed: slices.Clone(s.changed), Invalid: s.invalid}
	b, err := json.Marshal(s.inForce)
	if err == nil {
		err = json.Unmarshal(b, &st.Settings.InForce)
	}
	if err != nil {
		s.log.Error("the settings in force cannot be shown", "err", err)
	}
	for _, key := range clientKeys {
		delete(st.Settings.InForce, key)
	}
}

// Reload implements [engine.Settings].
func (s *settings) Reload(ctx context.Context) (*caisson.Reloaded, error) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	s.mu.Lock()
	cfg, offer, err := s.read()
	changed := s.changed
	s.mu.Unlock()
	if err != nil {
		s.log.ErrorContext(ctx, "the configuration is invalid; the one that was read before stays in force", "err", err)
		return nil, err
	}
	// Set the offer even if it is equal: it refers to files with the answers of scripted models, which may have changed.
	if err := s.setOffer(ctx, offer); err != nil {
		return nil, err
	}
	if err := s.level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.inForce
	next.File, next.Providers, next.Models, next.LogLevel = cfg.File, cfg.Providers, cfg.Models, cfg.LogLevel
	s.inForce, s.offer, s.invalid = &next, offer, ""
	done := &caisson.Reloaded{Applied: []string{}, NeedRestart: []string{}}
	for _, key := range changed {
		if slices.Contains(runTimeKeys, key) {
			done.Applied = append(done.Applied, key)
		} else {
			done.NeedRestart = append(done.NeedRestart, key)
		}
	}
	s.changed = done.NeedRestart
	s.log.InfoContext(ctx, "read the configuration again", "applied", done.Applied, "needRestart", done.NeedRestart)
	return done, nil
}

// applyCommand returns the command that puts the changed settings in force: a reload if one of them allows that, otherwise a
// restart.
func applyCommand(changed []string) string {
	if slices.ContainsFunc(changed, func(key string) bool { return slices.Contains(runTimeKeys, key) }) {
		return "caisson daemon reload"
	}
	return "caisson daemon restart"
}

// changedNow returns the keys of settings whose values in the files now are not those in force.
func (s *settings) changedNow() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.check()
	return slices.Clone(s.changed)
}

// notices prints, at most once, that the daemon has another version than this command, or has not read a changed configuration.
type notices struct {
	a    *app
	once sync.Once
}

// show prints the messages for of, the information about the daemon in its first response. Later calls do nothing.
func (n *notices) show(of client.Notice) {
	n.once.Do(func() {
		if ours := buildVersion().Version; of.Version != "" && of.Version != ours {
			n.a.infof("caisson: the daemon has the version %.60q and this command %q; to have both alike: caisson daemon restart", of.Version, ours)
		}
		if of.Changed != "" {
			n.a.infof("caisson: the configuration has changed since the daemon read it (%s); to apply it: %s", safetext.Escape(of.Changed), applyCommand(strings.Split(of.Changed, ", ")))
		}
	})
}
