package client

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// tokens implements [caisson.Tokens] by requests to a daemon.
type tokens struct{ c *requester }

// CreateToken implements [caisson.Tokens].
func (t tokens) CreateToken(ctx context.Context, account, name string, ttl time.Duration) (*caisson.Token, caisson.Secret, error) {
	v, err := call[protocol.NewToken](ctx, t.c, post(protocol.TokenRequest{Account: account, Name: name, TTL: caisson.Duration(ttl)}, "tokens"))
	return v.Token, caisson.NewSecret(v.Secret), err
}

// CreateSSHKey implements [caisson.Tokens].
func (t tokens) CreateSSHKey(ctx context.Context, account, name, key string, ttl time.Duration) (*caisson.Token, error) {
	req := protocol.TokenRequest{Account: account, Name: name, TTL: caisson.Duration(ttl), SSHKey: key}
	v, err := call[protocol.NewToken](ctx, t.c, post(req, "tokens"))
	return v.Token, err
}

// ListTokens implements [caisson.Tokens].
func (t tokens) ListTokens(ctx context.Context) ([]*caisson.Token, error) {
	return callList[*caisson.Token](ctx, t.c, get("tokens"))
}

// RemoveToken implements [caisson.Tokens].
func (t tokens) RemoveToken(ctx context.Context, id caisson.ID) error {
	return t.c.do(ctx, remove("tokens", string(id)))
}

// daemon implements [caisson.Daemon] by requests to a daemon.
type daemon struct{ c *requester }

// Info implements [caisson.Daemon]. It returns the daemon's version, and the capabilities of its runtime.
func (d daemon) Info(ctx context.Context) (*caisson.Info, error) {
	return call[*caisson.Info](ctx, d.c, get("info"))
}

// DiskUsage implements [caisson.Daemon]. It returns the disk usage of the daemon's data directory.
func (d daemon) DiskUsage(ctx context.Context) (*caisson.DiskUsage, error) {
	return call[*caisson.DiskUsage](ctx, d.c, get("df"))
}

// CollectGarbage implements [caisson.Daemon]. It removes the objects that a crash left behind on the host, and returns them.
func (d daemon) CollectGarbage(ctx context.Context) ([]caisson.Garbage, error) {
	return callList[caisson.Garbage](ctx, d.c, post(nil, "gc"))
}

// Examine implements [caisson.Daemon]. It checks that the daemon's host meets Caisson's requirements, and returns the results.
func (d daemon) Examine(ctx context.Context) ([]caisson.Check, error) {
	return callList[caisson.Check](ctx, d.c, get("doctor"))
}

// Healthy returns nil if the daemon is reachable and reports that it is healthy.
func (c *Client) Healthy(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.c.base.String()+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := c.c.http.Do(r)
	if err != nil {
		return c.c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return responseError(resp)
	}
	return nil
}

// Status implements [caisson.Daemon].
func (d daemon) Status(ctx context.Context) (*caisson.DaemonStatus, error) {
	return call[*caisson.DaemonStatus](ctx, d.c, get("daemon"))
}

// Backup implements [caisson.Daemon]. It returns an archive of the state of the data directory, which the caller must close.
func (d daemon) Backup(ctx context.Context) (io.ReadCloser, error) {
	return d.c.openStream(ctx, get("daemon", "backup"))
}

// Reload implements [caisson.Daemon]. It makes the daemon read its configuration again.
func (d daemon) Reload(ctx context.Context) (*caisson.Reloaded, error) {
	return call[*caisson.Reloaded](ctx, d.c, post(nil, "daemon", "reload"))
}
