package transport

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/internal/sshkey"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
)

// An sshLink runs git programs at a server. All of them are sessions of one connection, which is opened for the first one.
type sshLink struct {
	remote remoteurl.URL     // URL of the repository
	dialer *net.Dialer       // connects only to allowed addresses
	config *ssh.ClientConfig // has the credential and the expected host keys

	mu     sync.Mutex
	client *ssh.Client // nil until connected; guarded by mu
}

// newSSH returns an sshLink to a server, which is not connected yet.
func newSSH(remote remoteurl.URL, req Request) (*sshLink, error) {
	keys, err := parseHostKeys(req.HostKeys)
	if err != nil {
		return nil, err
	}
	auth, err := sshAuth(req.Auth)
	if err != nil {
		return nil, err
	}
	return &sshLink{remote: remote, dialer: dialer(remote, req), config: &ssh.ClientConfig{
		User: remote.User, Auth: auth, Timeout: dialTimeout,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			for _, k := range keys {
				if bytes.Equal(k.Marshal(), key.Marshal()) {
					return nil
				}
			}
			return errHostKey
		},
		HostKeyAlgorithms: hostKeyAlgorithms(keys),
	}}, nil
}

// errHostKey is the error for a server whose host key is not among the expected keys.
var errHostKey = caisson.Errorf(caisson.Denied, "the server has another key than the repository's host keys say: it may not be the one it claims to be. If it has changed its key, set the new one")

// sshAuth returns the SSH methods of authentication for a credential.
func sshAuth(req Auth) ([]ssh.AuthMethod, error) {
	var auth []ssh.AuthMethod
	if !req.Key.IsZero() {
		signer, err := sshkey.Parse("the credential", []byte(req.Key.Reveal()))
		if err != nil {
			return nil, err
		}
		auth = append(auth, ssh.PublicKeys(signer))
	}
	if !req.Secret.IsZero() {
		auth = append(auth, ssh.Password(req.Secret.Reveal()))
	}
	return auth, nil
}

// parseHostKeys parses lines of known_hosts. It ignores the host names at their beginning, because all keys belong to one server.
func parseHostKeys(lines []string) ([]ssh.PublicKey, error) {
	var keys []ssh.PublicKey
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		marker, _, key, _, _, err := ssh.ParseKnownHosts([]byte(line))
		if err != nil {
			key, _, _, _, err = ssh.ParseAuthorizedKey([]byte(line))
		}
		if err != nil || marker != "" {
			return nil, caisson.Invalidf("hostKeys", "%.60q is not the key of a server; write lines as ssh-keyscan does", line)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, caisson.Invalidf("hostKeys", "SSH needs the server's keys; ssh-keyscan shows them, and the server's operator says whether they are right")
	}
	return keys, nil
}

// hostKeyAlgorithms returns the algorithms of host keys that a server with one of keys may use.
func hostKeyAlgorithms(keys []ssh.PublicKey) []string {
	var all []string
	for _, k := range keys {
		switch k.Type() {
		case ssh.KeyAlgoRSA:
			all = append(all, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		default:
			all = append(all, k.Type())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// close closes the connection, if there is one.
func (s *sshLink) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.client.Close()
	}
}

// address returns host:port of the server.
func (s *sshLink) address() string {
	return net.JoinHostPort(s.remote.Host, cmp.Or(s.remote.Port, "22"))
}

// path returns the repository's path in the form for git programs at the server: relative to a home directory ("~"), or absolute.
func (s *sshLink) path() string {
	if rest, ok := strings.CutPrefix(s.remote.Path, "/~"); ok {
		return "~" + rest
	}
	return s.remote.Path
}

// dial returns the connection to the server and opens it if necessary.
func (s *sshLink) dial(ctx context.Context) (*ssh.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	conn, err := s.dialer.DialContext(ctx, "tcp", s.address())
	if err != nil {
		return nil, dialError(s.remote.Host, err)
	}
	conn.SetDeadline(time.Now().Add(dialTimeout))
	c, chans, reqs, err := ssh.NewClientConn(conn, s.address(), s.config)
	if err != nil {
		conn.Close()
		return nil, s.handshakeError(err)
	}
	conn.SetDeadline(time.Time{})
	s.client = ssh.NewClient(c, chans, reqs)
	return s.client, nil
}

// handshakeError returns the error that explains to users why the SSH handshake failed with err.
func (s *sshLink) handshakeError(err error) error {
	switch text := err.Error(); {
	case errors.Is(err, errHostKey):
		return errHostKey
	case strings.Contains(text, "unable to authenticate"):
		return caisson.Wrap(err, caisson.Denied, "%.100s does not accept the credential; set another one", s.remote.Host)
	case strings.Contains(text, "no common algorithm for host key"):
		return caisson.Wrap(err, caisson.Denied, "%.100s has none of the kinds of key that the repository's host keys are of; add those that ssh-keyscan shows", s.remote.Host)
	}
	return caisson.Wrap(err, caisson.Unavailable, "cannot speak SSH with %.100s; try again later", s.remote.Host)
}

// run runs one git program at the server.
func (s *sshLink) run(ctx context.Context, st stream) error {
	client, err := s.dial(ctx)
	if err != nil {
		return err
	}
	session, err := client.NewSession()
	if err != nil {
		return caisson.Wrap(err, caisson.Unavailable, "%.100s does not open a session; try again later", s.remote.Host)
	}
	defer session.Close()
	stop := context.AfterFunc(ctx, func() { session.Close() })
	defer stop()
	if st.protocol != "" {
		_ = session.Setenv("GIT_PROTOCOL", st.protocol) // many servers refuse the variable and use version 0
	}
	in, err := session.StdinPipe()
	if err != nil {
		return err
	}
	said := &excerpt.Head{Limit: maxErrorText}
	out := &writeDetector{w: st.out}
	session.Stdout, session.Stderr = out, said
	if err := session.Start(st.service + " " + quote(s.path())); err != nil {
		return caisson.Wrap(err, caisson.Denied, "%.100s does not run %s", s.remote.Host, st.service)
	}
	// The goroutine ends when the request's body ends, at the latest when the handler returns.
	go func() {
		io.Copy(in, st.in)
		in.Close()
	}()
	if err = session.Wait(); err == nil {
		return nil
	}
	if text := oneLine(said.String()); text != "" && !out.wrote {
		return caisson.Wrap(err, caisson.Denied, "%.100s refuses: %.250s", s.remote.Host, text)
	}
	return caisson.Wrap(err, caisson.Unavailable, "the connection to %.100s was lost; try again", s.remote.Host)
}

// quote quotes a path for the server's shell in the same way as git.
func quote(s string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(s) + "'"
}

// writeDetector records whether anything was written.
type writeDetector struct {
	w     io.Writer
	wrote bool
}

func (n *writeDetector) Write(p []byte) (int, error) {
	n.wrote = n.wrote || len(p) > 0
	return n.w.Write(p)
}
