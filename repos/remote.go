package repos

import (
	"context"
	"crypto/sha256"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/forge"
	"github.com/caisson-dev/caisson/internal/sshkey"
	"github.com/caisson-dev/caisson/relay/link"
	"github.com/caisson-dev/caisson/relay/remote"
	"github.com/caisson-dev/caisson/relay/remoteurl"
)

// A location is where a repository's remote is.
type location struct {
	url    remoteurl.URL
	forge  caisson.Forge
	server forge.Server // without a token; zero without a forge
	own    bool         // the host is known to be that forge's, whatever somebody says
	local  string       // path on the host, if it is there
}

// locate reads the address of a repository.
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
		at.own = known.Forge == at.forge && known.API == at.server.API
	}
	return at, nil
}

// branchURL is where people can look at a branch.
func (at location) branchURL(branch string) string { return forge.BranchURL(at.server, branch) }

// wellKnown are the credentials of forges that need not be named.
var wellKnown = map[caisson.Forge]string{
	caisson.ForgeGitHub: "GITHUB_TOKEN", caisson.ForgeGitLab: "GITLAB_TOKEN", caisson.ForgeGitea: "GITEA_TOKEN",
}

// stored returns the credential of a repository as it is stored; zero if there is none.
func (c mirrors) stored(ctx context.Context, r *caisson.Repo, at location) (caisson.Secret, error) {
	name := r.Credential
	if name == "" && at.own && at.url.Scheme != remoteurl.SSH {
		name = wellKnown[at.forge]
	}
	if name == "" {
		return caisson.Secret{}, nil
	}
	secret, err := c.Secrets.Secret(ctx, r.Account, name)
	if caisson.KindOf(err) == caisson.NotFound && r.Credential == "" {
		return caisson.Secret{}, nil
	}
	return secret, err
}

// credential returns what opens a repository's remote; zero if it is open to everybody.
func (c mirrors) credential(ctx context.Context, r *caisson.Repo, at location) (caisson.Secret, error) {
	secret, err := c.stored(ctx, r, at)
	if err != nil {
		return caisson.Secret{}, err
	}
	if app, ok := forge.ParseApp(secret); ok {
		at.server.Roots, at.server.Own = c.Roots, c.Own
		return c.tokens.get(ctx, c.Forge, app, at.server, sha256.Sum256([]byte(r.Account+"\n"+r.URL+"\n"+r.API+"\n"+secret.Reveal())))
	}
	return secret, nil
}

// tokens are those that were minted for GitHub Apps and are still good for a while.
type tokens struct {
	mu   sync.Mutex
	have map[[sha256.Size]byte]minted // by whose, for what, and with which credential; guarded by mu
}

type minted struct {
	token caisson.Secret
	until time.Time
}

const tokenReserve = 10 * time.Minute // that a token has to be good for at least when it is used again

func (t *tokens) get(ctx context.Context, f Forges, app forge.App, server forge.Server, key [sha256.Size]byte) (caisson.Secret, error) {
	t.mu.Lock()
	m := t.have[key]
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
	maps.DeleteFunc(t.have, func(_ [sha256.Size]byte, m minted) bool { return time.Until(m.until) < 0 })
	if t.have == nil {
		t.have = map[[sha256.Size]byte]minted{}
	}
	t.have[key] = minted{token, until}
	return token, nil
}

func errNoToken(r *caisson.Repo) error {
	return caisson.Errorf(caisson.Unauthed, "pull requests need a credential for %s: caisson credential set, and caisson repo add --credential", r.Name)
}

// server returns the forge of a repository, with what opens it.
func (c mirrors) server(ctx context.Context, r *caisson.Repo, at location) (forge.Server, error) {
	server := at.server
	secret, err := c.credential(ctx, r, at)
	if err != nil {
		return server, err
	}
	if secret.IsZero() {
		return server, errNoToken(r)
	}
	server.Token, server.Roots, server.Own = secret, c.Roots, c.Own
	return server, nil
}

// remote returns what serves a connection to a repository's remote, and how it is spoken to.
func (c mirrors) remote(ctx context.Context, r *caisson.Repo, push bool) (serve func(context.Context, *os.File) error, t remote.Transport, err error) {
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
			return c.Link.RunLocal(ctx, conn, dir, push)
		}, remote.TransportStream, nil
	}
	secret, err := c.credential(ctx, r, at)
	if err != nil {
		return nil, "", err
	}
	req := link.Request{URL: r.URL, Roots: c.Roots, HostKeys: r.HostKeys, Push: push, Local: r.Local, Own: c.Own}
	t = remote.TransportHTTP
	if at.url.Scheme == remoteurl.SSH {
		t = remote.TransportStream
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
	return func(ctx context.Context, conn *os.File) error { return c.Link.Run(ctx, conn, req) }, t, nil
}
