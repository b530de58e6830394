// Package remoteurl parses the URLs of git remotes strictly. It resolves no names and opens no connections or files.
//
// Git accepts much more than is safe here: "ext::sh -c …" starts programs, a host that begins with "-" becomes an option of ssh,
// and a password in a URL appears in lists, logs and process tables. Therefore URLs are parsed here by rules that allow the usual
// forms, and only the result of [URL.String] is passed on.
package remoteurl

import (
	"net/netip"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// MaxLength is the maximum length of a URL in bytes.
const MaxLength = 2048

// A Scheme is the way a remote is reached.
type Scheme string

// The schemes of remotes.
const (
	HTTPS Scheme = "https"
	HTTP  Scheme = "http"
	SSH   Scheme = "ssh"   // ssh://user@host/path and user@host:path
	Local Scheme = "local" // an absolute path on this host
)

// A URL is the parsed URL of a git remote. The zero URL is not valid.
type URL struct {
	Scheme Scheme
	User   string // name of the user; never empty with SSH, and "" otherwise
	Host   string // lower case, an IPv6 address without brackets; "" for Local
	Port   string // "" for the default port of the scheme
	// Path is the path of the repository. It begins with "/", except in a URL of the form user@host:path whose path is relative
	// to the user's home directory. With http and https it is still escaped, as it was written. It has no empty segments and no
	// segments "." or "..".
	Path string
}

// ParseURL parses a URL: https, http, ssh://user@host/path, user@host:path, or an absolute path. It returns an Invalid error for
// the field "url" whose message suggests a correction.
func ParseURL(raw string) (URL, error) {
	switch {
	case raw == "":
		return URL{}, invalid("is missing: https://host/path, ssh://user@host/path, user@host:path, or an absolute path")
	case len(raw) > MaxLength:
		return URL{}, invalid("is longer than %d bytes", MaxLength)
	case !utf8.ValidString(raw) || strings.ContainsFunc(raw, func(r rune) bool { return !safetext.Safe(r) || r == '\\' }):
		return URL{}, invalid("has a backslash, or a character that cannot be seen")
	}
	u, err := parse(raw)
	if err != nil {
		return URL{}, err
	}
	return u, nil
}

// parse parses a URL whose length and characters were checked.
func parse(raw string) (URL, error) {
	if strings.HasPrefix(raw, "/") {
		return parseLocal(raw)
	}
	if rest, ok := strings.CutPrefix(raw, "https://"); ok {
		return parseWeb(HTTPS, rest)
	}
	if rest, ok := strings.CutPrefix(raw, "http://"); ok {
		return parseWeb(HTTP, rest)
	}
	if rest, ok := strings.CutPrefix(raw, "ssh://"); ok {
		return parseSSH(rest)
	}
	if strings.Contains(raw, "://") {
		return URL{}, invalid("begins with none of https://, http:// and ssh://; a directory of this host is written as an absolute path")
	}
	return parseSCP(raw)
}

// parseLocal parses an absolute path.
func parseLocal(raw string) (URL, error) {
	p := path.Clean(raw)
	if p == "/" || p != strings.TrimSuffix(raw, "/") {
		return URL{}, invalid("is no plain absolute path of a repository")
	}
	return URL{Scheme: Local, Path: p}, nil
}

// parseWeb parses the part after "https://" or "http://".
func parseWeb(scheme Scheme, rest string) (URL, error) {
	authority, p, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(rest, "?#") {
		return URL{}, invalid("has a query or a fragment; leave out what begins with ? or #")
	}
	if strings.Contains(authority, "@") {
		return URL{}, invalid("has a user or password in it; put user:password, or a token, into a credential")
	}
	u := URL{Scheme: scheme}
	if err := u.setAuthority(authority); err != nil {
		return URL{}, err
	}
	if u.Port == map[Scheme]string{HTTPS: "443", HTTP: "80"}[scheme] {
		u.Port = ""
	}
	return u.withPath("/"+p, webByte, true)
}

// parseSSH parses the part after "ssh://".
func parseSSH(rest string) (URL, error) {
	if strings.ContainsAny(rest, "?#%") {
		return URL{}, invalid("has one of ? # %% in it, which an ssh address here may not have")
	}
	authority, p, _ := strings.Cut(rest, "/")
	user, host, ok := strings.Cut(authority, "@")
	if !ok {
		return URL{}, invalid("names no user: write ssh://user@host/path (the user is git at most servers)")
	}
	u := URL{Scheme: SSH, User: user}
	if err := u.checkUser(); err != nil {
		return URL{}, err
	}
	if err := u.setAuthority(host); err != nil {
		return URL{}, err
	}
	if u.Port == "22" {
		u.Port = ""
	}
	return u.withPath("/"+p, sshByte, false)
}

// parseSCP parses user@host:path.
func parseSCP(raw string) (URL, error) {
	user, rest, ok := strings.Cut(raw, "@")
	if !ok || strings.ContainsAny(user, ":/") {
		return URL{}, invalid("is no address of a repository: https://host/path, ssh://user@host/path, user@host:path, or an absolute path")
	}
	u := URL{Scheme: SSH, User: user}
	if err := u.checkUser(); err != nil {
		return URL{}, err
	}
	host, p, ok := strings.Cut(rest, ":")
	if strings.HasPrefix(rest, "[") {
		host, p, ok = strings.Cut(rest, "]:")
		host += "]"
	}
	if !ok || strings.ContainsAny(p, "?#%") {
		return URL{}, invalid("is not of the form user@host:path; a port is written as ssh://user@host:port/path")
	}
	if err := u.setAuthority(host); err != nil {
		return URL{}, err
	}
	return u.withPath(p, sshByte, false)
}

// checkUser returns an Invalid error unless the user has only letters, digits, '.', '_' and '-', and begins with no '.' or '-'.
func (u *URL) checkUser() error {
	if strings.Contains(u.User, ":") {
		return invalid("has a password in it; put it into a credential")
	}
	ok := u.User != "" && len(u.User) <= 64 && u.User[0] != '-' && u.User[0] != '.' && all(u.User, func(c byte) bool {
		return alnum(c) || c == '-' || c == '_' || c == '.'
	})
	if !ok {
		return invalid("has a user that is none: letters, digits, '.', '_' and '-'")
	}
	return nil
}

// setAuthority parses host, host:port, [v6] or [v6]:port.
func (u *URL) setAuthority(s string) error {
	host, port, hasPort := s, "", false
	if inner, ok := strings.CutPrefix(s, "["); ok {
		var after string
		host, after, ok = strings.Cut(inner, "]")
		addr, err := netip.ParseAddr(host)
		if !ok || err != nil || !addr.Is6() || addr.Zone() != "" {
			return invalid("has no IPv6 address between its brackets")
		}
		host = addr.String()
		if port, hasPort = strings.CutPrefix(after, ":"); !hasPort && after != "" {
			return invalid("has something after the brackets of its address that is no port")
		}
	} else {
		host, port, hasPort = strings.Cut(s, ":")
		host = strings.ToLower(host)
		if !validHost(host) {
			return invalid("has no valid host: a name of letters, digits, '.' and '-' (names in other scripts as xn--…), or an address")
		}
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
			return invalid("has a port that is none")
		}
	}
	u.Host, u.Port = host, port
	return nil
}

