package main

import (
	"context"
	"errors"
	"net/url"

	"github.com/caisson-dev/caisson/client"
)

// api is the client of the API that commands use. The Run method of a command that needs a daemon has a parameter of this type.
type api = *client.Client

// connect returns a client of the daemon that the settings select. If that is the daemon of the data directory and it is not
// running, connect starts it.
//
// Kong calls connect for commands whose Run method has a parameter of type api. Kong resolves the parameters of Run from left to
// right, and those of other types with the command's Provide methods. Because api is the last parameter, an error of a Provide
// method, such as a mistake in the arguments, is returned before a daemon is started. Kong panics if a provider returns an error
// that is not a pointer, such as a [syscall.Errno].
func (a *app) connect(ctx context.Context) (api, error) {
	cfg, err := connection(ctx, a)
	var start func(context.Context) error
	if err == nil && cfg.Host == "" {
		start = func(ctx context.Context) error { return ensureDaemon(ctx, cfg) }
		err = start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err) // errors.Join returns a pointer for every err, as kong requires
	}
	return newClient(cfg, start, (&notices{a: a}).show)
}

// validFlags is the result of a Provide method that only checks the flags of its command. Kong calls a Run method with a
// parameter of this type only if the check has succeeded.
type validFlags struct{}

// connectRunning returns a client of the daemon that the settings select, and does not start a daemon if none is running.
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

// newClient returns a client of the daemon that cfg selects. start and notice may be nil, and are used only over a unix socket:
// the client calls start if no daemon listens on the socket, and notice for each response.
func newClient(cfg *config, start func(context.Context) error, notice func(client.Notice)) (api, error) {
	if socket := cfg.socket(); socket != "" {
		// The token is not sent over the unix socket: a process that may open the socket has full rights already.
		return client.New(client.Config{Socket: socket, Account: cfg.Account, Start: start, Notice: notice})
	}
	return client.New(client.Config{URL: cfg.Host, Token: cfg.Token, Account: cfg.Account, CAFile: cfg.CAFile})
}

// socket returns the path of the daemon's unix socket, or "" if the daemon is reached over TCP.
func (c *config) socket() string {
	if c.Host == "" {
		return c.SocketPath()
	}
	if u, err := url.Parse(c.Host); err == nil && u.Scheme == "unix" {
		return u.Path
	}
	return ""
}

// overSocket reports whether the daemon is reached over a unix socket, so that it is on this machine and accepts file
// descriptors.
func (a *app) overSocket() bool { return a.cfg != nil && a.cfg.socket() != "" }
