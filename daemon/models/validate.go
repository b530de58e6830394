package models

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

var (
	providerName   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)    // format of the name of a provider
	credentialName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`) // format of the name of a credential
	variableName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`) // format of the name of an environment variable
)

const (
	maxModelName   = 256                     // bytes in the alias or the upstream name of a model
	maxModelTokens = 1_000_000_000           // tokens in the context window or in an answer of a model
	maxModelPrice  = 10_000 * caisson.Dollar // highest price per million tokens
)

// providerKinds returns the valid kinds of providers.
func providerKinds() []string {
	return []string{
		caisson.ProviderOpenAI, caisson.ProviderAnthropic, caisson.ProviderGemini, caisson.ProviderLiteLLM, caisson.ProviderScripted,
	}
}

// badFunc records an error in the setting called field.
type badFunc = func(field, format string, args ...any)

// Validate returns an Invalid error for every invalid setting of providers and models, joined.
func Validate(providers []caisson.Provider, models []caisson.Model) error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, caisson.Invalidf(field, format, args...))
	}
	names := map[string]bool{}
	for i, p := range providers {
		at := fmt.Sprintf("providers[%d]", i)
		switch {
		case !providerName.MatchString(p.Name):
			bad(at+".name", "%.80q is not 1 to 64 lower-case letters, digits, '.', '_' and '-'", p.Name)
		case names[p.Name]:
			bad(at+".name", "%q is the name of two providers", p.Name)
		}
		names[p.Name] = true
		validateProvider(at, p, bad)
	}
	aliases := map[string]bool{}
	for i, m := range models {
		at := fmt.Sprintf("models[%d]", i)
		switch {
		case !isModelName(m.Alias):
			bad(at+".alias", "%.80q is not 1 to %d printable characters without spaces", m.Alias, maxModelName)
		case aliases[m.Alias]:
			bad(at+".alias", "%q is the alias of two models", m.Alias)
		}
		aliases[m.Alias] = true
		if !names[m.Provider] {
			bad(at+".provider", "%.80q is not the name of one of the providers", m.Provider)
		}
		validateModel(at, m, bad)
	}
	return errors.Join(errs...)
}

// validateProvider calls bad for every invalid setting of the provider in the field at.
func validateProvider(at string, p caisson.Provider, bad badFunc) {
	if !slices.Contains(providerKinds(), p.Kind) {
		bad(at+".kind", "%.80q is not one of %s", p.Kind, strings.Join(providerKinds(), ", "))
		return
	}
	if p.Kind == caisson.ProviderScripted {
		switch {
		case p.Script != "" && !filepath.IsAbs(p.Script):
			bad(at+".script", "%.200q is not the absolute path of a script", p.Script)
		case p.BaseURL != "" || p.Credential != "" || p.Account != "" || p.MaxTokens != "":
			bad(at, "a scripted provider can only have a script; without one it has a built-in script for experiments")
		}
		return
	}
	if p.Script != "" {
		bad(at+".script", "is only for providers of kind scripted")
	}
	switch {
	case p.MaxTokens == "":
	case p.Kind != caisson.ProviderOpenAI && p.Kind != caisson.ProviderLiteLLM:
		bad(at+".maxTokensField", "is only for providers of kind openai and litellm")
	case p.MaxTokens != "max_tokens" && p.MaxTokens != "max_completion_tokens":
		bad(at+".maxTokensField", "%.80q is neither max_tokens nor max_completion_tokens", p.MaxTokens)
	}
	if err := checkBaseURL(p.BaseURL); err != nil {
		bad(at+".baseURL", "%s", err)
	}
	if p.Credential != "" && !credentialName.MatchString(p.Credential) {
		bad(at+".credential", "is not the name of a credential; if it is a key, replace that key and see caisson credential set")
	}
	switch {
	case p.Account != "" && p.Credential == "":
		bad(at+".account", "names the account of the credential, and no credential is set")
	case p.Account != "" && !caisson.ValidAccountName(p.Account):
		bad(at+".account", "%.80q is not the name of an account", p.Account)
	}
}

// checkBaseURL returns an error unless s is a valid URL of a provider or gateway. Only on this machine may it be http: keys,
// prompts and answers must not be sent over a network unencrypted.
func checkBaseURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.RawPath != "" || u.Opaque != "":
		return errors.New("is not a URL; write for example https://api.openai.com/v1")
	case u.User != nil:
		return errors.New("must not hold a password; use credential")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return errors.New("must not have a query or fragment")
	case u.Scheme == "http" && !reach.Loopback(u.Hostname()):
		return fmt.Errorf("the connection to %.200s would not be encrypted; use https, or http on this machine only", u.Host)
	}
	return nil
}