// validHost reports whether s, in lower case, is an IPv4 address or a name. A name that ends in a number, such as 127.1 or
// 0x7f.0.0.1, is not valid, because programs interpret it differently.
func validHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	if len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' ||
			!all(l, func(c byte) bool { return alnum(c) || c == '-' || c == '_' }) {
			return false
		}
	}
	last := labels[len(labels)-1]
	return !all(last, func(c byte) bool { return '0' <= c && c <= '9' }) && !strings.HasPrefix(last, "0x")
}

// withPath returns u with the path p, or an error if p has bytes for which allowed returns false. If escaped is true, p may have
// escapes of the form %XX.
func (u URL) withPath(p string, allowed func(byte) bool, escaped bool) (URL, error) {
	p = strings.TrimSuffix(p, "/")
	rest := strings.TrimPrefix(p, "/")
	if rest == "" {
		return URL{}, invalid("names no repository on its host")
	}
	if p[0] == '-' {
		return URL{}, invalid("has a path that begins with '-'")
	}
	for seg := range strings.SplitSeq(rest, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return URL{}, invalid("has a path with an empty segment, \".\" or \"..\"")
		}
		if !all(seg, func(c byte) bool { return allowed(c) || escaped && c == '%' }) || escaped && !plainEscapes(seg) {
			return URL{}, invalid("has characters in its path that are not allowed there")
		}
	}
	u.Path = p
	return u, nil
}

// plainEscapes reports whether every %XX in s stands for a byte without a special meaning.
func plainEscapes(s string) bool {
	for {
		_, after, ok := strings.Cut(s, "%")
		if !ok {
			return true
		}
		if len(after) < 2 {
			return false
		}
		n, err := strconv.ParseUint(after[:2], 16, 8)
		if err != nil || n < ' ' || n == 0x7f || strings.IndexByte("/\\%.?#", byte(n)) >= 0 {
			return false
		}
		s = after[2:]
	}
}

// webByte reports whether c is allowed in the path of an http or https URL.
func webByte(c byte) bool { return alnum(c) || strings.IndexByte("-._~+@=,:!$&()*;", c) >= 0 }

// sshByte reports whether c is allowed in an SSH path. It excludes bytes that are special to a remote shell.
func sshByte(c byte) bool { return alnum(c) || strings.IndexByte("-._~+@=,", c) >= 0 }

// alnum reports whether c is an ASCII letter or digit.
func alnum(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' }

// all reports whether ok returns true for all bytes of s.
func all(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

// invalid returns an Invalid error for the field "url".
func invalid(format string, args ...any) error { return caisson.Invalidf("url", format, args...) }
