package engine

import (
	"context"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/daemon/sshserver"
)

// access contains the services with which clients reach programs in sandboxes.
type access struct {
	connections *sandboxes.Connections // connections to servers in sandboxes
	terminals   *sandboxes.Terminals   // terminals in sandboxes
	ssh         *sshserver.Server      // lets SSH clients use programs in sandboxes
}

// newAccess constructs the services for connections to servers in sandboxes, for terminals and for SSH. The SSH server's host key
// is a file of the data directory, created when missing.
func newAccess(e *Engine) (*access, error) {
	key, _, err := credential.LoadKeyFile(filepath.Join(e.cfg.Data.Dir, "ssh.key"))
	if err != nil {
		return nil, err
	}
	a := &access{
		connections: sandboxes.NewConnections(e.sandboxes, e.drivers.Dialer), terminals: sandboxes.NewTerminals(e.sandboxes, e.drivers.Dialer),
	}
	a.ssh, err = sshserver.New(sshserver.Config{
		Settings: e.cfg.Access.SSH, Tokens: e.Tokens(), Processes: e.sandboxes.Processes(), Connect: a.connections.Open,
		Jobs: e.drivers.Worker, HostKey: key, Log: e.cfg.Log,
	})
	return a, err
}

// serve starts a goroutine of g that serves SSH clients until ctx ends, if a listener for SSH is configured.
func (a *access) serve(ctx context.Context, g *errgroup.Group) error {
	l, err := a.ssh.Listen()
	if err == nil && l != nil {
		g.Go(func() error { return a.ssh.Serve(ctx, l) })
	}
	return err
}
