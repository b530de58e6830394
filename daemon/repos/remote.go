package repos

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/internal/sshkey"
	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/relay/prepare"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
	"github.com/caisson-dev/caisson/job/relay/transport"
)

// A location is the address of a repository's remote.
type location struct {
	url          remoteurl.URL // URL or path of the remote
	forge        caisson.Forge // kind of forge; caisson.ForgeNone if the remote is not at a forge
	server       forge.Server  // the project at the forge, without a token; zero if the remote is not at a forge
	impliedByURL bool          // whether forge and server.API are those that the URL alone implies, as for github.com
	local        string        // path on the host, "" if the remote is on a server
}

// locate parses the address of a repository.
func locate(r *caisson.Repo) (at location, err error) {
	if at.url, err = remoteurl.ParseURL(r.URL); err != nil {
		return at, err
	}
	at.forge = caisson.ForgeNone
	if at.url.Scheme == remoteurl.Local {
		at.local = at.url.Path
		return at, nil
	}
	if at.server, err = forge.Locate(r.URL, r.Forge, r.API); err != nil {
		return at, err
	}
	at.forge, at.server.Local = at.server.Forge, r.Local
	if known, err := forge.Locate(r.URL, "", ""); err == nil {
		at.impliedByURL = known.Forge == at.forge && known.API == at.server.API
	}
	return at, nil
}

// branchURL returns the address of a branch's page.
func (at location) branchURL(branch string) string { return forge.BranchURL(at.server, branch) }

// defaultCredentials has the names of the credentials that are used for a remote at a forge's well-known host, such as
// github.com, if the repository names no credential.
var defaultCredentials = map[caisson.Forge]string{
	caisson.ForgeGitHub: "GITHUB_TOKEN", caisson.ForgeGitLab: "GITLAB_TOKEN", caisson.ForgeGitea: "GITEA_TOKEN",
}

// remotes connects to the remotes of repositories and to their forges. Credentials are read from the store for each connection.
type remotes struct {
	RemoteConfig
	roots  string // PEM of certificate authorities to trust besides the host's
	tokens tokens // tokens of GitHub Apps
}

// storedCredential returns the stored credential for a repository's remote; zero if there is none. If the repository names no
// credential, the name is that in defaultCredentials.
func (m *remotes) storedCredential(ctx context.Context, r *caisson.Repo, at location) (caisson.Secret, error) {
	name := r.Credential
	if name == "" && at.impliedByURL && at.url.Scheme != remoteurl.SSH {
		name = defaultCredentials[at.forge]
	}
	if name == "" {
		return caisson.Secret{}, nil
	}
	secret, err := m.Secrets.Secret(ctx, r.Account, name)
	if caisson.KindOf(err) == caisson.NotFound && r.Credential == "" {
		return caisson.Secret{}, nil
	}
	return secret, err
}

// credential returns the credential to send to a repository's remote or forge; zero if there is none. If the stored credential is
// that of a GitHub App, it returns a token of the app.
func (m *remotes) credential(ctx context.Context, r *caisson.Repo, at location) (caisson.Secret, error) {
	secret, err := m.storedCredential(ctx, r, at)
	if err != nil {
		return caisson.Secret{}, err
	}
	if app, ok := forge.ParseApp(secret); ok {
		at.server.Roots, at.server.Host = m.roots, m.Own
		return m.tokens.get(ctx, m.Forge, app, at.server, sha256.Sum256([]byte(r.Account+"\n"+r.URL+"\n"+r.API+"\n"+secret.Reveal())))
	}
	return secret, nil
}

// signer returns the function that signs a repository's commits; nil if it has no signing key.
func (m *remotes) signer(ctx context.Context, r *caisson.Repo) (func(payload []byte) (string, error), error) {
	if r.SigningKey == "" {
		return nil, nil
	}
	key, err := m.Secrets.Secret(ctx, r.Account, r.SigningKey)
	if err != nil {
		return nil, err
	}
	return prepare.SSHSign([]byte(key.Reveal()))
}

// checkKeys returns an error if the SSH key or the signing key of a repository cannot be used.
func (m *remotes) checkKeys(ctx context.Context, r *caisson.Repo) error {
	at, err := locate(r)
	if err != nil {
		return err
	}
	if at.url.Scheme == remoteurl.SSH && r.Credential != "" {
		key, err := m.storedCredential(ctx, r, at)
		if err != nil {
			return err
		}
		if _, err := sshkey.Parse("credential "+r.Credential, []byte(key.Reveal())); err != nil {
			return caisson.Invalidf("credential", "%s", caisson.MessageOf(err))
		}
	}
	_, err = m.signer(ctx, r)
	if caisson.KindOf(err) == caisson.Invalid {
		return caisson.Invalidf("signingKey", "%s", caisson.MessageOf(err))
	}
	return err
}

