package sshproxy

import (
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
)

const (
	handshakeTime = 30 * time.Second // time limit from the connection to the end of authentication
	maxAuthTries  = 6                // failed attempts to authenticate before the connection is closed
	keepalive     = 30 * time.Second // interval of keepalive requests to the client, and time limit for each answer
	maxRefused    = 1000             // channels that may be refused because of MaxStreams before the connection is closed
)

// A server serves the SSH connection of one client.
type server struct {
	remote *remote         // sends requests to the daemon
	conn   *ssh.ServerConn // connection of the client

	mu      sync.Mutex
	streams int // number of open channels; guarded by mu
	refused int // number of channels that were refused because of MaxStreams; guarded by mu
}

// serve serves the connection until it ends. If authenticate is true, the client must log in with a public key. The handshake,
// with the login, must end within the time handshake.
func serve(client net.Conn, r *remote, hostKey ssh.PublicKey, authenticate bool, handshake time.Duration) {
	defer client.Close()
	cfg := &ssh.ServerConfig{NoClientAuth: !authenticate, MaxAuthTries: maxAuthTries, ServerVersion: "SSH-2.0-Caisson"}
	if authenticate {
		cfg.PublicKeyCallback = func(c ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			return nil, r.login(c.User(), key, false)
		}
		cfg.VerifiedPublicKeyCallback = func(c ssh.ConnMetadata, key ssh.PublicKey, p *ssh.Permissions, _ string) (*ssh.Permissions, error) {
			return p, r.login(c.User(), key, true)
		}
	}
	cfg.AddHostKey(hostSigner{r, hostKey})
	timer := time.AfterFunc(handshake, func() { client.Close() })
	conn, channels, requests, err := ssh.NewServerConn(client, cfg)
	if err != nil || !timer.Stop() {
		return
	}
	s := &server{remote: r, conn: conn}
	go s.refuseRequests(requests)
	go s.keepalive()
	for c := range channels {
		s.open(c)
	}
}

// refuseRequests refuses all global requests: remote forwarding is not allowed, and clients take a refusal as the answer to a
// keepalive.
func (s *server) refuseRequests(requests <-chan *ssh.Request) {
	for q := range requests {
		if q.WantReply {
			_ = q.Reply(false, nil) // fails when the connection has ended, which ends the loop
		}
	}
}

// keepalive sends keepalive requests, and closes the connection when the client does not answer one in time.
func (s *server) keepalive() {
	tick := time.NewTicker(keepalive)
	defer tick.Stop()
	for range tick.C {
		late := time.AfterFunc(keepalive, func() { s.conn.Close() })
		_, _, err := s.conn.SendRequest("keepalive@openssh.com", true, nil)
		if late.Stop(); err != nil {
			s.conn.Close()
			return
		}
	}
}

// open serves a channel that the client opens, or refuses it.
func (s *server) open(c ssh.NewChannel) {
	var serve func(ssh.NewChannel)
	switch c.ChannelType() {
	case "session":
		serve = s.session
	case "direct-tcpip", "direct-streamlocal@openssh.com":
		serve = s.forward
	default:
		refuse(c, ssh.UnknownChannelType, "there are no channels of this type")
		return
	}
	if !s.acquire() {
		refuse(c, ssh.ResourceShortage, "this connection has too many channels")
		return
	}
	go func() {
		defer s.release()
		serve(c)
	}()
}

// acquire counts a channel as open. It returns false if there are MaxStreams already; after maxRefused of these refusals it also
// closes the connection.
func (s *server) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams < MaxStreams {
		s.streams++
		return true
	}
	if s.refused++; s.refused > maxRefused {
		s.conn.Close()
	}
	return false
}

// release stops counting a channel that acquire has counted.
func (s *server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams--
}

// refuse refuses a channel. An error is ignored: it means that the connection has ended.
func refuse(c ssh.NewChannel, reason ssh.RejectionReason, text string) {
	_ = c.Reject(reason, "caisson: "+text)
}

// failureText returns the message of err for the client.
func failureText(err error) string { return caisson.MessageOf(err) }
