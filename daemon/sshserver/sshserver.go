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
	maxConnections = 512                // SSH connections of all accounts
	maxAccount     = 32                 // SSH connections of one account
	maxStreams     = 256                // processes in sandboxes, and connections to servers in them, of one account
	keyType        = "ssh-ed25519"      // type of the host key
	guestProgram   = "/.caisson/inside" // path of guestd in sandboxes; its commands session, sftp and connect serve SSH
)

// Settings are the settings of the listener for SSH clients.
type Settings struct {
	// Listen is the address on which the server accepts SSH clients, which must have a registered key; "" for none.
	Listen string `yaml:"listen" json:"listen"`
}

// Validate returns an Invalid error if Listen is neither "" nor host:port.
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
	Processes caisson.Processes // starts and signals processes in sandboxes
	// Connect connects to a server in a sandbox. It counts towards the limits of the account until release is called.
	Connect func(ctx context.Context, ref string, req caisson.ConnectRequest) (f *os.File, release func(), err error)
	Jobs    worker.Starter // starts worker jobs
	HostKey caisson.Secret // seed of the host key, an ed25519 key
	Tokens  Tokens         // finds the tokens of clients
	Log     *slog.Logger
}

// Tokens finds the tokens of clients. The methods return Unauthed if there is no such token or it has expired.
type Tokens interface {
	// FindSSHKey returns the token of a public key in SSH's wire format. If use is set, it records that the token was used.
	FindSSHKey(ctx context.Context, key []byte, use bool) (*caisson.Token, error)
	// CheckToken returns the token with this id of an account.
	CheckToken(ctx context.Context, account string, id caisson.ID) (*caisson.Token, error)
}

// A Server serves SSH connections.
type Server struct {
	ops      sandboxOps         // operations on sandboxes
	jobs     worker.Starter     // starts worker jobs
	key      ed25519.PrivateKey // host key
	tokens   Tokens             // finds the tokens of clients
	log      *slog.Logger
	listener *listenerState // state of the listener's connections

	ctx   context.Context    // ends when Close is called
	stop  context.CancelFunc // ends all connections: cancels ctx
	conns sync.WaitGroup     // goroutines of the connections
	count *counter           // counts connections and streams of accounts
}

// New returns a Server, or an error if the seed of the host key does not have 32 bytes.
func New(cfg Config) (*Server, error) {
	seed := []byte(cfg.HostKey.Reveal())
	if len(seed) != ed25519.SeedSize {
		return nil, errors.New("sshserver: the seed of the host key has the wrong size")
	}
	s := &Server{
		ops: sandboxOps{cfg.Processes, cfg.Connect}, jobs: cfg.Jobs, key: ed25519.NewKeyFromSeed(seed), tokens: cfg.Tokens,
		log: cfg.Log.With("component", "ssh"), listener: newListenerState(cfg.Listen), count: &counter{accounts: map[string]tally{}},
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

// ConnectSSH implements [caisson.SSH]. The connection ends when the token of the caller is removed or expires.
func (s *Server) ConnectSSH(ctx context.Context, ref string) (caisson.Conn, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	// ListProcesses fails in the same cases as starting a process, for example if the sandbox does not run.
	if _, err := s.ops.processes.ListProcesses(ctx, ref); err != nil {
		return nil, err
	}
	u, v := &user{caller: caller, ref: ref}, &clientConn{}
	served, end := context.WithCancel(s.ctx)
	v.end = end
	if err := s.admit(ctx, v, u); err != nil {
		end()
		return nil, err
	}
	near, far, err := socketpair.New()
	if err != nil {
		s.leave(v)
		return nil, err
	}
	conn, err := net.FileConn(near)
	near.Close()
	if err != nil {
		far.Close()
		s.leave(v)
		return nil, err
	}
	s.conns.Go(func() {
		defer s.leave(v)
		s.serve(served, far, u, nil)
	})
	return conn.(*net.UnixConn), nil
}

// admit records u as the user of the connection v, and counts the connection. The connection will be ended when the token of u is
// removed or expires. Unless admit returns an error, the caller must call leave.
func (s *Server) admit(ctx context.Context, v *clientConn, u *user) error {
	if err := s.count.addConnection(u.caller.Account); err != nil {
		return err
	}
	s.listener.admit(v, u)
	if u.caller.Token == "" { // a caller over the unix socket has no token
		return nil
	}
	// If the token was removed before admit was called, Revoke has not found this connection. Therefore the token is checked
	// again.
	token, err := s.tokens.CheckToken(ctx, u.caller.Account, u.caller.Token)
	if err != nil {
		s.leave(v)
		return err
	}
	s.listener.endAt(v, token.ExpiresAt)
	return nil
}

// leave ends a connection, removes it, and stops counting it. Further calls have no effect.
func (s *Server) leave(v *clientConn) {
	v.end()
	if u := s.listener.remove(v); u != nil {
		s.count.removeConnection(u.caller.Account)
	}
}

// serve runs the job that speaks SSH with the client, until the client or the job closes the connection or ctx ends. It then
// kills the processes that were started for the job, and closes client. who is the user; if it is nil, the client must log in,
// and login is called for that.
func (s *Server) serve(ctx context.Context, client *os.File, who *user, login loginFunc) {
	defer client.Close()
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
	c := &connection{
		channel: near, ops: s.ops, key: s.key, user: who, login: login, count: s.count, log: s.log, streams: map[uint32]*stream{},
	}
	var work sync.WaitGroup
	work.Go(func() {
		c.serve(ctx)
		cancel() // kills the job, because it has closed the channel or violated the protocol, and its streams may wait for it
		c.end()
	})
	args := sshproxy.Args{HostKey: s.publicKey(), Authenticate: who == nil}
	_, err = sshproxy.Job.Run(ctx, s.jobs, args, worker.RunInput{Files: []*os.File{client, far}})
	client.Close() // closed before the processes are killed, because that may take some time
	far.Close()
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "an ssh connection broke", "err", err)
	}
	cancel()
	work.Wait()
}

// A counter counts connections and streams, and limits their numbers.
type counter struct {
	mu       sync.Mutex
	all      int              // connections of all accounts; guarded by mu
	accounts map[string]tally // open connections and streams, by account; guarded by mu
}

// A tally contains the numbers of open SSH connections of an account, and of the processes and forwarded connections in them.
type tally struct{ connections, streams int }

// addConnection counts a connection. Returns Exhausted if the account, or all accounts together, have the maximum number.
func (c *counter) addConnection(account string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.accounts[account]
	if c.all >= maxConnections || t.connections >= maxAccount {
		return caisson.Errorf(caisson.Exhausted, "too many SSH connections; close some, or share one with ControlMaster")
	}
	t.connections++
	c.all++
	c.accounts[account] = t
	return nil
}

// removeConnection stops counting a connection.
func (c *counter) removeConnection(account string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	t := c.accounts[account]
	t.connections--
	c.set(account, t)
}

// addStream counts a stream of an account. Returns Exhausted if the account has maxStreams.
func (c *counter) addStream(account string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.accounts[account]
	if t.streams >= maxStreams {
		return caisson.Errorf(caisson.Exhausted, "the SSH connections of this account have %d channels; close some", t.streams)
	}
	t.streams++
	c.accounts[account] = t
	return nil
}

// removeStream stops counting a stream of an account.
func (c *counter) removeStream(account string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.accounts[account]
	t.streams--
	c.set(account, t)
}

// set stores the tally of an account, or deletes it if it is zero. The caller must hold mu.
func (c *counter) set(account string, t tally) {
	if c.accounts[account] = t; t == (tally{}) {
		delete(c.accounts, account)
	}
}
