package main

import (
	"context"
	"errors"
	"net/url"

	"github.com/caisson-dev/caisson/client"
)

// api is the client of the API that commands use. Run methods of commands have a parameter of this type; see [app.connect].
type api = *client.Client

// connect returns the API of the daemon that the settings select, and starts one for the data directory if none is running.
//
// Kong calls it for commands whose Run method has a parameter of type api. Kong resolves parameters from left to right, those of
// other types with the command's Provide methods. Because api is the last parameter, an error of these methods, such as a
// mistake in the arguments, is returned before a daemon is started. Kong panics if a provider returns an error that is not a
// pointer, as an [syscall.Errno].
func (a *app) connect(ctx context.Context) (api, error) {
	cfg, err := connection(ctx, a)
	var start func(context.Context) error
	if err == nil && cfg.Host == "" {
		start = func(ctx context.Context) error { return ensureDaemon(ctx, cfg) }
		err = start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err) // errors.Join returns a pointer for every err
	}
	return newClient(cfg, start, (&notices{a: a}).show)
}

// checked is the result of a Provide method that only checks the flags of its command. A Run method with a parameter of this
// type is called after that method has succeeded.
type checked struct{}

// connectRunning is like connect, but does not start a daemon. It is for commands that can work without one.
func (a *app) connectRunning(ctx context.Context) (api, error) {
	cfg, err := connection(ctx, a)
	if err != nil {
		return nil, err
	}
	if cfg.Host == "" {
		return (&localDaemon{a, cfg}).client(ctx)
	}
	return newClient(cfg, nil, nil)
}

// newClient returns a client that calls start when no daemon listens on the socket, and notice for each response, unless they are
// nil.
func newClient(cfg *config, start func(context.Context) error, notice func(client.Notice)) (api, error) {
	if socket := cfg.socket(); socket != "" {
		// A process that may open the socket has full rights already; the token is not sent.
		return client.New(client.Config{Socket: socket, Account: cfg.Account, Start: start, Notice: notice})
	}
	return client.New(client.Config{URL: cfg.Host, Token: cfg.Token, Account: cfg.Account, CAFile: cfg.CAFile})
}

// socket returns the unix socket of the daemon, or "" if the daemon is reached over TCP.
func (c *config) socket() string {
	if c.Host == "" {
		return c.SocketPath()
	}
	if u, err := url.Parse(c.Host); err == nil && u.Scheme == "unix" {
		return u.Path
	}
	return ""
}

// local reports whether the daemon is on this machine and accepts file descriptors.
func (a *app) local() bool { return a.cfg != nil && a.cfg.socket() != "" }
