package install

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
)

// maxLock is the maximum size of a lock file, in bytes.
const maxLock = 8 << 20

// lock is the used part of a package-lock.json.
type lock struct {
	Version  int                    `json:"lockfileVersion"`
	Packages map[string]lockPackage `json:"packages"`
}

// lockPackage is one package of a lock file.
type lockPackage struct {
	Version   string `json:"version"`
	Resolved  string `json:"resolved"`
	Integrity string `json:"integrity"`
	Link      bool   `json:"link"`
	InBundle  bool   `json:"inBundle"`

	OS  stringOrList `json:"os"`
	CPU stringOrList `json:"cpu"`
}

// A source is the address and digest of a package.
type source struct {
	version string
	url     string
	sum     []byte // SHA-512 of the archive
}

func readLock(name string) (*lock, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLock+1))
	if err != nil {
		return nil, err
	}
	return parseLock(b)
}

// parseLock parses a lock file and checks that every package in it comes from the registry and has a digest. npm would accept
// packages without one.
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
		if name == "" || p.InBundle { // the project itself, or part of another package's archive
			continue
		}
		if !strings.HasPrefix(name, "node_modules/") || p.Link {
			return nil, fmt.Errorf("%.100q is not a package from the registry", name)
		}
		if _, err := p.source(registry); err != nil {
			return nil, fmt.Errorf("%.100q: %w", name, err)
		}
	}
	return &l, nil
}

// find returns the source of a top-level package.
func (l *lock) find(name, base string) (source, error) {
	p, ok := l.Packages["node_modules/"+name]
	if !ok {
		return source{}, fmt.Errorf("the lock file has no %s, without which nothing can be installed; add it to package.json", name)
	}
	s, err := p.source(registry)
	if err != nil {
		return source{}, fmt.Errorf("%s: %w", name, err)
	}
	s.url = base + strings.TrimPrefix(s.url, registry)
	return s, nil
}

// source returns the address and digest of the package, or an error if it is not an archive below base with a SHA-512 digest.
func (p lockPackage) source(base string) (source, error) {
	u, err := url.Parse(p.Resolved)
	if err != nil || !strings.HasPrefix(p.Resolved, base) || u.RawQuery != "" || u.User != nil || !strings.HasSuffix(u.Path, ".tgz") || strings.Contains(u.Path, "..") {
		return source{}, fmt.Errorf("it comes from %.100q, which is no archive below %s", p.Resolved, base)
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
		return source{version: p.Version, url: p.Resolved, sum: sum}, nil
	}
	return source{}, fmt.Errorf("it has no SHA-512 digest in the lock file")
}

// stringOrList is a list of words in JSON; npm writes a list of one word as a string.
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
