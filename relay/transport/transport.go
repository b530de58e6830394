// Package transport is the far end of the socket pair over which package relay's git reaches a remote. It has the network and the
// credential, and reads nothing of git's protocol; the near end reads git's protocol and has neither.
//
// A remote is reached over HTTPS ([Tool.Run] with http:// or https://), over SSH (the same with ssh:// or user@host:path), or it is a
// directory of the host ([Tool.RunLocal]). The first two are jobs with network and without files, the last is a sealed job whose
// only files are that directory. What the near end asks for is taken as hostile: it has parsed what the remote said, so it can ask
// for the requests of a fetch, and of a push where that was granted, below one URL, and for nothing else.
package transport

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/relay/remoteurl"
	"github.com/caisson-dev/caisson/worker"
)

// A Tool runs links. It has no state of its own and is safe for concurrent use.
type Tool struct{ run worker.Starter }

// NewTool returns a Tool whose jobs r runs; the binary that r starts must have the jobs of this package in its table.
func NewTool(r worker.Starter) *Tool { return &Tool{run: r} }

// A Request says where a link leads.
type Request struct {
	URL      string   // as relay/remoteurl has it, but for paths
	Auth     Auth     // zero: none
	Roots    string   // certificates (PEM) that are trusted besides the host's
	HostKeys []string // of an SSH server, as lines of known_hosts
	Push     bool     // whether the near end may push, else it only fetches
	Local    bool     // whether the remote may be in the host's own networks, or the host itself
	// Own knows which addresses are this host's.
	Own reach.Host
	// Time is how long it may live; 0 means 2 hours.
	Time time.Duration
}

// Auth is who the link is at the remote.
type Auth struct {
	User   string         // "" makes Secret a bearer's token; not used over SSH, where the URL has the user
	Secret caisson.Secret // token or password
	Key    caisson.Secret // SSH private key (PEM), without a passphrase
}

// jobRequest is a Request as it crosses to the job, over a pipe.
type jobRequest struct {
	Request     Request
	Secret, Key string
}

// Jobs are the jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared {
	return []worker.Declared{jobRemote, jobLocal(false), jobLocal(true)}
}

var jobRemote = worker.Job[jobRequest, worker.None]{
	Name: "link.remote", Network: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, args jobRequest) (worker.None, error) {
		req := args.Request // in which the secrets are redacted
		req.Auth.Secret, req.Auth.Key = caisson.NewSecret(args.Secret), caisson.NewSecret(args.Key)
		return worker.None{}, onConn(c, func(conn net.Conn) error { return serveRemote(ctx, conn, req) })
	},
}

// jobLocal is the job for a directory, which it may change only for a push.
func jobLocal(push bool) worker.Job[worker.None, worker.None] {
	job := worker.Job[worker.None, worker.None]{
		Name: "link.local", Programs: true, Files: 1,
		Limits: worker.Limits{Time: lifetime(0), CPU: lifetime(0), Memory: 2 << 30},
		Do: func(ctx context.Context, c *worker.Call, _ worker.None) (worker.None, error) {
			return worker.None{}, onConn(c, func(conn net.Conn) error { return serveLocal(ctx, conn, "/work", push) })
		},
	}
	if push {
		job.Name, job.Access = "link.local-push", worker.WriteAsOwner
	}
	return job
}

// onConn calls serve with the job's first descriptor as a connection.
func onConn(c *worker.Call, serve func(net.Conn) error) error {
	conn, err := net.FileConn(c.Files[0])
	if err != nil {
		return err
	}
	return serve(conn)
}

// parseRemote reads the URL of what is reached over the network.
func parseRemote(raw string) (remoteurl.URL, error) {
	u, err := remoteurl.ParseURL(raw)
	if err == nil && u.Scheme == remoteurl.Local {
		err = caisson.Invalidf("url", "is a directory of this host, and not a remote on the network")
	}
	return u, err
}

func lifetime(t time.Duration) time.Duration {
	if t <= 0 {
		t = 2 * time.Hour
	}
	return t
}

// Run serves conn, a socket whose other end is given to a method of relay.Tool, until that end is closed or ctx ends. conn stays the
// caller's, who should close it when Run returns. What the remote does wrong, the near end is told; errors here are Invalid for a
// request that cannot work, and breakdowns of the job.
func (t *Tool) Run(ctx context.Context, conn *os.File, req Request) error {
	if _, err := parseRemote(req.URL); err != nil {
		return err
	}
	time := lifetime(req.Time)
	args := jobRequest{Request: req, Secret: req.Auth.Secret.Reveal(), Key: req.Auth.Key.Reveal()}
	_, err := jobRemote.Run(ctx, t.run, args, worker.Given{Files: []*os.File{conn}, Limits: worker.Limits{Time: time, CPU: time}})
	return err
}

// RunLocal is Run for a repository in a directory of the host, bare or not, with the rights of whoever owns it. Hooks do not run.
func (t *Tool) RunLocal(ctx context.Context, conn, dir *os.File, push bool) error {
	_, err := jobLocal(push).Run(ctx, t.run, worker.None{}, worker.Given{Root: dir, Files: []*os.File{conn}})
	return err
}
