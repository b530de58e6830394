package install

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
)

// maxLock is the maximum size of a lock file, in bytes.
const maxLock = 8 << 20

// lock is a lock file, package-lock.json, with the fields that the installation uses.
type lock struct {
	Version  int                    `json:"lockfileVersion"` // version of the format of the file
	Packages map[string]lockPackage `json:"packages"`        // by path, such as node_modules/npm; "" is the project itself
}

// lockPackage is the description of one package in a lock file.
type lockPackage struct {
	Name      string `json:"name"`      // name of the package; "" if the path of the package ends with it
	Version   string `json:"version"`   // version of the package
	Resolved  string `json:"resolved"`  // URL of the package's archive
	Integrity string `json:"integrity"` // digests of the archive, such as sha512-BASE64
	Link      bool   `json:"link"`      // the package is a link to a directory
	InBundle  bool   `json:"inBundle"`  // the package is contained in the archive of another one

	OS  stringOrList `json:"os"`  // supported operating systems, or unsupported ones after "!"; empty means all
	CPU stringOrList `json:"cpu"` // supported processors, or unsupported ones after "!"; empty means all
}

// A source describes the archive of a package: where it is, and which digest it has.
type source struct {
	version string // version of the package
	url     string // URL of the archive
	sum     []byte // SHA-512 of the archive
}

// readLock reads and parses the lock file at the path name, and returns it with its unparsed content.
func readLock(name string) (*lock, []byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLock+1))
	if err != nil {
		return nil, nil, err
	}
	l, err := parseLock(b)
	return l, b, err
}

// parseLock parses a lock file. It returns an error if a package in it cannot come from the registry or has no digest; npm would
// accept packages without a digest.
func parseLock(b []byte) (*lock, error) {
	if len(b) > maxLock {
		return nil, fmt.Errorf("the lock file is larger than %d bytes", maxLock)
	}
	var l lock
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&l); err != nil {
		return nil, fmt.Errorf("the lock file is no JSON: %w", err)
	}
	if l.Version != 2 && l.Version != 3 {
		return nil, fmt.Errorf("the lock file has version %d; npm 7 and later write 2 or 3", l.Version)
	}
	for name, p := range l.Packages {
		if name == "" || p.InBundle { // p is the project itself, or is contained in the archive of another package
			continue
		}
		if !strings.HasPrefix(name, "node_modules/") || p.Link {
			return nil, fmt.Errorf("%.100q is not a package from the registry", name)
		}
		if _, err := p.source(name); err != nil {
			return nil, fmt.Errorf("%.100q: %w", name, err)
		}
	}
	return &l, nil
}

// find returns the source of the top-level package called name. base is the URL of the registry.
func (l *lock) find(name, base string) (source, error) {
	p, ok := l.Packages["node_modules/"+name]
	if !ok {
		return source{}, fmt.Errorf("the lock file has no %s, without which nothing can be installed; add it to package.json", name)
	}
	s, err := p.source("node_modules/" + name)
	if err != nil {
		return source{}, fmt.Errorf("%s: %w", name, err)
	}
	s.url = base + strings.TrimPrefix(s.url, registry)
	return s, nil
}

// Regular expressions for the names and versions of packages that can be part of a URL.
var (
	packageName    = regexp.MustCompile(`^(@[A-Za-z0-9_-][A-Za-z0-9._-]*/)?[A-Za-z0-9_-][A-Za-z0-9._-]*$`)
	packageVersion = regexp.MustCompile(`^[0-9]+[0-9A-Za-z.-]*$`)
)

// url returns the URL of the archive of p, which is at the path at in the lock file. If the lock file has no URL for it, or a URL
// outside of the registry, such as a mirror's, url returns the URL in the registry. That is safe because the digest determines
// which content is accepted.
func (p lockPackage) url(at string) (string, error) {
	u, err := url.Parse(p.Resolved)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" && p.Resolved != "":
		return "", fmt.Errorf("it comes from %.100q, not from a registry", p.Resolved)
	case strings.HasPrefix(p.Resolved, registry):
		if u.RawQuery != "" || u.User != nil || !strings.HasSuffix(u.Path, ".tgz") || strings.Contains(u.Path, "..") {
			return "", fmt.Errorf("it comes from %.100q, which is no archive below %s", p.Resolved, registry)
		}
		return p.Resolved, nil
	}
	name := p.Name
	if name == "" {
		name = at[strings.LastIndex(at, "node_modules/")+len("node_modules/"):]
	}
	if !packageName.MatchString(name) || !packageVersion.MatchString(p.Version) {
		return "", fmt.Errorf("%.100q in version %.50q cannot be a package of %s", name, p.Version, registry)
	}
	return registry + name + "/-/" + path.Base(name) + "-" + p.Version + ".tgz", nil
}

// source returns the URL and the digest of the archive of p, which is at the path at in the lock file. Returns an error if p is
// not an archive with a SHA-512 digest.
func (p lockPackage) source(at string) (source, error) {
	address, err := p.url(at)
	if err != nil {
		return source{}, err
	}
	for _, field := range strings.Fields(p.Integrity) {
		text, ok := strings.CutPrefix(field, "sha512-")
		if !ok {
			continue
		}
		sum, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(sum) != 64 {
			return source{}, fmt.Errorf("its digest %.100q is not a SHA-512 digest", field)
		}
		return source{version: p.Version, url: address, sum: sum}, nil
	}
	return source{}, fmt.Errorf("it has no SHA-512 digest in the lock file")
}

// resolve returns b, the content of the lock file l, with the URL of each package set to its URL in the registry. Otherwise
// npm would fetch the description of each package without a URL, and would fetch packages with a mirror's URL from the mirror.
func (l *lock) resolve(b []byte) ([]byte, error) {
	var file, packages map[string]json.RawMessage
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(file["packages"], &packages); err != nil {
		return nil, err
	}
	for at, p := range l.Packages {
		if at == "" || p.InBundle {
			continue
		}
		address, err := p.url(at)
		if err != nil {
			return nil, err
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(packages[at], &fields); err != nil {
			return nil, err
		}
		if fields["resolved"], err = json.Marshal(address); err != nil {
			return nil, err
		}
		if packages[at], err = json.Marshal(fields); err != nil {
			return nil, err
		}
	}
	var err error
	if file["packages"], err = json.Marshal(packages); err != nil {
		return nil, err
	}
	return json.Marshal(file)
}

// stringOrList is a list of strings in JSON. npm writes a list of one string as a string.
type stringOrList []string

// UnmarshalJSON implements [json.Unmarshaler].
func (w *stringOrList) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*w = stringOrList{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(w))
}
