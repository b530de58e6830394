// Package sshproxy is the job that speaks SSH with one client on behalf of the daemon, and the channel between the two.
//
// The job has no network, no files and no keys. It gets the client's connection as a descriptor and reaches nothing but one
// sandbox, through a channel to the daemon with few operations: start a process, connect to a port or socket, ask whether a key
// may log in, sign with the host key. The daemon answers with descriptors of pipes and sockets, so that what the client sends and
// gets passes only through the job and the sandbox. The daemon parses no SSH.
package sshproxy

import (
	"context"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson/job/worker"
)

// Args are the arguments of the job.
type Args struct {
	HostKey []byte // public host key, in SSH's wire format
	// Authenticate requires the client to log in with a public key that the daemon accepts. If it is false, the daemon has
	// authenticated the client already.
	Authenticate bool
}

// Job serves one connection: its descriptors are the client's connection and the channel to the daemon.
var Job = worker.Job[Args, worker.None]{
	Name: "ssh.proxy", Files: 2,
	// The times are long because a connection may last for months. The memory is for MaxStreams channels, each with 2 MiB that
	// the sandbox has not read.
	Limits: worker.Limits{Time: 365 * 24 * time.Hour, CPU: 30 * 24 * time.Hour, Memory: 192 << 20, FileSize: 1 << 20},
	Do: func(ctx context.Context, c *worker.Call, args Args) (worker.None, error) {
		client, err := net.FileConn(c.Files[0])
		if err != nil {
			return worker.None{}, err
		}
		c.Files[0].Close()
		channel, err := NewConn(c.Files[1])
		if err != nil {
			return worker.None{}, err
		}
		key, err := ssh.ParsePublicKey(args.HostKey)
		if err != nil {
			return worker.None{}, err
		}
		serve(client, newRemote(channel), key, args.Authenticate, handshakeTime)
		return worker.None{}, nil
	},
}

// Jobs returns the jobs of this package.
func Jobs() []worker.Declared { return []worker.Declared{Job} }
