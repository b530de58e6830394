package test_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// sshHost is a host with the configuration of caisson ssh-config and a sandbox named web.
type sshHost struct {
	*host
	config string
}

func newSSHHost(t *testing.T, lines ...string) *sshHost {
	t.Helper()
	needPrograms(t, "ssh")
	h := &sshHost{host: newHost(t)}
	h.configure(append([]string{"idleExit: 10m"}, lines...)...)
	h.create()
	return h
}

// create creates the sandbox and the configuration.
func (h *sshHost) create() {
	h.t.Helper()
	h.ok("sandbox", "create", "--name", "web")
	h.config = h.write("ssh-config", h.ok("ssh-config")+"\n")
}

// needPrograms skips t unless this machine has the programs.
func needPrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			testneed.Skip(t, name, "this machine has no "+name)
		}
	}
}

// tool runs a program of the host, such as ssh or scp.
func (h *sshHost) tool(stdin io.Reader, name string, args ...string) result {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), hang)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = h.env, h.dir, 5*time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); ctx.Err() != nil || err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("%s %q: %v, %v; %s", name, args, ctx.Err(), err, errs.String())
	}
	return result{args: append([]string{name}, args...), stdout: out.String(), stderr: errs.String(), code: cmd.ProcessState.ExitCode()}
}

// ssh runs a command in the sandbox web over ssh.
func (h *sshHost) ssh(stdin string, args ...string) result {
	h.t.Helper()
	return h.tool(strings.NewReader(stdin), "ssh", append([]string{"-F", h.config}, args...)...)
}

