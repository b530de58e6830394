package routes

import (
	"cmp"
	"errors"
	"net"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

// Settings configures the ingress. If Listen is "", there is no ingress.
type Settings struct {
	Listen string `yaml:"listen" json:"listen"` // address on which the ingress listens, as host:port
	// Domain is the host of routes whose spec names no host, and the parent domain of the hosts of other routes. "" means
	// localhost; browsers resolve names below localhost to this machine.
	Domain string      `yaml:"domain" json:"domain"`
	TLS    TLSSettings `yaml:"tls" json:"tls"` // certificate of the ingress
}

// TLSSettings are the paths of the certificate and its key in PEM. The files are read again when they change. Both are required
// unless the ingress listens on a loopback address.
type TLSSettings struct {
	Cert string `yaml:"cert" json:"cert"` // path of the certificate
	Key  string `yaml:"key" json:"key"`   // path of the key
}

// defaultDomain is the default of Settings.Domain.
const defaultDomain = "localhost"

// domain returns Settings.Domain, or its default, in lower case.
func (s *Settings) domain() string {
	return strings.ToLower(cmp.Or(s.Domain, defaultDomain))
}

// WithDefaults returns s with the defaults in place of zero values.
func (s Settings) WithDefaults() Settings {
	s.Domain = cmp.Or(s.Domain, defaultDomain)
	return s
}

// Validate returns an Invalid error for every invalid setting, joined.
func (s *Settings) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, caisson.Invalidf(field, format, args...))
	}
	if (s.TLS.Cert == "") != (s.TLS.Key == "") {
		bad("tls.cert", "tls.cert and tls.key belong together; set both or none")
	}
	for _, f := range []struct{ field, path string }{{"tls.cert", s.TLS.Cert}, {"tls.key", s.TLS.Key}} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			bad(f.field, "%q is not an absolute path", f.path)
		}
	}
	if s.Domain != "" && checkHostName(strings.ToLower(s.Domain)) != nil {
		bad("domain", "%q is not a domain", s.Domain)
	}
	if s.Listen == "" {
		return errors.Join(errs...)
	}
	host, port, err := net.SplitHostPort(s.Listen)
	if n, lookup := net.LookupPort("tcp", port); err != nil || port == "" || lookup != nil || n < 0 {
		bad("listen", "%q is not host:port", s.Listen)
	} else if !reach.Loopback(host) && s.TLS.Cert == "" {
		bad("listen", "%s can be reached from other machines, so it needs ingress.tls; or listen on 127.0.0.1", s.Listen)
	}
	return errors.Join(errs...)
}
