package forge

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/worker"
)

// A Tool runs this package's functions as confined jobs. It has no state of its own and is safe for concurrent use.
type Tool struct {
	run worker.Starter // starts the jobs
}

// NewTool returns a Tool that runs its jobs with r; the binary that r starts must have the jobs of this package in its table.
func NewTool(r worker.Starter) *Tool { return &Tool{run: r} }

const (
	maxURL   = 2048      // maximum length, in bytes, of the URL of a pull request's page
	maxToken = 8192      // maximum length of a token or password in bytes
	maxRoots = 256 << 10 // maximum length of Server.Roots in bytes
)

// Pull returns the open pull request of p's branches, and creates it if there is none. It is idempotent, also after an error.
// Returns Unauthed or Denied if the forge does not accept the token or its rights, NotFound if the project or a branch does not
// exist, Invalid with the forge's message if the forge rejects the request, and Unavailable if a retry may succeed.
func (t *Tool) Pull(ctx context.Context, s Server, p PullRequest) (*Pull, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if !refname.Valid(p.Head) || !refname.Valid(p.Base) {
		return nil, caisson.Errorf(caisson.Invalid, "a pull request needs two branches with valid names")
	}
	p.Title, p.Body = plainTitle(p.Title), plainBody(p.Body)
	if p.Title == "" {
		p.Title = p.Head
	}
	args := s.args()
	args.Pull = p
	got, err := jobPull.Run(ctx, t.run, args, worker.RunInput{})
	if err != nil {
		return nil, err
	}
	if got.Failure != nil {
		return nil, got.Failure.err(s.Token)
	}
	pull := got.Pull
	if !s.trustsURL(pull.URL) {
		pull.URL = s.pullURL(pull.Number)
	}
	return &pull, nil
}

// Token returns a token of a GitHub App that is valid for s's project only and can push branches and open pull requests, and
// its expiry time. Errors are Unauthed, Denied, Invalid, Unavailable, or NotFound if the App is not installed for the project.
func (t *Tool) Token(ctx context.Context, app App, s Server) (caisson.Secret, time.Time, error) {
	none := caisson.Secret{}
	s.Token = app.key
	if err := s.check(); err != nil {
		return none, time.Time{}, err
	}
	if s.Forge != caisson.ForgeGitHub {
		return none, time.Time{}, caisson.Errorf(caisson.Invalid, "a GitHub App is a credential for GitHub only")
	}
	args := s.args()
	args.App, args.Installation = app.id, app.installation
	got, err := jobToken.Run(ctx, t.run, args, worker.RunInput{})
	if err != nil {
		return none, time.Time{}, err
	}
	if got.Failure != nil {
		return none, time.Time{}, got.Failure.err(app.key)
	}
	if latest := time.Now().Add(24 * time.Hour); got.Expires.After(latest) {
		got.Expires = latest
	}
	return caisson.NewSecret(got.Token), got.Expires, nil
}

// check returns an error if a field that jobs need is missing or not valid.
func (s Server) check() error {
	switch s.Forge {
	case caisson.ForgeGitHub, caisson.ForgeGitLab, caisson.ForgeGitea:
	default:
		return caisson.Errorf(caisson.Invalid, "this repository has no forge on which Caisson can open pull requests; set its forge to github, gitlab or gitea")
	}
	if _, err := parseAPI(s.API); err != nil {
		return err
	}
	if err := checkProject(s.Forge, s.Project); err != nil {
		return err
	}
	if s.Token.IsZero() {
		return caisson.Errorf(caisson.Unauthed, "a pull request needs a token; name a credential for the repository")
	}
	if len(s.Roots) > maxRoots {
		return caisson.Errorf(caisson.Invalid, "the certificates to trust are more than %v", caisson.Size(maxRoots))
	}
	return nil
}

// args returns the arguments of a job for s.
func (s Server) args() jobArgs {
	return jobArgs{Forge: s.Forge, API: s.API, Project: s.Project, Secret: s.Token.Reveal(), Roots: s.Roots, Local: s.Local, Own: s.Host}
}

// trustsURL reports whether raw, which the forge has chosen, may be shown to users as the URL of a pull request's page.
func (s Server) trustsURL(raw string) bool {
	if raw == "" || len(raw) > maxURL || strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r >= 0x7f || !safetext.Safe(r) || r == '\\' }) {
		return false
	}
	if redact(raw, secretParts(s.Token.Reveal())...) != raw {
		return false
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.Host == "" {
		return false
	}
	for _, ours := range []string{s.Web, s.API} {
		if o, err := url.Parse(ours); err == nil && o.Host != "" && strings.EqualFold(o.Hostname(), u.Hostname()) && (u.Scheme == "https" || o.Scheme == "http") {
			return true
		}
	}
	return false
}

// validToken reports whether s can be sent as a token in a header.
func validToken(s string) bool {
	return s != "" && len(s) <= maxToken && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// validSecret reports whether a credential, a token or user:password, can be sent.
func validSecret(s string) bool {
	user, password, ok := strings.Cut(s, ":")
	if !ok {
		return validToken(s)
	}
	return validToken(password) && !strings.ContainsFunc(user, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// secretParts returns the parts of a credential that must be redacted: all of it, and the password of user:password.
func secretParts(s string) []string {
	_, password, _ := strings.Cut(s, ":")
	return []string{s, password}
}
