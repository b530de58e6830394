package main

import (
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/engine"
)

// relaySettings configure the relay for git repositories.
type relaySettings struct {
	CA         string           `yaml:"ca" json:"ca"`
	FirstRetry caisson.Duration `yaml:"firstRetry" json:"firstRetry"`
	Tries      caisson.Duration `yaml:"tries" json:"tries"`
	Keep       caisson.Duration `yaml:"keep" json:"keep"`
	Space      caisson.Size     `yaml:"space" json:"space"`
}

func defaultRelaySettings() relaySettings {
	return relaySettings{FirstRetry: 5 * second, Tries: 3 * day, Keep: 30 * day, Space: 20 << 30}
}

func (s *relaySettings) validate(bad func(field, format string, args ...any)) {
	if s.CA != "" && !filepath.IsAbs(s.CA) {
		bad("relay.ca", "%q is not an absolute path", s.CA)
	}
	for _, n := range []struct {
		field string
		value caisson.Duration
	}{{"relay.firstRetry", s.FirstRetry}, {"relay.tries", s.Tries}, {"relay.keep", s.Keep}} {
		if n.value <= 0 {
			bad(n.field, "has to be more than nothing")
		}
	}
	if s.Space <= 0 {
		bad("relay.space", "has to be more than nothing")
	}
}

// engineConfig converts the settings to the engine's configuration.
func (s *relaySettings) engineConfig() engine.RelayConfig {
	return engine.RelayConfig{
		CA: s.CA, First: time.Duration(s.FirstRetry), Tries: time.Duration(s.Tries), Keep: time.Duration(s.Keep), Space: s.Space,
	}
}
