package httpapi

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/url"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/reach"
)

// Local returns the handler for the unix socket. Requests act for the account in X-Caisson-Account, or "local". The account must
// exist, so that a mistyped name does not create one. Only a request to create a token creates the account.
func (a *API) Local() http.Handler {
	return a.middleware(func(r *http.Request) (caisson.Caller, *caisson.Token, error) {
		caller, err := a.localCaller(r)
		return caller, nil, err
	})
}

// localCaller returns the caller of a request over the unix socket.
func (a *API) localCaller(r *http.Request) (caisson.Caller, error) {
	caller := caisson.Caller{Account: caisson.LocalAccount, Local: true}
	v, ok := r.Header[protocol.AccountHeader]
	if !ok {
		return caller, nil
	}
	caller.Account = strings.Join(v, ",")
	if !caisson.ValidAccountName(caller.Account) {
		return caisson.Caller{}, caisson.Invalidf(protocol.AccountHeader, "%.40q is not an account name", caller.Account)
	}
	if caller.Account == caisson.LocalAccount || r.Method == http.MethodPost && r.URL.Path == protocol.Prefix+"/tokens" {
		return caller, nil
	}
	_, err := a.cfg.FindAccount(r.Context(), caller.Account)
	if caisson.KindOf(err) == caisson.NotFound {
		// The field distinguishes a missing account from a missing object.
		err = &caisson.Error{Kind: caisson.NotFound, Field: "account", Msg: caisson.MessageOf(err)}
	}
	return caller, err
}

// Remote returns the handler for TCP. A request needs a bearer token and acts for the account of the token. A request that
// specifies another account, or refers to descriptors, gets Denied. A [tokenLimiter] limits how many wrong tokens each source may
// send.
func (a *API) Remote() http.Handler {
	tries := newTokenLimiter()
	return a.middleware(func(r *http.Request) (caisson.Caller, *caisson.Token, error) {
		scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || secret == "" {
			return caisson.Caller{}, nil, caisson.Errorf(caisson.Unauthed, "a token is required; create one with caisson token create")
		}
		token, err := a.findToken(r, tries, secret)
		if err != nil {
			return caisson.Caller{}, nil, err
		}
		if err := admitConn(r.Context()); err != nil {
			return caisson.Caller{}, nil, err
		}
		if v, ok := r.Header[protocol.AccountHeader]; ok && strings.Join(v, ",") != token.Account {
			return caisson.Caller{}, nil, caisson.Errorf(caisson.Denied, "a token acts for its own account only")
		}
		if r.Header.Get(protocol.HandlesHeader) != "" {
			return caisson.Caller{}, nil, errHostPath()
		}
		return caisson.Caller{Account: token.Account, Token: token.ID}, token, nil
	})
}

// findToken returns the token with this secret. It looks the token up by the hash of the secret, so that the duration reveals
// nothing about the secret.
func (a *API) findToken(r *http.Request, tries *tokenLimiter, secret string) (*caisson.Token, error) {
	source, hash := reach.Source(r.RemoteAddr), sha256.Sum256([]byte(secret))
	counted, err := tries.allow(source, hash)
	if err != nil {
		return nil, err
	}
	token, err := a.cfg.FindToken(r.Context(), hash)
	if err == nil && (token == nil || token.Account == "") {
		err = caisson.Errorf(caisson.Unauthed, "the token is not known")
	}
	tries.record(source, hash, counted, err)
	return token, err
}

// errHostPath returns the error for requests over TCP that refer to files of the host.
func errHostPath() error {
	return caisson.Errorf(caisson.Denied, "host paths are accepted only over the unix socket")
}

// checkOrigin returns Denied for requests that a browser makes on behalf of another site.
func checkOrigin(r *http.Request) error {
	for _, origin := range r.Header["Origin"] {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return caisson.Errorf(caisson.Denied, "requests from other web sites are refused")
		}
	}
	return nil
}

// requireLocal returns nil if the caller in ctx is connected over the unix socket, else Denied.
func requireLocal(ctx context.Context) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if !caller.Local {
		return caisson.Errorf(caisson.Denied, "this is possible only over the unix socket")
	}
	return nil
}
