package client

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// ssh implements [caisson.SSH].
type ssh struct{ c *requester }

// ConnectSSH implements [caisson.SSH].
func (s ssh) ConnectSSH(ctx context.Context, ref string) (caisson.Conn, error) {
	return s.c.upgrade(ctx, []string{"sandboxes", ref, "ssh"}, protocol.SSHUpgrade, nil)
}

// SSHHostKey implements [caisson.SSH].
func (s ssh) SSHHostKey(ctx context.Context) (string, error) {
	info, err := call[protocol.SSHInfo](ctx, s.c, get("ssh"))
	return info.HostKey, err
}