// TestSSH tests that the programs of OpenSSH, and rsync, work with a sandbox as with any server.
func TestSSH(t *testing.T) {
	t.Parallel()
	h := newSSHHost(t)
	t.Run("Sessions", func(t *testing.T) {
		for _, tt := range []struct {
			stdin string
			args  []string
			out   string
			code  int
		}{
			{"", []string{"web.caisson", "echo out; echo err >&2; exit 7"}, "out\n", 7},
			{"", []string{"web.caisson", "true"}, "", 0}, // it ends before the client has seen that it has begun
			{"in\n", []string{"web.caisson", "cat"}, "in\n", 0},
			{"echo $0; exit 4\n", []string{"-T", "web.caisson"}, "-sh\n", 4},
			{"echo from stdin\n", []string{"-T", "web.caisson", "bash"}, "from stdin\n", 0},
			{"", []string{"web.caisson", "echo $HOME $USER $SHELL; pwd"}, "/root root /bin/sh\n/root\n", 0},
			{"", []string{"-o", "SetEnv=LC_X=é LD_PRELOAD=x", "web.caisson", "echo $LC_X$LD_PRELOAD"}, "é\n", 0},
			{"", []string{"-tt", "web.caisson", "test -t 0 && echo $TERM"}, "vt100\r\n", 0},
			{"", []string{"-tt", "web.caisson", `printf 'a\033]52;c;aWQK\ab'`}, "ab", 0},
			{"", []string{"-tt", "-o", "SetEnv=CAISSON_RAW_TTY=1", "web.caisson", `printf 'a\033]52;c;aWQK\ab'`}, "a\x1b]52;c;aWQK\ab", 0},
			{"", []string{"web.caisson", `printf 'a\033]52;c;aWQK\ab'`}, "a\x1b]52;c;aWQK\ab", 0},
			{"", []string{"web.caisson", "kill -TERM $$"}, "", 255},          // ssh's own for a signal
			{"", []string{"web.caisson", "sleep 1000 & echo on"}, "on\n", 0}, // the sleep holds the output open
			{"", []string{"-tt", "web.caisson", "sleep 1000 & echo on"}, "on\r\n", 0},
			{"", []string{"nothing.caisson", "true"}, "", 255},
			{"", []string{"-o", "ExitOnForwardFailure=yes", "-R", "1234:127.0.0.1:1", "web.caisson", "true"}, "", 255},
		} {
			h.env = append(h.env, "TERM=vt100")
			if r := h.ssh(tt.stdin, tt.args...); r.stdout != tt.out || r.code != tt.code {
				t.Errorf("want %q and exit code %d: %v", tt.out, tt.code, r)
			}
		}
		if r := h.run("ssh", "web", "exit 5"); r.code != 5 {
			t.Errorf("caisson ssh: %v", r)
		}
		for _, tt := range []struct{ flag, out string }{{"--quiet", "ab"}, {"--raw-tty", "a\x1b[6nb"}} {
			if r := h.run(tt.flag, "ssh", "--option=-tt", "web", `printf 'a\033[6nb'`); r.stdout != tt.out {
				t.Errorf("caisson %s ssh: %v", tt.flag, r)
			}
		}
		h.fails(3, "nothing", "ssh", "nothing", "true")
	})
	t.Run("Files", func(t *testing.T) {
		content := make([]byte, 3<<20)
		rand.Read(content)
		file := h.write("file", string(content))
		for _, tt := range [][]string{
			{"scp", "-F", h.config, file, "web.caisson:/tmp/scp"},
			{"scp", "-F", h.config, "web.caisson:/tmp/scp", file + ".back"},
			{"scp", "-O", "-F", h.config, file, "web.caisson:/tmp/old"},
			{"sftp", "-F", h.config, "-b", h.write("batch", "mkdir /tmp/d\nput file /tmp/d/sftp\nchmod 600 /tmp/d/sftp\nls -l /tmp/d\n"), "web.caisson"},
			{"rsync", "-a", "-e", "ssh -F " + h.config, file, "web.caisson:/tmp/rsync"},
		} {
			needPrograms(t, tt[0])
			if r := h.tool(nil, tt[0], tt[1:]...); r.code != 0 {
				t.Errorf("%v", r)
			}
		}
		if back, err := os.ReadFile(file + ".back"); err != nil || !bytes.Equal(back, content) {
			t.Errorf("scp changed the file: %v", err)
		}
		if got := h.sh("web", "cd /tmp; cmp scp old && cmp scp d/sftp && stat -c %a d/sftp"); got != "600" {
			t.Errorf("in the sandbox: %s", got)
		}
	})
	t.Run("Forwards", func(t *testing.T) {
		for _, args := range [][]string{{"tcp", "8080"}, {"unix", "/tmp/sock"}} {
			h.ok(append(append([]string{"exec", "-d", "web", "--", "/.caisson/inside", "test", "serve"}, args...), "echo")...)
		}
		local, socks, sock := freePort(t), freePort(t), filepath.Join(h.dir, "sock")
		cmd := exec.Command("ssh", "-F", h.config, "-o", "ExitOnForwardFailure=yes", "-N", "-L", local+":localhost:8080", "-D", socks, "-L", sock+":/tmp/sock", "web.caisson")
		cmd.Env = h.env
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		poll.Until(t, settle, func() bool {
			c, err := net.Dial("unix", sock) // the last that ssh listens on
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		for name, dial := range map[string]func() (net.Conn, error){
			"-L":   func() (net.Conn, error) { return net.Dial("tcp", "127.0.0.1:"+local) },
			"-D":   func() (net.Conn, error) { return dialSOCKS("127.0.0.1:"+socks, "localhost", 8080) },
			"unix": func() (net.Conn, error) { return net.Dial("unix", sock) },
		} {
			if err := echoes(dial); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		// What is no address of the sandbox is reached from inside, by the rules for its own connections.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		number, _ := strconv.Atoi(port)
		for _, host := range append(hostAddrs(), "127.0.0.1", "example.com", "169.254.169.254") {
			if c, err := dialSOCKS("127.0.0.1:"+socks, host, number); err == nil {
				c.Close()
				t.Errorf("%s:%d can be reached through the sandbox", host, number)
			}
		}
	})
}

// echoes sends data to a server that sends it back until the end of its input.
func echoes(dial func() (net.Conn, error)) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(hang))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	go func() {
		c.Write(sent)
		c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		return fmt.Errorf("%d of %d bytes came back: %v", len(got), len(sent), err)
	}
	return nil
}

// dialSOCKS connects to host:port through a SOCKS5 server.
func dialSOCKS(server, host string, port int) (net.Conn, error) {
	c, err := net.Dial("tcp", server)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(hang))
	request := append([]byte{5, 1, 0, 3, byte(len(host))}, host...)
	request = append(request, byte(port>>8), byte(port))
	answer := make([]byte, 10)
	if _, err = c.Write([]byte{5, 1, 0}); err == nil {
		_, err = io.ReadFull(c, answer[:2])
	}
	if err == nil {
		_, err = c.Write(request)
	}
	if err == nil {
		_, err = io.ReadFull(c, answer)
	}
	if err == nil && answer[1] != 0 {
		err = fmt.Errorf("SOCKS error %d", answer[1])
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// processNames returns the names of the programs in the sandbox web, without its init.
func (h *sshHost) processNames() (names []string) {
	h.t.Helper()
	for _, p := range shows[[]caisson.ProcessInfo](h.host, "ps", "web") {
		if p.PID != 1 {
			names = append(names, p.Command)
		}
	}
	return names
}

// jobs returns the ssh jobs of the daemon.
func (h *sshHost) jobs() int {
	n := 0
	for _, args := range children(h.daemonPID()) {
		if strings.HasPrefix(args, "caisson-worker") {
			n++
		}
	}
	return n
}

// TestPromise1SSH attacks forwards of SSH: what they lead to is the sandbox's, or what its policy allows, and nothing of the host.
func TestPromise1SSH(t *testing.T) {
	t.Parallel()
	h := newSSHHost(t)
	var reached sync.Map
	listen := func(network, addr string) net.Listener {
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				reached.Store(l.Addr().String(), true)
				io.WriteString(c, "the host")
				c.Close()
			}
		}()
		return l
	}
	all := listen("tcp", "0.0.0.0:0").Addr().(*net.TCPAddr).Port
	targets := []string{fmt.Sprint("127.0.0.1:", all), fmt.Sprint("localhost:", all), fmt.Sprintf("[::1]:%d", all), fmt.Sprintf("[::ffff:127.0.0.1]:%d", all), fmt.Sprint("0.0.0.0:", all),
		"169.254.169.254:80", "example.com:80", "caisson.internal:22"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			targets = append(targets, net.JoinHostPort(n.IP.String(), strconv.Itoa(all)))
		}
	}
	for _, target := range targets {
		if r := h.tool(strings.NewReader("GET / HTTP/1.0\r\n\r\n"), "ssh", "-F", h.config, "-W", target, "web.caisson"); strings.Contains(r.stdout, "the host") {
			t.Errorf("%s is reached: %v", target, r)
		}
	}
	socket := filepath.Join(h.dir, "host.sock")
	listen("unix", socket)
	for _, path := range []string{socket, h.socket()} {
		local := filepath.Join(h.dir, "local.sock")
		os.Remove(local)
		cmd := exec.Command("ssh", "-F", h.config, "-N", "-L", local+":"+path, "web.caisson")
		cmd.Env = h.env
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		var c net.Conn
		poll.Until(t, settle, func() (ok bool) { c, err = net.Dial("unix", local); return err == nil })
		io.WriteString(c, "GET /api/v1/version HTTP/1.0\r\n\r\n")
		c.SetDeadline(time.Now().Add(hang))
		if b, err := io.ReadAll(c); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s answers %q, %v", path, b, err)
		}
		c.Close()
	}
	reached.Range(func(addr, _ any) bool {
		t.Errorf("%s of the host was reached", addr)
		return true
	})
}

