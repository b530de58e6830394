package forge

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
)

// knownHosts are the known forges by host name. Servers for SSH over port 443 have different host names.
var knownHosts = map[string]struct {
	forge caisson.Forge
	host  string // host of the forge's pages
}{
	"github.com":        {caisson.ForgeGitHub, "github.com"},
	"ssh.github.com":    {caisson.ForgeGitHub, "github.com"},
	"gitlab.com":        {caisson.ForgeGitLab, "gitlab.com"},
	"altssh.gitlab.com": {caisson.ForgeGitLab, "gitlab.com"},
	"codeberg.org":      {caisson.ForgeGitea, "codeberg.org"},
}

// apiPaths are the paths of the API below the URL of a forge's pages.
var apiPaths = map[caisson.Forge]string{
	caisson.ForgeGitHub: "/api/v3", // on GitHub Enterprise
	caisson.ForgeGitLab: "/api/v4",
	caisson.ForgeGitea:  "/api/v1",
}

// Locate derives the forge, API and project from the address of a repository. If f is "", the forge is derived from the host;
// if api is "", the API is derived from the forge. A repository on an unknown host has no forge and can only be used with git.
// The result has no token. Locate is a pure function. Returns an Invalid error that names the field at fault.
func Locate(raw string, f caisson.Forge, api string) (Server, error) {
	u, err := remoteurl.ParseURL(raw)
	if err != nil {
		return Server{}, err
	}
	host := u.Host
	known, ok := knownHosts[host]
	switch {
	case ok:
		host = known.host
	case strings.HasSuffix(host, ".ghe.com"): // GitHub Enterprise Cloud with data residency
		known.forge = caisson.ForgeGitHub
	default:
		known.forge = caisson.ForgeNone
	}
	if f == "" {
		f = known.forge
	}
	switch {
	case f == caisson.ForgeNone && api != "":
		return Server{}, caisson.Invalidf("forge", "is required with an API: github, gitlab or gitea")
	case f == caisson.ForgeNone:
		return Server{Forge: f}, nil
	case apiPaths[f] == "":
		return Server{}, caisson.Invalidf("forge", "is not one of none, github, gitlab and gitea")
	case u.Scheme == remoteurl.Local:
		return Server{}, caisson.Invalidf("forge", "is for repositories of a server, not for a directory of this host")
	}
	s := Server{Forge: f, Web: webURL(u, host)}
	if s.API, err = apiURL(s, host, api); err != nil {
		return Server{}, err
	}
	prefix := pathPrefix(s, u)
	s.Project = strings.TrimPrefix(strings.Trim(strings.TrimSuffix(u.Path, ".git"), "/"), prefix)
	if err := checkProject(f, s.Project); err != nil {
		return Server{}, err
	}
	s.Web += "/" + prefix + s.Project
	return s, nil
}

// webURL returns the base URL of the forge's pages on host. For http and https it has the scheme and port of u; for ssh it is a
// guess: https with the default port.
func webURL(u remoteurl.URL, host string) string {
	if u.Scheme == remoteurl.SSH {
		u.Port, u.Scheme = "", remoteurl.HTTPS
	}
	u.Host = host
	return string(u.Scheme) + "://" + u.Authority()
}

// apiURL returns the base URL of the API of the forge on host: api unless that is "", else the URL that the kind of forge
// implies.
func apiURL(s Server, host, api string) (string, error) {
	if api != "" {
		u, err := parseAPI(api)
		if err != nil {
			return "", err
		}
		return strings.TrimSuffix(u.String(), "/"), nil
	}
	switch {
	case s.Forge == caisson.ForgeGitHub && host == "github.com":
		return "https://api.github.com", nil
	case s.Forge == caisson.ForgeGitHub && strings.HasSuffix(host, ".ghe.com"):
		return "https://api." + host, nil
	}
	return s.Web + apiPaths[s.Forge], nil
}

// pathPrefix returns the path, with a slash at its end, below which a forge is installed on its host; "" if it has the whole
// host. The prefix is derived from the API's address. The path of u begins with it unless u is for SSH.
func pathPrefix(s Server, u remoteurl.URL) string {
	api, err := url.Parse(s.API)
	if err != nil || u.Scheme == remoteurl.SSH || !strings.HasPrefix(s.API, s.Web+"/") {
		return ""
	}
	prefix, ok := strings.CutSuffix(api.Path, apiPaths[s.Forge])
	prefix = strings.Trim(prefix, "/") + "/"
	if !ok || prefix == "/" || !strings.HasPrefix(u.Path, "/"+prefix) {
		return ""
	}
	return prefix
}

const maxProject = 500 // bytes of Server.Project

// checkProject returns an error if p is not a valid project of f: owner/name, preceded by groups on GitLab.
func checkProject(f caisson.Forge, p string) error {
	segs := strings.Split(p, "/")
	ok := len(p) <= maxProject && (len(segs) == 2 || f == caisson.ForgeGitLab && len(segs) > 2 && len(segs) <= 22)
	for _, s := range segs {
		ok = ok && validSegment(s)
	}
	if !ok {
		return caisson.Invalidf("url", "is not the address of a project on %s: the path must be owner/name, of letters, digits, '.', '_' and '-'", f)
	}
	return nil
}

// validSegment reports whether s can be one element of a project's path: letters, digits, '.', '_' and '-', at most 255 bytes.
func validSegment(s string) bool {
	if s == "" || s[0] == '-' || strings.Trim(s, ".") == "" || len(s) > 255 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

// BranchURL returns the URL of a branch's page; "" if s has no pages or the branch is not valid.
func BranchURL(s Server, branch string) string {
	if s.Web == "" || !refname.Valid(branch) {
		return ""
	}
	escaped := strings.ReplaceAll(url.PathEscape(branch), "%2F", "/")
	switch s.Forge {
	case caisson.ForgeGitHub:
		return s.Web + "/tree/" + escaped
	case caisson.ForgeGitLab:
		return s.Web + "/-/tree/" + escaped
	case caisson.ForgeGitea:
		return s.Web + "/src/branch/" + escaped
	}
	return ""
}

// pullURL returns the URL of a pull request's page. It is used if the URL that the forge returns cannot be trusted.
func (s Server) pullURL(number int64) string {
	if s.Web == "" {
		return ""
	}
	kind := map[caisson.Forge]string{caisson.ForgeGitHub: "pull", caisson.ForgeGitLab: "-/merge_requests", caisson.ForgeGitea: "pulls"}[s.Forge]
	return s.Web + "/" + kind + "/" + strconv.FormatInt(number, 10)
}
