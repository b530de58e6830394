// Package forge opens pull requests at GitHub, GitLab, and Gitea or Forgejo.
//
// It speaks the few calls of their REST APIs that it needs, from jobs with network, which hold the token for as long as one call
// takes; see [worker]. What a forge answers is hostile: it is bounded, decoded into what is expected, and checked again by the
// methods of [Tool], in the process that asked. Nothing is tried twice here: errors of kind Unavailable are worth another try, after
// [RetryAfter].
//
// All of it may be repeated. An answer that gets lost on its way leaves a pull request that the next call finds.
package forge

import (
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

// Server is a project at a forge and how to get at it. [Locate] derives all of it from an address, but what is secret or a matter of
// trust.
type Server struct {
	Forge   caisson.Forge
	API     string // base URL of the REST API, without a slash at the end: https://api.github.com
	Project string // owner/name; at GitLab perhaps group/subgroup/name
	Web     string // base URL of the project's pages, without a slash at the end; "" if it is not known
	Token   caisson.Secret
	Roots   string // certificates, as PEM, to trust besides the host's
	// Local says that the request is on behalf of somebody on this host, or that its administrator has listed the server: then
	// it may be at any address. Otherwise only at one that everybody can reach, so that holders of a token cannot look around in the
	// networks that this host is in, and on the host itself.
	Local bool
	Own   reach.Host // which addresses are this host's
}

// A PullRequest is what is wanted: that a branch be merged into another one of the same repository.
type PullRequest struct {
	Head   string // branch with the changes, without refs/heads/
	Base   string // branch that it wants to be merged into
	Title  string // one line; shortened to 255 characters
	Body   string // Markdown; shortened to 60,000 bytes
	Ready  bool   // whether it is made as no draft. One that is there already stays a draft or none
	Update bool   // whether one that is there already gets Title and Body
}

// A Pull is a pull request as a forge has it; GitLab calls it a merge request.
type Pull struct {
	Number int64
	URL    string // of its page, on the repository's host or the API's; "" if the forge says nothing that can be believed
	Draft  bool
	State  string // "open", "closed" or "merged"
}

// GitAuth returns what a forge wants of git itself as user and password, for a token. A credential of the form user:password is
// taken apart instead.
func GitAuth(f caisson.Forge, token caisson.Secret) (user string, secret caisson.Secret) {
	if token.IsZero() {
		return "", caisson.Secret{}
	}
	if user, password, ok := strings.Cut(token.Reveal(), ":"); ok {
		return user, caisson.NewSecret(password)
	}
	switch f {
	case caisson.ForgeGitHub:
		return "x-access-token", token
	case caisson.ForgeGitLab, caisson.ForgeGitea: // Gitea looks at the password alone if it is a token
		return "oauth2", token
	}
	return "x-token-auth", token // Bitbucket's; others ignore it
}