// TestSSHClientDies tests that nothing of a connection is left when its client, or the daemon, is killed.
func TestSSHClientDies(t *testing.T) {
	t.Parallel()
	needPrograms(t, "ssh")
	h := &sshHost{host: newHost(t)}
	d := h.serve()
	h.create()
	start := func(args ...string) *exec.Cmd {
		cmd := exec.Command("ssh", append([]string{"-F", h.config}, args...)...)
		cmd.Env = h.env
		in, err := cmd.StdinPipe() // stays open
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close() })
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	for name, args := range map[string][]string{
		"exec":     {"web.caisson", "sh -c 'sleep 1000 & trap \"\" HUP TERM; while :; do sleep 1001; done'; echo"},
		"terminal": {"-tt", "web.caisson", "sleep 1000; true"},
		"shell":    {"-T", "web.caisson"},
		"sftp":     {"-s", "web.caisson", "sftp"},
		"flood":    {"web.caisson", "yes"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := start(args...)
			poll.Until(t, settle, func() bool { return len(h.processNames()) > 0 && h.jobs() > 0 })
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			poll.Until(t, settle, func() bool { return len(h.processNames()) == 0 && h.jobs() == 0 })
		})
	}
	// The processes of a killed daemon's connections see the end of their input; the clients are told.
	cmd := start("web.caisson", "cat")
	poll.Until(t, settle, func() bool { return len(h.processNames()) > 0 })
	d.kill()
	if err := cmd.Wait(); err == nil {
		t.Error("the client takes the death of the daemon for success")
	}
	h.serve()
	poll.Until(t, settle, func() bool { return len(h.processNames()) == 0 && h.jobs() == 0 })
	if r := h.ssh("", "web.caisson", "echo again"); r.stdout != "again\n" {
		t.Errorf("%v", r)
	}
}