// isModelName reports whether s is valid as the alias or the upstream name of a model.
func isModelName(s string) bool {
	return s != "" && len(s) <= maxModelName &&
		!strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })
}

// validateModel calls bad for every invalid setting of the model in the field at.
func validateModel(at string, m caisson.Model, bad badFunc) {
	if m.Upstream != "" && !isModelName(m.Upstream) {
		bad(at+".upstream", "%.80q is not 1 to %d printable characters without spaces", m.Upstream, maxModelName)
	}
	if m.Free && m.Prices != nil {
		bad(at+".free", "a free model has no prices; remove one of them")
	}
	if p := m.Prices; p != nil {
		for _, f := range []struct {
			name string
			usd  caisson.USD
		}{{"input", p.Input}, {"output", p.Output}, {"cacheRead", p.CacheRead}, {"cacheWrite", p.CacheWrite}} {
			if f.usd < 0 || f.usd > maxModelPrice {
				bad(at+".prices."+f.name, "%s is not from 0 to %s USD per million tokens", f.usd, maxModelPrice)
			}
		}
		if p.Input == 0 && p.Output == 0 {
			bad(at+".prices", "are all 0; if the model costs nothing, write free: true instead")
		}
	}
	for _, f := range []struct {
		name   string
		tokens int64
	}{{"context", m.Context}, {"output", m.Output}} {
		if f.tokens < 0 || f.tokens > maxModelTokens {
			bad(at+"."+f.name, "%d is not a number of tokens", f.tokens)
		}
	}
	if m.Context > 0 && m.Output > m.Context {
		bad(at+".output", "%d tokens are more than the context has", m.Output)
	}
}

// Validate returns an Invalid error for every invalid setting, joined.
func (g *GatewaySettings) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, caisson.Invalidf(field, format, args...))
	}
	if (g.TLSCert == "") != (g.TLSKey == "") {
		bad("tlsCert", "tlsCert and tlsKey belong together; set both or none")
	}
	for _, f := range []struct{ field, path string }{
		{"tlsCert", g.TLSCert}, {"tlsKey", g.TLSKey}, {"remoteCA", g.RemoteCA},
	} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			bad(f.field, "%q is not an absolute path", f.path)
		}
	}
	if g.Listen != "" && g.RemoteURL != "" {
		bad("remoteURL", "a machine either serves the gateway (listen) or uses another's (remoteURL)")
	}
	if g.Listen != "" {
		host, port, err := net.SplitHostPort(g.Listen)
		if n, lookup := net.LookupPort("tcp", port); err != nil || port == "" || lookup != nil || n < 0 {
			bad("listen", "%q is not host:port", g.Listen)
		} else if !reach.Loopback(host) && g.TLSCert == "" {
			bad("listen", "%s can be reached from other machines, so it needs gateway.tlsCert and gateway.tlsKey", g.Listen)
		}
	}
	if g.RemoteURL != "" {
		if err := checkBaseURL(g.RemoteURL); err != nil {
			bad("remoteURL", "%s", err)
		}
		switch {
		case g.RemoteAPI == "":
			bad("remoteAPI", "is required with remoteURL: the URL of that daemon's API, for example https://host:7443")
		case checkBaseURL(g.RemoteAPI) != nil:
			bad("remoteAPI", "%s", checkBaseURL(g.RemoteAPI))
		}
		if !isSecretName(g.RemoteToken) {
			bad("remoteToken", "is neither env:VARIABLE nor the name of a credential; the token itself must not be written here")
		}
	} else if g.RemoteCA != "" || g.RemoteAPI != "" || g.RemoteToken != "" {
		bad("remoteURL", "is not set, and remoteCA, remoteAPI and remoteToken are only for it")
	}
	if n := len(g.RunTokenKeys); n > 2 || n == 0 && (g.Listen != "" || g.RemoteURL != "") {
		bad("runTokenKeys", "there are %d keys; set one, or two while keys are rotated", n)
	}
	for i, name := range g.RunTokenKeys {
		if !isSecretName(name) {
			bad(fmt.Sprintf("runTokenKeys[%d]", i),
				"is neither env:VARIABLE nor the name of a credential; the key itself must not be written here")
		}
	}
	return errors.Join(errs...)
}

// isSecretName reports whether s is valid as the name of a secret: env:VARIABLE, or the name of a credential.
func isSecretName(s string) bool {
	if variable, ok := strings.CutPrefix(s, "env:"); ok {
		return variableName.MatchString(variable)
	}
	return credentialName.MatchString(s)
}
