package client

import (
	"context"
	"io"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// ssh implements [caisson.SSH].
type ssh struct{ c *requester }

var _ caisson.SSH = ssh{}

// ConnectSSH implements [caisson.SSH].
func (s ssh) ConnectSSH(ctx context.Context, ref string) (io.ReadWriteCloser, error) {
	target, err := s.c.requestURL([]string{"sandboxes", ref, "ssh"}, nil)
	if err != nil {
		return nil, err
	}
	// The connection outlives ctx, which applies to the call.
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	req, err := http.NewRequestWithContext(lasting, http.MethodPost, target, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol.SSHUpgrade)
	s.c.authorize(req.Header)
	resp, err := s.c.http.Do(req)
	if err != nil {
		cancel()
		return nil, s.c.unreachable(ctx, err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		defer cancel()
		defer resp.Body.Close()
		return nil, responseError(resp)
	}
	return upgraded{conn, cancel}, nil
}

// upgraded is a connection that was upgraded.
type upgraded struct {
	io.ReadWriteCloser
	cancel context.CancelFunc
}

// Close implements [io.Closer].
func (u upgraded) Close() error {
	defer u.cancel()
	return u.ReadWriteCloser.Close()
}

// SSHHostKey implements [caisson.SSH].
func (s ssh) SSHHostKey(ctx context.Context) (string, error) {
	info, err := call[protocol.SSHInfo](ctx, s.c, request{method: http.MethodGet, path: []string{"ssh"}})
	return info.HostKey, err
}