// newKey writes a private key and returns its path and public key.
func (h *sshHost) newKey(name string) (file string) {
	h.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		h.t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		h.t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		h.t.Fatal(err)
	}
	file = h.write(name, string(pem.EncodeToMemory(block)))
	if err := os.Chmod(file, 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.write(name+".pub", string(ssh.MarshalAuthorizedKey(key)))
	return file
}

// TestSSHListener tests who may log in over TCP, and that a hundred strangers do not keep anybody out.
func TestSSHListener(t *testing.T) {
	t.Parallel()
	port, apiPort := freePort(t), freePort(t)
	h := newSSHHost(t, "listen: 127.0.0.1:"+apiPort, "ssh: {listen: 127.0.0.1:"+port+"}")
	known := h.write("known", h.ok("ssh-config", "--known-host", "[127.0.0.1]:"+port)+"\n")
	login := func(key, user string, command ...string) []string {
		return append([]string{
			"-F", "none", "-p", port, "-i", key, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "UserKnownHostsFile=" + known,
			"-o", "StrictHostKeyChecking=yes", user + "@127.0.0.1",
		}, command...)
	}
	mine, others, expiring, unknown := h.newKey("mine"), h.newKey("others"), h.newKey("expiring"), h.newKey("unknown")
	token := h.ok("token", "create", "laptop", "--ssh-key", mine+".pub", "-q")
	h.ok("token", "create", "b", "--account", "b", "--ssh-key", others+".pub")
	h.ok("token", "create", "soon", "--ssh-key", expiring+".pub", "--ttl", "1ns")
	h.fails(4, "registered already", "token", "create", "c", "--account", "c", "--ssh-key", mine+".pub")
	for _, tt := range []struct {
		key, user string
		code      int
		says      string
	}{
		{mine, "web", 0, ""},
		{mine, "nothing", 255, "no sandbox"},
		{others, "web", 255, "no sandbox"}, // of another account
		{expiring, "web", 255, "Permission denied"},
		{unknown, "web", 255, "Permission denied"},
	} {
		r := h.tool(nil, "ssh", login(tt.key, tt.user, "true")...)
		if r.code != tt.code || !strings.Contains(r.stderr, tt.says) {
			t.Errorf("want exit code %d and %q: %v", tt.code, tt.says, r)
		}
	}
	if r := h.tool(nil, "ssh", append([]string{"-o", "PubkeyAuthentication=no"}, login(mine, "web", "true")...)...); r.code != 255 {
		t.Errorf("without a key: %v", r)
	}

	// Strangers who say nothing, or nonsense, from many addresses and then from one, which has had enough.
	for i := range 250 {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, 0, byte(min(i, 150)))}}
		c, err := from.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			io.WriteString(c, "SSH-2.0-x\r\n\xff\xff\xff\xff\xff\xff\xff\xff")
		}
	}
	if r := h.tool(nil, "ssh", login(mine, "web", "echo in")...); r.stdout != "in\n" {
		t.Errorf("among strangers: %v", r)
	}
	if n := h.jobs(); n > 101 { // with that of the command above, which may be ending
		t.Errorf("%d jobs for 250 strangers", n)
	}

	// A token that is revoked ends its connections, those over the API too.
	secret := h.ok("token", "create", "api", "-q")
	tokens := shows[[]caisson.Token](h.host, "token", "ls")
	api := tokens[slices.IndexFunc(tokens, func(x caisson.Token) bool { return x.Name == "api" })].ID
	for id, args := range map[string][]string{token: login(mine, "web"), string(api): {"-F", h.config, "web.caisson"}} {
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		defer cancel()
		cmd := exec.CommandContext(ctx, "ssh", append(args, "echo on; sleep 1000")...)
		cmd.Env = append(slices.Clone(h.env), "CAISSON_HOST=http://127.0.0.1:"+apiPort, "CAISSON_TOKEN="+secret)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		h.ok("token", "rm", id)
		if err := cmd.Wait(); err == nil || ctx.Err() != nil {
			t.Errorf("the connection of a revoked token: %v, %v", err, ctx.Err())
		}
		poll.Until(t, settle, func() bool { return len(h.processNames()) == 0 })
	}
	if r := h.tool(nil, "ssh", login(mine, "web", "true")...); r.code != 255 {
		t.Errorf("with a revoked key: %v", r)
	}
}

