package transport_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/job/relay/fetch"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/relay/transport"
)

// An sshServer runs git programs for clients that have its key.
type sshServer struct {
	t        *testing.T
	addr     string
	hostKey  ssh.PublicKey
	clientPK string // PEM
	env      bool   // whether the server accepts GIT_PROTOCOL

	mu       sync.Mutex
	commands []string
}

func key(t *testing.T) (ssh.Signer, string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	return signer, string(pem.EncodeToMemory(block))
}

func newSSHServer(t *testing.T, env bool) *sshServer {
	t.Helper()
	host, _ := key(t)
	client, pk := key(t)
	s := &sshServer{t: t, hostKey: host.PublicKey(), clientPK: pk, env: env}
	config := &ssh.ServerConfig{PublicKeyCallback: func(c ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if c.User() != "git" || string(k.Marshal()) != string(client.PublicKey().Marshal()) {
			return nil, errors.New("no")
		}
		return nil, nil
	}}
	config.AddHostKey(host)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go s.serve(c, config)
		}
	}()
	return s
}

func (s *sshServer) serve(c net.Conn, config *ssh.ServerConfig) {
	defer c.Close()
	conn, channels, requests, err := ssh.NewServerConn(c, config)
	if err != nil {
		return
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests)
	for nc := range channels {
		if ch, reqs, err := nc.Accept(); err == nil {
			go s.session(ch, reqs)
		}
	}
}

func (s *sshServer) session(ch ssh.Channel, reqs <-chan *ssh.Request) {
	defer ch.Close()
	protocol := ""
	for r := range reqs {
		switch r.Type {
		case "env":
			var v struct{ Name, Value string }
			ssh.Unmarshal(r.Payload, &v)
			if v.Name == "GIT_PROTOCOL" && s.env {
				protocol = v.Value
			}
			r.Reply(s.env, nil)
		case "exec":
			var v struct{ Command string }
			ssh.Unmarshal(r.Payload, &v)
			r.Reply(true, nil)
			s.mu.Lock()
			s.commands = append(s.commands, v.Command)
			s.mu.Unlock()
			ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{s.run(ch, v.Command, protocol)}))
			return
		default:
			r.Reply(false, nil)
		}
	}
}

func (s *sshServer) run(ch ssh.Channel, command, protocol string) uint32 {
	if strings.Contains(command, "forbidden") {
		ch.Stderr().Write([]byte("ERROR: you may not\nsee this\n"))
		return 1
	}
	cmd := exec.Command("sh", "-c", command)
	cmd.Env = append(os.Environ(), "GIT_PROTOCOL="+protocol, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	in, _ := cmd.StdinPipe()
	go func() {
		buf := make([]byte, 32<<10)
		for {
			n, err := ch.Read(buf)
			in.Write(buf[:n])
			if err != nil {
				in.Close()
				return
			}
		}
	}()
	cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
	if err := cmd.Run(); err != nil {
		return 128
	}
	return 0
}

func (s *sshServer) place(path string) place {
	line := "[127.0.0.1] " + string(ssh.MarshalAuthorizedKey(s.hostKey))
	return place{url: "ssh://git@" + s.addr + path, auth: transport.Auth{Key: caisson.NewSecret(s.clientPK)}, keys: []string{strings.TrimSpace(line)}}
}

func TestSSH(t *testing.T) {
	for _, env := range []bool{true, false} {
		s := newSSHServer(t, env)
		b := &berth{yard: newYard(t)}
		b.bare = t.TempDir() + "/r.git"
		gitserver.Git(t, t.TempDir(), "init", "-q", "--bare", "-b", "main", b.bare)
		b.place = s.place(b.bare)
		b.prepare()
		if pushed, err := b.push(b.place, b.store, b.view, b.next, "caisson/x", ""); err != nil || b.remoteTip() != b.next {
			t.Errorf("push: %+v, %v", pushed, err)
		}
		if pushed, err := b.push(b.place, b.store, b.view, b.next, "caisson/x", ""); err != nil || !pushed.Already {
			t.Errorf("push again: %+v, %v", pushed, err)
		}
		if _, err := b.push(b.place, b.store, b.view, b.first, "caisson/x", b.first); caisson.KindOf(err) != caisson.Conflict {
			t.Errorf("push to what has moved: %v", err)
		}
	}
}

func TestSSHRefusals(t *testing.T) {
	s, other := newSSHServer(t, true), newSSHServer(t, true)
	y := newYard(t)
	_, strange := key(t)
	tests := []struct {
		name   string
		change func(*place)
		kind   caisson.Kind
		says   string
	}{
		{"no host keys", func(p *place) { p.keys = nil }, caisson.Invalid, ""},
		{"another host key", func(p *place) { p.keys = other.place("/x").keys }, caisson.Denied, "another key"},
		{"a key that nobody knows", func(p *place) { p.auth.Key = caisson.NewSecret(strange) }, caisson.Denied, "does not accept"},
		{"no key", func(p *place) { p.auth = transport.Auth{} }, caisson.Denied, "does not accept"},
		{"garbage for a key", func(p *place) { p.auth.Key = caisson.NewSecret("-----BEGIN") }, caisson.Invalid, ""},
		{"forbidden", func(p *place) { p.url += "/forbidden" }, caisson.Denied, "you may not see this"},
		{"no such directory", func(p *place) { p.url += "/nothing" }, caisson.Denied, "not appear to be a git repository"},
		{"nobody listens", func(p *place) { p.url = "ssh://git@127.0.0.1:1/x" }, caisson.Unavailable, "refused"},
		{"metadata", func(p *place) { p.url = "ssh://git@169.254.169.254/x" }, caisson.Denied, "cannot be a server's"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := s.place(t.TempDir())
			tt.change(&p)
			var got *git.Remote
			near, far := y.sockets()
			ended := make(chan error, 1)
			go func() {
				err := y.links.Run(t.Context(), far, transport.Request{URL: p.url, Auth: p.auth, HostKeys: p.keys, Local: true})
				far.Close()
				ended <- err
			}()
			got, err := fetch.Run(t.Context(), y.jobs, y.mirror, near, fetch.Request{Transport: remote.ProtocolStream})
			near.Close()
			if lerr := <-ended; lerr != nil {
				err = lerr // as in the core: the error of the link is more specific
			}
			if got != nil || caisson.KindOf(err) != tt.kind || !strings.Contains(caisson.MessageOf(err), tt.says) {
				t.Errorf("%v: %v", caisson.KindOf(err), err)
			}
		})
	}
}
