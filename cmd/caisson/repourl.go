package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
)

// repoURL returns s as an absolute path if it is the path of a directory. It returns other addresses unchanged, and the daemon
// validates them. Like git, it treats an address without scheme and colon as a path, but only if it begins with a dot or exists,
// because an address such as "github.com/a/b" is a mistake.
func repoURL(s string) (string, error) {
	colon, slash := strings.Index(s, ":"), strings.Index(s, "/")
	switch {
	case filepath.IsAbs(s), s == ".", s == "..", strings.HasPrefix(s, "./"), strings.HasPrefix(s, "../"):
	case s == "" || colon >= 0 && (slash < 0 || colon < slash):
		return s, nil
	default:
		if _, err := os.Stat(s); err != nil {
			return s, nil
		}
	}
	return filepath.Abs(s)
}

const (
	// maxHostKeys is the maximum number of keys of a server that are read from a file of known hosts.
	maxHostKeys = 20
	// maxKnownHosts is the maximum size of a file of known hosts in bytes.
	maxKnownHosts = 8 << 20
)

// hostKeys returns the host keys of the server of an ssh address: those of --host-key and --known-hosts, or else those in
// ~/.ssh/known_hosts.
func (c *repoAddCmd) hostKeys(a *app, address string) ([]string, error) {
	u, err := remoteurl.ParseURL(address)
	if err != nil || u.Scheme != remoteurl.SSH {
		if len(c.HostKey) > 0 || c.KnownHosts != "" {
			return nil, usagef("repo add", "--host-key and --known-hosts are for addresses of the form ssh://user@host/path or user@host:path")
		}
		return nil, nil // the daemon reports errors in the address
	}
	file := c.KnownHosts
	switch {
	case file == "" && len(c.HostKey) > 0:
		return c.HostKey, nil
	case file == "" && a.getenv("HOME") == "":
		return nil, nil
	case file == "":
		file = filepath.Join(a.getenv("HOME"), ".ssh", "known_hosts")
	}
	data, err := readLimited(file, maxKnownHosts)
	if errors.Is(err, fs.ErrNotExist) && c.KnownHosts == "" {
		return nil, nil // the daemon reports missing keys
	}
	if err != nil {
		return nil, localError("knownHosts", file, err)
	}
	found := knownKeys(data, u.Host, u.Port)
	switch {
	case len(found) == 0 && c.KnownHosts != "":
		return nil, caisson.Invalidf("knownHosts", "%s has no key of %s; ssh-keyscan prints what the server says, to be compared with what its owner says", file, u.Host)
	case len(found) > 0 && c.KnownHosts == "":
		a.infof("caisson: the keys of %s are taken from %s", u.Host, file)
	}
	return append(slices.Clone(c.HostKey), found...), nil
}

// readLimited reads a regular file of at most limit bytes.
func readLimited(name string, limit int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, caisson.Invalidf("knownHosts", "%s is not a file of at most %s", name, caisson.Size(limit))
	}
	return os.ReadFile(name)
}

// knownKeys returns the keys of a server in a file of known hosts, at most maxHostKeys, each as a line of such a file in which
// the name is not hashed. It skips entries with patterns, certificate authorities and revoked keys.
func knownKeys(data []byte, host, port string) []string {
	name := host
	if port != "" && port != "22" {
		name = "[" + host + "]:" + port
	}
	var lines []string
	for line := range bytes.Lines(data) {
		marker, hosts, key, _, _, err := ssh.ParseKnownHosts(line)
		if err != nil || marker != "" || !slices.ContainsFunc(hosts, func(h string) bool { return isHost(h, name) }) {
			continue
		}
		text := name + " " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
		if !slices.Contains(lines, text) {
			lines = append(lines, text)
		}
		if len(lines) == maxHostKeys {
			break
		}
	}
	return lines
}

// isHost reports whether entry, a host name from a file of known hosts, in plain text or hashed, stands for the host name.
func isHost(entry, name string) bool {
	hashed, ok := strings.CutPrefix(entry, "|1|")
	if !ok {
		return strings.EqualFold(entry, name)
	}
	salt, sum, _ := strings.Cut(hashed, "|")
	key, err := base64.StdEncoding.DecodeString(salt)
	want, err2 := base64.StdEncoding.DecodeString(sum)
	if err != nil || err2 != nil {
		return false
	}
	mac := hmac.New(sha1.New, key)
	mac.Write([]byte(name))
	return hmac.Equal(mac.Sum(nil), want)
}
