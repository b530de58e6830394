package models

import (
	_ "embed"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

//go:embed builtin.yaml
var builtinFile []byte

// An Offer is what can be granted to sandboxes: models, and the providers that serve them.
type Offer struct {
	Providers []caisson.Provider `yaml:"providers" json:"providers"`
	Models    []caisson.Model    `yaml:"models" json:"models"`
	// Builtin says where the prices come from, and of which day they are, if the offer is the built-in one; "" if it is from the
	// configuration.
	Builtin string `yaml:"-" json:"-"`
}

// IsZero reports whether there is neither a provider nor a model.
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

// With returns the built-in offer with what more has: a provider of more replaces the one of the same name, and its models, if
// there are any, replace that one's.
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
