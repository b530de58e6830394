package sshproxy

import (
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
)

const (
	handshakeTime = 30 * time.Second // from the connection to the end of authentication
	maxAuthTries  = 6
	keepalive     = 30 * time.Second // interval of questions to a silent client, and the time that it has for an answer
	maxRefused    = 1000             // channels that a connection may ask for above the limit before it is closed
)

// A server serves one connection.
type server struct {
	remote *remote
	conn   *ssh.ServerConn

	mu      sync.Mutex
	streams int // guarded by mu
	refused int // guarded by mu
}

// serve serves the connection until it or the channel to the daemon ends. The client has the time handshake to log in.
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
	go s.answer(requests)
	go s.keepalive()
	for c := range channels {
		s.open(c)
	}
}

// answer answers global requests: remote forwarding is refused, and keepalives need no more than a refusal.
func (s *server) answer(requests <-chan *ssh.Request) {
	for q := range requests {
		if q.WantReply {
			_ = q.Reply(false, nil) // fails when the connection has ended, which ends the loop
		}
	}
}

// keepalive closes the connection when the client no longer answers, and when the daemon has gone.
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

// open accepts or refuses a channel.
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

// acquire counts a stream. It returns false if there are too many, and closes the connection of a client that does not stop
// asking.
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

func (s *server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams--
}

// refuse refuses a channel. An error means that the connection has ended.
func refuse(c ssh.NewChannel, reason ssh.RejectionReason, text string) {
	_ = c.Reject(reason, "caisson: "+text)
}

// failureText returns what a client is told about err.
func failureText(err error) string { return caisson.MessageOf(err) }