// TestSSHFlood tests that a client that opens thousands of channels gets few of them, and that others do not notice.
func TestSSHFlood(t *testing.T) {
	t.Parallel()
	h := newSSHHost(t)
	api, err := client.New(client.Config{Socket: h.socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	conn, err := api.ConnectSSH(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c, channels, requests, err := ssh.NewClientConn(streamConn{conn}, "web", &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(requests)
	go func() {
		for n := range channels {
			n.Reject(ssh.Prohibited, "")
		}
	}()
	var opened, refused int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 3000 / 16 {
				channel, requests, err := c.OpenChannel("session", nil)
				mu.Lock()
				if err == nil {
					opened++
					go ssh.DiscardRequests(requests)
					_ = channel // stays open
				} else {
					refused++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if opened > 40 || opened == 0 || refused < 2900 {
		t.Errorf("%d channels were opened, %d refused", opened, refused)
	}
	if r := h.ssh("", "web.caisson", "echo others"); r.stdout != "others\n" {
		t.Errorf("%v", r)
	}
	c.Close()
	poll.Until(t, settle, func() bool { return h.jobs() == 0 && len(h.processNames()) == 0 })
}

// streamConn is a stream as a [net.Conn] without deadlines.
type streamConn struct{ io.ReadWriteCloser }

func (streamConn) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (streamConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (streamConn) SetDeadline(time.Time) error      { return nil }
func (streamConn) SetReadDeadline(time.Time) error  { return nil }
func (streamConn) SetWriteDeadline(time.Time) error { return nil }
