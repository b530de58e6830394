package commit

import (
	"context"
	"net/url"
	"strings"

	"github.com/caisson-dev/caisson"
)

// modulesFile is the path of git's file with the URLs of submodules. Git reads it only at the root of a tree.
const modulesFile = ".gitmodules"

// maxModules is the maximum size of the file .gitmodules in bytes.
const maxModules = 256 << 10

// checkModules returns the faults of a .gitmodules file, which git uses in clones with submodules. It returns an
// error if the file could not be checked.
func (o *Objects) checkModules(ctx context.Context, blob string) (faults []string, err error) {
	if _, err := o.Read(blob, "blob", maxModules); err != nil {
		return []string{"the file of submodules cannot be read, or is too large"}, nil
	}
	out, err := o.repo.Output(ctx, "", "config", "--null", "--no-includes", "--blob", blob, "--list")
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return []string{"the file of submodules is malformed"}, nil
	}
	for item := range strings.SplitSeq(string(out), "\x00") {
		key, value, _ := strings.Cut(item, "\n")
		if key == "" {
			continue
		}
		if why := moduleFault(key, value); why != "" {
			faults = append(faults, why)
		}
	}
	return faults, nil
}

// moduleFault returns the fault of one setting of a .gitmodules file, or "".
func moduleFault(key, value string) string {
	if key != strings.ToValidUTF8(key, "") || TextFault(key+value) != "" || strings.Contains(key+value, "\n") {
		return "the file of submodules has control characters"
	}
	name, ok := strings.CutPrefix(key, "submodule.")
	if !ok {
		return "" // git uses no other settings of this file
	}
	at := strings.LastIndexByte(name, '.')
	if at < 0 {
		return ""
	}
	name, setting := name[:at], strings.ToLower(name[at+1:])
	for part := range strings.SplitSeq(strings.ReplaceAll(name, `\`, "/"), "/") {
		if part == ".." {
			return "a submodule's name leads elsewhere"
		}
	}
	switch setting {
	case "url":
		if !validModuleURL(value) {
			return "a submodule's URL is none that git may be given; use https or ssh"
		}
	case "path":
		if strings.HasPrefix(value, "-") || strings.HasPrefix(value, "/") || strings.Contains("/"+value+"/", "/../") || strings.Contains(strings.ToLower("/"+value+"/"), "/.git/") {
			return "a submodule's path leads elsewhere"
		}
	case "update":
		if strings.HasPrefix(value, "!") {
			return "a submodule's update is a command"
		}
	case "branch":
		if strings.HasPrefix(value, "-") {
			return "a submodule's branch is an option"
		}
	}
	return ""
}

// validModuleURL reports whether s is a URL of a remote host, or relative to the repository's URL.
func validModuleURL(s string) bool {
	if s == "" || s[0] == '-' || s[0] == '/' || strings.Contains(s, "::") || strings.ContainsAny(s, `\%`) {
		return false
	}
	if strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") {
		return true
	}
	if !strings.Contains(s, "://") {
		// The form is user@host:path. If a slash precedes the colon, git takes s for a local path.
		host, path, ok := strings.Cut(s, ":")
		return ok && !strings.Contains(host, "/") && validModuleHost(host) && path != "" && path[0] != '-'
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || !validModuleHost(u.Hostname()) || strings.HasPrefix(u.User.Username(), "-") {
		return false
	}
	switch u.Scheme {
	case "https", "http", "ssh", "git", "git+ssh", "ssh+git":
		return true
	}
	return false
}

// validModuleHost reports whether a host, perhaps with a user, cannot be taken for an option of ssh.
func validModuleHost(host string) bool {
	_, after, ok := strings.Cut(host, "@")
	return host != "" && host[0] != '-' && (!ok || after != "" && after[0] != '-')
}

// DeniedFinding returns a finding with verdict deny.
func DeniedFinding(check, message string) caisson.Finding {
	return caisson.Finding{Check: check, Verdict: caisson.VerdictDeny, Message: message}
}
