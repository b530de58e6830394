package caisson

import "context"

// SSH is the service that speaks SSH on behalf of sandboxes. ref is a sandbox's ID or name. Conflict unless it runs.
type SSH interface {
	// ConnectSSH returns a connection at whose other end an SSH server gives access to the sandbox. The server accepts every
	// user and needs no authentication, because the caller is authenticated already. ctx applies to the call; closing the
	// connection kills the processes that were started over it and still run.
	ConnectSSH(ctx context.Context, ref string) (Conn, error)
	// SSHHostKey returns the public key of the server in the format of authorized_keys: "ssh-ed25519 AAAA…".
	SSHHostKey(ctx context.Context) (string, error)
}
