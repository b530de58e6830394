// Package forge opens pull requests on GitHub, GitLab, and Gitea or Forgejo.
//
// It calls the few methods of their REST APIs that it needs from jobs with network, which have the token in memory for the
// duration of one call; see [worker]. The answer of a forge is hostile: it is bounded, decoded into the expected fields, and
// checked again by the methods of [Tool], in the calling process. This package does not retry: errors of kind Unavailable can
// be retried after [RetryAfter].
//
// All operations are idempotent. If the answer to a call is lost, the next call finds the pull request that the first one
// created.
package forge

import (
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

// Server is a project at a forge and the means to reach it. [Locate] derives Forge, API, Project and Web from the address of a
// repository.
type Server struct {
	Forge   caisson.Forge  // kind of the forge
	API     string         // base URL of the REST API, without a slash at the end: https://api.github.com
	Project string         // owner/name; at GitLab perhaps group/subgroup/name
	Web     string         // base URL of the project's pages, without a slash at the end; "" if unknown
	Token   caisson.Secret // token, or user:password
	Roots   string         // certificates to trust in addition to the host's, as PEM
	// Local permits the server to be at any address. It is set if the request is on behalf of a user of this host, or if the
	// administrator has listed the server. Otherwise the server must be at a public address, so that holders of a token cannot
	// scan the networks of this host, or the host itself.
	Local bool
	Host  reach.Host // addresses of this host, at which the server must not be unless Local is set
}

// A PullRequest describes the pull request to open: Head is to be merged into Base, a branch of the same repository.
type PullRequest struct {
	Head   string // branch with the changes, without refs/heads/
	Base   string // branch to merge into
	Title  string // one line; shortened to 248 characters
	Body   string // Markdown; shortened to 60,000 bytes
	Ready  bool   // create it as ready for review, not as a draft; an existing pull request is not changed
	Update bool   // update Title and Body of an existing pull request
}

// A Pull is a pull request as a forge reports it; GitLab calls it a merge request.
type Pull struct {
	Number int64  // number of the pull request in its project
	URL    string // URL of its page, on the repository's host or the API's; "" if the forge returns no URL that can be trusted
	Draft  bool   // whether it is a draft
	State  string // "open", "closed" or "merged"
}

// GitAuth returns the user and password that a forge requires for git over HTTP, given a token. A credential of the form
// user:password is split instead.
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
	case caisson.ForgeGitLab, caisson.ForgeGitea: // if the password is a token, Gitea ignores the user
		return "oauth2", token
	}
	return "x-token-auth", token // for Bitbucket; other servers ignore the user
}