// tokens caches the tokens of GitHub Apps.
type tokens struct {
	mu     sync.Mutex
	cached map[[sha256.Size]byte]appToken // tokens by the hash of a repository's account, URL, API and credential; guarded by mu
}

// An appToken is a token of a GitHub App.
type appToken struct {
	token caisson.Secret
	until time.Time // end of the token's validity
}

const tokenReserve = 10 * time.Minute // how long a cached token must still be valid to be used

// get returns the token that is cached under key, or requests a new one if there is none or it expires within tokenReserve.
func (t *tokens) get(ctx context.Context, f Forges, app forge.App, server forge.Server, key [sha256.Size]byte) (caisson.Secret, error) {
	t.mu.Lock()
	m := t.cached[key]
	t.mu.Unlock()
	if time.Until(m.until) > tokenReserve {
		return m.token, nil
	}
	token, until, err := f.Token(ctx, app, server)
	if err != nil {
		return caisson.Secret{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.cached, func(_ [sha256.Size]byte, m appToken) bool { return time.Until(m.until) < 0 })
	if t.cached == nil {
		t.cached = map[[sha256.Size]byte]appToken{}
	}
	t.cached[key] = appToken{token, until}
	return token, nil
}

// errNoToken returns the error for a pull request of a repository that has no credential.
func errNoToken(r *caisson.Repo) error {
	return caisson.Errorf(caisson.Unauthed, "pull requests need a credential for %s: caisson credential set, and caisson repo add --credential", r.Name)
}

// openPull opens a pull request. If one is open for the branch already, it returns that one.
func (m *remotes) openPull(ctx context.Context, r *caisson.Repo, at location, req forge.PullRequest) (*forge.Pull, error) {
	secret, err := m.credential(ctx, r, at)
	if err != nil {
		return nil, err
	}
	if secret.IsZero() {
		return nil, errNoToken(r)
	}
	at.server.Token, at.server.Roots, at.server.Host = secret, m.roots, m.Own
	return m.Forge.Pull(ctx, at.server, req)
}

// transportTo returns a function that serves a connection to a repository's remote, and its protocol. push allows pushes.
func (m *remotes) transportTo(ctx context.Context, r *caisson.Repo, push bool) (serve func(context.Context, *os.File) error, t remote.Protocol, err error) {
	at, err := locate(r)
	if err != nil {
		return nil, "", err
	}
	if at.local != "" {
		return func(ctx context.Context, conn *os.File) error {
			dir, err := openDir(at.local)
			if err != nil {
				return caisson.Wrap(err, caisson.NotFound, "there is no repository at %.200q", at.local)
			}
			defer dir.Close()
			return m.Transport.RunLocal(ctx, conn, dir, push)
		}, remote.ProtocolStream, nil
	}
	secret, err := m.credential(ctx, r, at)
	if err != nil {
		return nil, "", err
	}
	req := transport.Request{URL: r.URL, Roots: m.roots, HostKeys: r.HostKeys, Push: push, Local: r.Local, Own: m.Own}
	t = remote.ProtocolHTTP
	if at.url.Scheme == remoteurl.SSH {
		t = remote.ProtocolStream
		if secret.IsZero() {
			return nil, "", caisson.Errorf(caisson.Unauthed, "a remote over ssh needs a credential with a private key for %s; see caisson repo add --credential", r.Name)
		}
		if _, err := sshkey.Parse("credential "+r.Credential, []byte(secret.Reveal())); err != nil {
			return nil, "", err
		}
		req.Auth.Key = secret
	} else if !secret.IsZero() {
		req.Auth.User, req.Auth.Secret = forge.GitAuth(at.forge, secret)
	}
	return func(ctx context.Context, conn *os.File) error { return m.Transport.Run(ctx, conn, req) }, t, nil
}

// transportGrace is how long a transport may take to end after the git job that uses it has ended.
const transportGrace = 5 * time.Second

// connect calls f with a connection to a repository's remote, and with the protocol of the connection. push allows pushes.
func (m *remotes) connect(ctx context.Context, r *caisson.Repo, push bool, f func(*os.File, remote.Protocol) error) error {
	near, far, err := socketpair.New()
	if err != nil {
		return err
	}
	defer near.Close()
	defer far.Close()
	serve, transport, err := m.transportTo(ctx, r, push)
	if err != nil {
		return err
	}
	lctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- serve(lctx, far) }()
	done := make(chan error, 1)
	go func() { done <- f(near, transport) }()
	select {
	case err := <-done:
		near.Close()
		select { // serve returns soon, because the other end of its connection is closed
		case <-ended:
		case <-time.After(transportGrace):
			cancel()
			<-ended
		}
		return err
	case lerr := <-ended:
		far.Close() // this closes the last descriptor of the far end, so that f reads the end of the data
		err := <-done
		if err != nil && lerr != nil && !errors.Is(lerr, context.Canceled) {
			return lerr // the transport's error has caused err, the error of f
		}
		return err
	}
}
