// Package sshserver is the daemon's side of SSH: it starts a job for each connection, which speaks SSH with the client (package
// job/sshproxy), and executes the few operations that the job requests, on one sandbox. It parses no SSH.
package sshserver

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/job/sshproxy"
	"github.com/caisson-dev/caisson/job/worker"
)

// Limits on connections.
const (
	maxConnections = 512 // of all accounts
	maxAccount     = 64  // of one account
	keyType        = "ssh-ed25519"
	guestProgram   = "/.caisson/inside"
)

// Settings are the settings of the listener.
type Settings struct {
	// Listen is the address at which clients connect whose keys are registered; "" for none.
	Listen string `yaml:"listen" json:"listen"`
}

// Validate returns an error if s is not valid.
func (s Settings) Validate() error {
	if s.Listen == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s.Listen)
	if n, portErr := net.LookupPort("tcp", port); err != nil || port == "" || portErr != nil || n < 0 {
		return caisson.Invalidf("listen", "%q is not host:port", s.Listen)
	}
	return nil
}

// Config contains the dependencies of a Server. All fields but Settings are required.
type Config struct {
	Settings
	Processes caisson.Processes
	// Connect connects to a server in a sandbox. The connection counts towards limits until release is called.
	Connect func(ctx context.Context, ref string, req caisson.ConnectRequest) (f *os.File, release func(), err error)
	Jobs    worker.Starter
	HostKey caisson.Secret // seed of the host key
	// FindKey returns the unexpired token of a client's public key in SSH's wire format; Unauthed if there is none.
	FindKey func(ctx context.Context, key []byte) (*caisson.Token, error)
	Log     *slog.Logger
}

// A Server serves SSH connections.
type Server struct {
	processes caisson.Processes
	connect   func(ctx context.Context, ref string, req caisson.ConnectRequest) (*os.File, func(), error)
	jobs      worker.Starter
	key       ed25519.PrivateKey
	findKey   func(ctx context.Context, key []byte) (*caisson.Token, error)
	log       *slog.Logger
	front     *front

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	conns sync.WaitGroup
	count *counter
}

// New returns a Server.
func New(cfg Config) (*Server, error) {
	seed := []byte(cfg.HostKey.Reveal())
	if len(seed) != ed25519.SeedSize {
		return nil, errors.New("sshserver: the seed of the host key has the wrong size")
	}
	s := &Server{
		processes: cfg.Processes, connect: cfg.Connect, jobs: cfg.Jobs, key: ed25519.NewKeyFromSeed(seed), log: cfg.Log.With("component", "ssh"),
		findKey: cfg.FindKey, front: newFront(cfg.Listen), count: &counter{accounts: map[string]int{}},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Close ends all connections.
func (s *Server) Close() error {
	s.stop()
	s.conns.Wait()
	return nil
}

// SSHHostKey implements [caisson.SSH].
func (s *Server) SSHHostKey(context.Context) (string, error) {
	return keyType + " " + base64.StdEncoding.EncodeToString(s.publicKey()), nil
}

// publicKey returns the public host key in SSH's wire format.
func (s *Server) publicKey() []byte {
	var b []byte
	for _, part := range [][]byte{[]byte(keyType), s.key.Public().(ed25519.PublicKey)} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
	}
	return b
}

// ConnectSSH implements [caisson.SSH].
func (s *Server) ConnectSSH(ctx context.Context, ref string) (caisson.Conn, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := s.processes.ListProcesses(ctx, ref); err != nil { // the errors that a process would get
		return nil, err
	}
	if err := s.count.add(caller.Account); err != nil {
		return nil, err
	}
	near, far, err := socketpair.New()
	if err != nil {
		s.count.remove(caller.Account)
		return nil, err
	}
	conn, err := net.FileConn(near)
	near.Close()
	if err != nil {
		far.Close()
		s.count.remove(caller.Account)
		return nil, err
	}
	s.conns.Go(func() {
		defer s.count.remove(caller.Account)
		defer far.Close()
		s.serve(s.ctx, far, &user{caller: caller, ref: ref}, nil)
	})
	return conn.(*net.UnixConn), nil
}

// serve runs the job for a connection until one of its ends is closed or ctx ends, and kills what was started over it. The user is nil
// if the client must log in.
func (s *Server) serve(ctx context.Context, client *os.File, who *user, login loginFunc) {
	near, far, err := sshproxy.Pair()
	if err != nil {
		s.log.ErrorContext(ctx, "ssh", "err", err)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { near.Close() })
	defer stop()
	defer near.Close()
	c := &connection{channel: near, processes: s.processes, connect: s.connect, key: s.key, user: who, login: login, log: s.log, streams: map[uint32]*stream{}}
	var work sync.WaitGroup
	work.Go(func() {
		defer cancel() // the job that has closed the channel, or has sent nonsense, is killed
		c.serve(ctx)
	})
	args := sshproxy.Args{HostKey: s.publicKey(), Authenticate: who == nil}
	_, err = sshproxy.Job.Run(ctx, s.jobs, args, worker.Given{Files: []*os.File{client, far}})
	far.Close()
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "an ssh connection broke", "err", err)
	}
	cancel()
	work.Wait()
}

// A counter limits the number of connections.
type counter struct {
	mu       sync.Mutex
	all      int            // guarded by mu
	accounts map[string]int // guarded by mu
}

func (c *counter) add(account string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= maxConnections || c.accounts[account] >= maxAccount {
		return caisson.Errorf(caisson.Exhausted, "too many SSH connections; close some, or share one with ControlMaster")
	}
	c.all++
	c.accounts[account]++
	return nil
}

func (c *counter) remove(account string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.accounts[account]--; c.accounts[account] == 0 {
		delete(c.accounts, account)
	}
}
