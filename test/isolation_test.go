package test_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// dial is a bash program that tries TCP connections and prints the result and duration of each.
const dial = `for to in "$@"; do
  begin=${EPOCHREALTIME/./}
  if timeout 5 bash -c "exec 3<>/dev/tcp/${to%:*}/${to##*:}" 2>/dev/null; then how=open; else how=refused; fi
  end=${EPOCHREALTIME/./}
  echo "$to $how $(( (end - begin) / 1000 ))"
done`

// TestPromise1NothingIsReachable tests that a sandbox without a policy can reach only the services of its wire at the
// gateway: the resolver and a page, on ports 53 and 80.
func TestPromise1NothingIsReachable(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "host")
	h.ok("sandbox", "create", "--name", "b", "host")
	h.ok("exec", "-d", "b", "--", "perl", "-e", `use Socket; socket(S,PF_INET,SOCK_STREAM,0); bind(S,sockaddr_in(8080,INADDR_ANY)) or die; listen(S,5); accept(C,S) while 1`)
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan string, 1)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- c.RemoteAddr().String()
			c.Close()
		}
	}()
	port := listener.Addr().(*net.TCPAddr).Port

	targets := []string{"1.1.1.1:443", "169.254.169.254:80", "127.0.0.1:" + fmt.Sprint(port), "10.87.0.2:8080", "10.87.0.3:8080"}
	for _, p := range []int{22, 443, 853, 2375, 6443, 7443, 8080, port} {
		targets = append(targets, fmt.Sprintf("10.87.0.1:%d", p))
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP.To4(); ip != nil {
			targets = append(targets, fmt.Sprintf("%s:%d", ip, port))
		}
	}
	r := h.run(append([]string{"exec", "a", "--", "bash", "-c", dial, "bash"}, targets...)...)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != len(targets) {
		t.Fatalf("%v", r)
	}
	for _, line := range lines {
		var to, how string
		var ms int
		if _, err := fmt.Sscan(line, &to, &how, &ms); err != nil {
			t.Fatal(err)
		}
		if how != "refused" {
			t.Errorf("%s is %s", to, how)
		}
		// A refusal is immediate, except for an unused address on the wire itself.
		if limit := 2 * time.Second; !strings.HasPrefix(to, "10.87.0.3:") && time.Duration(ms)*time.Millisecond > limit {
			t.Errorf("%s was refused only after %d ms", to, ms)
		}
	}
	select {
	case from := <-accepted:
		t.Errorf("a connection from %s reached the host", from)
	default:
	}
}

// TestPromise1NoNameResolves tests that neither public names nor names of the host resolve.
func TestPromise1NoNameResolves(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "host")
	for _, name := range []string{"example.com", "metadata.google.internal", "localhost.localdomain", "secret-in-a-name.example.com"} {
		r := h.run("exec", "a", "--", "timeout", "15", "getent", "ahosts", name)
		if r.code == 0 || r.stdout != "" {
			t.Errorf("%s: %v", name, r)
		}
		if r.code == 124 {
			t.Errorf("%s: the resolver gives no answer: %v", name, r)
		}
	}
	if got := h.sh("a", "getent hosts localhost; getent ahosts $(hostname)"); !strings.Contains(got, "127.0.") {
		t.Errorf("its own names resolve to %q", got)
	}
}

// TestPromise1NothingOfTheHostIsVisible tests that devices, mounts and identity in a sandbox reveal nothing of the
// host.
func TestPromise1NothingOfTheHostIsVisible(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "host")
	secret := h.write("secret", "of the host")
	for _, script := range []string{"cat " + secret, "cat /proc/1/root" + secret, "cat /proc/self/root" + secret, "ls -A " + h.dir, "ls -A /root /home"} {
		if r := h.run("exec", "a", "--", "sh", "-c", script); strings.Contains(r.stdout, "host") || strings.Contains(r.stdout, "secret") {
			t.Errorf("%v", r)
		}
	}
	seen := h.sh("a", "cat /proc/mounts /proc/self/mountinfo /proc/1/cmdline /proc/1/environ /proc/self/cgroup /proc/cmdline; ls -l /proc/*/fd /proc/*/cwd 2>/dev/null; env; hostname")
	for _, of := range []string{h.dir, "ct-", h.data} {
		if strings.Contains(seen, of) {
			t.Errorf("%q of the host is visible in\n%s", of, seen)
		}
	}
}
