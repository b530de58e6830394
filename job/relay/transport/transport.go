// Package transport is the far end of the socket pair over which the relay's git jobs reach a remote. It has the network and the
// credential and does not parse git data; a git job parses git data and has neither.
//
// A remote is reached over HTTPS ([Tool.Run] with http:// or https://) or SSH ([Tool.Run] with ssh:// or user@host:path), or it
// is a directory of the host ([Tool.RunLocal]). The first two are jobs with network and without files; the last is a job
// without network whose only files are that directory. Requests of the git job are treated as untrusted, because that job has
// parsed data of the remote. It can only send the requests of a fetch, and those of a push if a push is allowed, below one URL.
package transport

import (
	"cmp"
	"context"
	"net"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
	"github.com/caisson-dev/caisson/job/worker"
)

// A Tool connects git jobs to remote repositories. It has no state and is safe for concurrent use.
type Tool struct{ run worker.Starter } // starts the jobs

// NewTool returns a Tool, which connects git jobs to remote repositories. r starts its jobs; the binary that r starts must have
// the jobs of this package in its job table.
func NewTool(r worker.Starter) *Tool { return &Tool{run: r} }

// A Request has the parameters of a connection to a remote.
type Request struct {
	URL      string   // URL in the form of package job/relay/remoteurl, except local paths
	Auth     Auth     // credential for the remote; the zero value sends none
	Roots    string   // additional trusted certificates (PEM)
	HostKeys []string // host keys of an SSH server, as lines of known_hosts
	Push     bool     // allow pushes; otherwise only fetches are allowed
	Local    bool     // allow remotes on the host's networks and the host itself
	// Own has the addresses of this host, at which a remote must not be unless Local is set.
	Own reach.Host
	// Time is the time limit; 0 means 2 hours.
	Time time.Duration
}

// Auth is the credential for the remote.
type Auth struct {
	User   string         // "" makes Secret a bearer token; unused over SSH, where the URL has the user
	Secret caisson.Secret // token or password
	Key    caisson.Secret // SSH private key (PEM), without a passphrase
}

// remoteArgs are the arguments of jobRemote. They contain the secrets of Request.Auth in plain text, and are sent over a pipe
// only.
type remoteArgs struct {
	Request     Request // the request; its secrets are redacted when it is encoded
	Secret, Key string  // Request.Auth.Secret and Request.Auth.Key, which are redacted when Request is encoded
}

// Jobs returns the jobs of this package, for the job table that the binary passes to [worker.Main].
func Jobs() []worker.Declared {
	return []worker.Declared{jobRemote, jobLocal(false), jobLocal(true)}
}

// jobRemote connects a git job to a remote on the network.
var jobRemote = worker.Job[remoteArgs, worker.None]{
	Name: "link.remote", Network: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, args remoteArgs) (worker.None, error) {
		req := args.Request // its secrets were redacted when it was encoded
		req.Auth.Secret, req.Auth.Key = caisson.NewSecret(args.Secret), caisson.NewSecret(args.Key)
		return worker.None{}, onConn(c, func(conn net.Conn) error { return serveRemote(ctx, conn, req) })
	},
}

// jobLocal returns the job for a repository in a directory of the host, its root. The job may change the directory only if push
// is true.
func jobLocal(push bool) worker.Job[worker.None, worker.None] {
	job := worker.Job[worker.None, worker.None]{
		Name: "link.local", Programs: true, Files: 1,
		Limits: worker.Limits{Time: timeLimit(0), CPU: timeLimit(0), Memory: 2 << 30},
		Do: func(ctx context.Context, c *worker.Call, _ worker.None) (worker.None, error) {
			return worker.None{}, onConn(c, func(conn net.Conn) error { return serveLocal(ctx, conn, "/work", push) })
		},
	}
	if push {
		job.Name, job.Access = "link.local-push", worker.WriteAsOwner
	}
	return job
}

// onConn calls serve with the job's first descriptor, a socket, as a connection.
func onConn(c *worker.Call, serve func(net.Conn) error) error {
	conn, err := net.FileConn(c.Files[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	return serve(conn)
}

// parseRemote parses the URL of a remote that is reached over the network.
func parseRemote(raw string) (remoteurl.URL, error) {
	u, err := remoteurl.ParseURL(raw)
	if err == nil && u.Scheme == remoteurl.Local {
		err = caisson.Invalidf("url", "is a directory of this host, and not a remote on the network")
	}
	return u, err
}

// timeLimit returns the time limit of a job for which t was requested: 2 hours if t is not positive.
func timeLimit(t time.Duration) time.Duration {
	return cmp.Or(max(t, 0), 2*time.Hour)
}

// Run serves conn, a socket whose other end is passed to a job that runs git, until that end is closed or ctx ends. The caller
// should close conn when Run returns. Errors of the remote are reported to the git job. Run returns an Invalid error for a
// request that cannot work, and other errors if the job fails.
func (t *Tool) Run(ctx context.Context, conn *os.File, req Request) error {
	if _, err := parseRemote(req.URL); err != nil {
		return err
	}
	time := timeLimit(req.Time)
	args := remoteArgs{Request: req, Secret: req.Auth.Secret.Reveal(), Key: req.Auth.Key.Reveal()}
	_, err := jobRemote.Run(ctx, t.run, args, worker.RunInput{Files: []*os.File{conn}, Limits: worker.Limits{Time: time, CPU: time}})
	return err
}

// RunLocal serves conn, a socket whose other end is passed to a job that runs git, with a repository in a directory of the host,
// bare or not. It runs with the rights of the directory's owner. Hooks do not run.
func (t *Tool) RunLocal(ctx context.Context, conn, dir *os.File, push bool) error {
	_, err := jobLocal(push).Run(ctx, t.run, worker.None{}, worker.RunInput{Root: dir, Files: []*os.File{conn}})
	return err
}
