package models

import (
	_ "embed"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

//go:embed builtin.yaml
var builtinFile []byte // the built-in offer in YAML

// An Offer contains the models that can be granted to sandboxes, and the providers that serve these models.
type Offer struct {
	Providers []caisson.Provider `yaml:"providers" json:"providers"`
	Models    []caisson.Model    `yaml:"models" json:"models"`
	// Builtin is the source and the date of the prices if the offer is the built-in one; "" if the offer is from the
	// configuration.
	Builtin string `yaml:"-" json:"-"`
}

// IsZero reports whether the offer contains neither a provider nor a model.
func (o Offer) IsZero() bool { return len(o.Providers)+len(o.Models) == 0 }

// Builtin returns the offer of installations whose configuration has neither providers nor models.
func Builtin() Offer {
	o := builtin()
	return Offer{Providers: slices.Clone(o.Providers), Models: slices.Clone(o.Models), Builtin: o.Builtin}
}

// builtin returns the built-in offer, which it parses once.
var builtin = sync.OnceValue(func() Offer {
	var file struct {
		Source    string             `yaml:"source"`
		Date      string             `yaml:"date"`
		Providers []caisson.Provider `yaml:"providers"`
		Models    []caisson.Model    `yaml:"models"`
	}
	if err := strictyaml.Decode(builtinFile, &file); err != nil {
		panic("models: builtin.yaml: " + caisson.MessageOf(err)) // embedded in the binary; a test parses it
	}
	return Offer{Providers: file.Providers, Models: file.Models, Builtin: file.Source + ", " + file.Date}
})

// With returns o with the providers and models of more added. A provider of more replaces the provider of o with the same name.
// If more has models of that provider, they replace all of its models in o.
func (o Offer) With(more Offer) Offer {
	own := func(provider string) func(caisson.Model) bool {
		return func(m caisson.Model) bool { return m.Provider == provider }
	}
	for _, p := range more.Providers {
		if i := slices.IndexFunc(o.Providers, func(old caisson.Provider) bool { return old.Name == p.Name }); i >= 0 {
			o.Providers[i] = p
		} else {
			o.Providers = append(o.Providers, p)
		}
		if slices.ContainsFunc(more.Models, own(p.Name)) {
			o.Models = slices.DeleteFunc(o.Models, own(p.Name))
		}
	}
	o.Models = append(o.Models, more.Models...)
	return o
}
