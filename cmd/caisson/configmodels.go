package main

import (
	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/models"
)

// budgetSetting is an amount of dollars, or "none".
type budgetSetting struct {
	usd  caisson.USD
	none bool
}

const noBudget = "none"

// UnmarshalText implements [encoding.TextUnmarshaler].
func (b *budgetSetting) UnmarshalText(text []byte) error {
	if string(text) == noBudget {
		*b = budgetSetting{none: true}
		return nil
	}
	usd, err := caisson.ParseUSD(string(text))
	if err != nil {
		return caisson.Errorf(caisson.Invalid, "%.40q is neither an amount of US dollars, for example 5 or 0.25, nor none", text)
	}
	*b = budgetSetting{usd: usd}
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (b budgetSetting) MarshalText() ([]byte, error) {
	if b.none {
		return []byte(noBudget), nil
	}
	return []byte(b.usd.String()), nil
}

// limits returns the budget of a sandbox for which none was specified.
func (b budgetSetting) limits() caisson.Limits {
	if b.none {
		return caisson.Limits{}
	}
	return caisson.Limits{USD: &b.usd}
}

// keySource returns the source of the key with which credentials are encrypted. The environment overrides the configuration, as
// for all settings.
func (c *config) keySource() credential.KeySource {
	if key := credential.TakeKey(); !key.IsZero() {
		return credential.KeySource{Value: key}
	}
	return credential.KeySource{File: c.CredentialKeyFile, Command: c.CredentialKeyCommand}
}

// offer returns the providers and models of the configuration, or those that are built in if it has none.
func (c *config) offer() models.Offer {
	if o := (models.Offer{Providers: c.Providers, Models: c.Models}); !o.IsZero() {
		return o
	}
	return models.Builtin()
}
