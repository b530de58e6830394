package image

import (
	"crypto/x509"
	"io"
	"os"

	"github.com/caisson-dev/caisson"
)

const maxCA = 256 << 10 // maximum size of Config.RegistryCA's file in bytes; its content is an argument of jobs with a registry

// readCA returns the contents of the PEM file at path, which must contain a certificate, or "" if path is "".
func readCA(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", caisson.Wrap(err, caisson.Invalid, "cannot read the certificate authorities for registries (registryCA)")
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCA+1))
	switch {
	case err != nil:
		return "", caisson.Wrap(err, caisson.Invalid, "cannot read the certificate authorities for registries (registryCA)")
	case len(data) > maxCA:
		return "", caisson.Errorf(caisson.Invalid, "%s (registryCA) is larger than %v", path, caisson.Size(maxCA))
	case !x509.NewCertPool().AppendCertsFromPEM(data):
		return "", caisson.Errorf(caisson.Invalid, "%s (registryCA) contains no certificate in PEM", path)
	}
	return string(data), nil
}

// authorities returns the host's certificate authorities and those in s.CA, or nil, which means the host's alone, if s.CA is
// empty.
func (s source) authorities() (*x509.CertPool, error) {
	if s.CA == "" {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	pool.AppendCertsFromPEM([]byte(s.CA))
	return pool, nil
}
