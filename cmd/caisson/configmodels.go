package main

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

// budgetSetting is a setting that limits the cost of model calls: an amount of US dollars, or "none" for no limit.
type budgetSetting struct {
	usd  caisson.USD // the limit, unless none is set
	none bool        // the cost is not limited
}

// noBudget is the text of a budgetSetting without limit.
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

// limits returns the limits of a sandbox for which no budget was specified.
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

// ownProvidersFile is the path of the file with the own providers.
func (c *config) ownProvidersFile() string { return filepath.Join(c.DataDir, "providers.yaml") }

// offer returns the providers and models of the configuration. If it has none, offer returns the built-in ones, with the own
// providers in place of built-in ones.
func (c *config) offer() (models.Offer, error) {
	if o := (models.Offer{Providers: c.Providers, Models: c.Models}); !o.IsZero() {
		return o, nil
	}
	own, err := c.ownProviders()
	if err != nil {
		return own, err
	}
	o := models.Builtin().With(own)
	if err := models.Validate(o.Providers, o.Models); err != nil {
		return o, withFileName(c.ownProvidersFile(), err)
	}
	return o, nil
}

// ownProviders reads the own providers from their file. It returns an empty offer if the file does not exist.
func (c *config) ownProviders() (own models.Offer, err error) {
	data, err := readSmall(c.ownProvidersFile())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // ENOTDIR: the engine reports a faulty data directory
		return own, nil
	}
	if err != nil {
		return own, caisson.Invalidf("providers", "%s", err)
	}
	if err := strictyaml.Decode(data, &own); err != nil {
		return own, withFileName(c.ownProvidersFile(), err)
	}
	return own, nil
}
