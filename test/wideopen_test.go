package test_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// TestPromise1WideOpen tests that a policy that allows all names and addresses allows only those of the public
// internet: not the host by any of its addresses, not its neighbours, not metadata services, and no name that resolves
// to these.
func TestPromise1WideOpen(t *testing.T) {
	w := newWorld(t)
	const public = "198.51.100.77" // Leads to the host through a router.
	w.configure("publicAddresses: [" + public + "]")
	w.serve("--listen", "127.0.0.1:7070")
	w.ok("sandbox", "create", "--name", "a", "--allow", "*", "--allow", "*/udp", "--allow", "0.0.0.0/0", "--allow", "0.0.0.0/0/udp",
		"--allow", "::/0", "--allow", "::/0/udp",
		"--allow", "64:ff9b::/96", "host")
	w.probe(buildProbe(t), "a")
	on := w.inside.listenAll(t, 7777)

	const owns = "the address is the host's own; only a rule whose host is exactly this address can allow it"
	list := []attempt{
		{Do: "get", To: "https://" + badName + "/", open: true}, {Do: "tls", To: "[" + badAddr6 + "]:443", Name: badName, open: true},
		tcpTo("169.254.169.254:80", special+"a metadata service"), udpTo("169.254.169.254:53", special+"a metadata service"),
		tcpTo("[64:ff9b::cb00:7102]:7777", owns), tcpTo("[64:ff9b::c633:644d]:7070", owns),
		tcpTo("100.100.100.200:80", special+"a metadata service"), tcpTo("[fd00:ec2::254]:80", special+"a metadata service"),
		tcpTo("[64:ff9b::a9fe:a9fe]:80", special+"a metadata service"), tcpTo("[2002:a63:1::1]:7777", special+"private"),
		tcpTo("[64:ff9b:1::a63:1]:7777", special+"private"), tcpTo("[::7f00:1]:7777", special+"loopback"),
		{Do: "tcp", To: "[::ffff:10.99.0.1]:7777", why: flowTo("tcp", "10.99.0.1:7777", special+"private")},
		tcpTo("10.87.0.6:8080", special+"private"), tcpTo("10.87.0.1:7070", noPort), udpTo("10.87.0.1:7777", noPort),
		tcpTo("192.168.77.9:22", special+"private"), udpTo("192.168.77.255:7777", special+"private"),
		tcpTo(public+":7777", owns), udpTo(public+":7777", owns),
		tcpTo("203.0.113.255:7777", owns), udpTo("203.0.113.255:7777", owns), // A broadcast, which the host receives, too.
		{Do: "get", To: "http://" + goodName + "/to?http://169.254.169.254/", why: flowTo("tcp", "169.254.169.254:80", special)},
	}
	for _, addr := range append(lanAddrs, hostAddr4, hostAddr6) {
		reason := special
		if addr == hostAddr4 || addr == hostAddr6 {
			reason = owns
		}
		for _, port := range []string{"7777", "7070"} {
			to := net.JoinHostPort(addr, port)
			list = append(list, tcpTo(to, reason), udpTo(to, reason))
		}
	}
	for _, name := range []string{"metadata.google.internal", "router.lan", "db.corp", "nas.home", "x.localdomain", "7.0.0.127.in-addr.arpa", "x.local"} {
		list = append(list, attempt{Do: "dns", Name: name, why: "name " + name + ": "})
	}
	// Names of the public internet that resolve to addresses that are not allowed.
	for i, addr := range []string{
		"127.0.0.1", "127.8.8.8", "0.0.0.0", "10.99.0.1", "192.168.77.1", "172.16.5.1", "100.64.9.1", "169.254.169.254", "224.0.0.1", "255.255.255.255",
		"10.87.0.1", "::1", "::", "::ffff:10.99.0.1", "::7f00:1", "fe80::1", "fd12:3456::1", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1",
		"fdca:1550:a87::1",
	} {
		name := fmt.Sprintf("rebind%d.example.net", i)
		w.resolver.set(name, addr)
		a := attempt{Do: "dns", Name: name, Type: typeA, why: "name " + name + " "}
		if strings.Contains(addr, ":") {
			a.Type = typeAAAA
		}
		list = append(list, a)
	}
	w.resolver.set("mixed.example.net", "127.0.0.1", "10.99.0.1")
	// A public address of the host is not recognised when the name is resolved, but when it is dialled.
	w.resolver.set("own.example.net", hostAddr4, hostAddr6)
	list = append(list, attempt{Do: "get", To: "http://mixed.example.net:7777/", why: "name mixed.example.net 10.99.0.1: "},
		attempt{Do: "dns", Name: "own.example.net", open: true},
		attempt{Do: "get", To: "http://own.example.net:7777/", why: owns}, attempt{Do: "get", To: "http://own.example.net:7070/", why: owns})
	w.attempts("a", numbered("wide open", list))
	if v := on.visits(); len(v) > 0 {
		t.Errorf("a service of the host was visited: %s", strings.Join(v, "; "))
	}
	w.left(append(good(), "tcp "+badAddr4+":443", "tcp ["+badAddr6+"]:443")...)
}

// TestPromise1DaemonsPort tests that a rule for exactly an address of the host allows that one, but never the daemon's
// own port.
func TestPromise1DaemonsPort(t *testing.T) {
	w := newWorld(t)
	c := certificate(t, hostAddr4)
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	certFile := w.write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})))
	keyFile := w.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	w.serve("--listen", ":7070", "--tls-cert", certFile, "--tls-key", keyFile)
	args := []string{"sandbox", "create", "--name", "a", "--allow", "own.example.net"}
	const reason = "the daemon's own port; no policy can allow it"
	var list []attempt
	for _, addr := range append(lanAddrs, hostAddr4, hostAddr6) {
		to := net.JoinHostPort(addr, "7070")
		args = append(args, "--allow", net.JoinHostPort(addr, "7070,7777"))
		list = append(list, tcpTo(to, reason), attempt{Do: "tls", To: to, Name: "caisson", why: flowTo("tcp", to, reason)},
			attempt{Do: "tcp", To: net.JoinHostPort(addr, "7777"), open: true}, // A control: the rules are in effect.
			tcpTo(net.JoinHostPort(addr, "7778"), ""))
	}
	w.resolver.set("own.example.net", hostAddr4)
	list = append(list, attempt{Do: "get", To: "https://own.example.net:7070/", why: "the address is the host's own"})
	w.ok(append(args, "host")...)
	w.probe(buildProbe(t), "a")
	w.inside.listenAll(t, 7777)
	w.attempts("a", numbered("daemon", list))
	for _, addr := range hostAddrs() {
		if n := w.self.count("tcp " + net.JoinHostPort(addr, "7070")); n > 0 {
			t.Errorf("%d connections to the daemon's port at %s", n, addr)
		}
	}
}

// A background is a command that runs during the test. Its output is available line by line.
type background struct {
	lines chan string
	end   func()
}

// begin starts a command in the background. It is killed at the end of the test.
func (h *host) begin(args ...string) *background {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := h.command(ctx, args...)
	out, err := cmd.StdoutPipe()
	if err = errors.Join(err, cmd.Start()); err != nil {
		h.t.Fatal(err)
	}
	b := &background{lines: make(chan string, 100), end: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(b.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			b.lines <- s.Text()
		}
		_ = cmd.Wait() // Only the output is tested.
	}()
	h.t.Cleanup(func() {
		cancel()
		<-done
	})
	return b
}

// line returns the next line, or "" if there is none within limit.
func (b *background) line(limit time.Duration) string {
	select {
	case s := <-b.lines:
		return s
	case <-time.After(limit):
		return ""
	}
}

// TestPromise1LiveChange tests that a changed policy applies at once: connections that it does not allow are closed,
// allowed ones continue.
func TestPromise1LiveChange(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.ok("sandbox", "create", "--name", "a", "--allow", goodName, "--allow", badAddr4, "host")
	w.probe(buildProbe(t), "a")
	stays := w.begin("exec", "a", "--", "/probe", "download", "https://"+goodName+"/stream")
	byName := w.begin("exec", "a", "--", "/probe", "download", "http://"+goodName+"/stream")
	byAddress := w.begin("exec", "a", "--", "/probe", "download", "http://"+badAddr4+"/stream")
	for _, b := range []*background{stays, byName, byAddress} {
		if got := b.line(hang); got != "begun" {
			t.Fatalf("a download said %q", got)
		}
	}
	const most = 10 * time.Second // Limit for detecting the end inside; a download does not end on its own.
	ended := func(what string, b *background) {
		t.Helper()
		if got := b.line(most); !strings.HasPrefix(got, "ended after ") || strings.HasSuffix(got, "<nil>") {
			t.Errorf("%s: %v after the change of policy the download said %q", what, most, got)
		}
	}
	w.ok("policy", "set", "a", "--deny", goodName+":80", "--allow", goodName, "--allow", "192.0.2.9")
	ended("its port is denied", byName)
	ended("its address is not allowed any more", byAddress)
	w.attempts("a", numbered("half", []attempt{
		{Do: "get", To: "https://" + goodName + "/", open: true}, {Do: "get", To: "http://" + goodName + "/", why: "tcp: rule 0 denies " + goodName},
		tcpTo(badAddr4+":80", noRule),
	}))
	select {
	case got := <-stays.lines:
		t.Errorf("the connection that is still allowed said %q", got)
	default:
	}
	w.ok("policy", "set", "a", "--allow", "192.0.2.9")
	ended("its name is not allowed any more", stays)
	// The sandbox still has the resolved address.
	w.attempts("a", numbered("none", []attempt{
		tcpTo(goodAddr4+":443", noRule), tcpTo("["+goodAddr6+"]:443", noRule), {Do: "dns", Name: goodName, why: "name " + goodName + ": " + noRule},
	}))
	w.recorded("a", goodAddr4+":443")
}

// TestPromise1PolicyFollowsTheSandbox tests that a policy belongs to one sandbox, applies from the first packet after
// each start, and can be changed in any state.
func TestPromise1PolicyFollowsTheSandbox(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.ok("sandbox", "create", "--name", "a", "--allow", goodName, "host")
	w.ok("sandbox", "create", "--name", "sealed", "host")
	probe := buildProbe(t)
	w.probe(probe, "a")
	w.probe(probe, "sealed")
	allowed := []attempt{{Do: "get", To: "https://" + goodName + "/", open: true}, tcpTo(badAddr4+":443", noRule)}
	sealed := []attempt{{Do: "dns", Name: goodName, why: "name " + goodName + ": " + noRule}, tcpTo(goodAddr4+":443", noRule), tcpTo(badAddr4+":443", noRule)}
	w.attempts("a", numbered("first", allowed))
	w.attempts("sealed", numbered("another sandbox", sealed))

	w.ok("sandbox", "fork", "--name", "fork", "a")
	w.attempts("fork", numbered("fork", allowed))
	w.ok("policy", "set", "a", "--deny", "*")
	w.attempts("fork", numbered("fork of what was changed", allowed))
	w.ok("policy", "set", "a", "--allow", goodName)

	w.ok("sandbox", "pause", "a")
	w.ok("policy", "set", "a", "--allow", "192.0.2.9")
	w.ok("sandbox", "resume", "a")
	w.attempts("a", numbered("changed while paused", sealed))
	w.ok("sandbox", "stop", "--grace", "0s", "a")
	w.ok("policy", "set", "a", "--allow", goodName)
	w.ok("sandbox", "start", "a")
	w.attempts("a", numbered("changed while stopped", allowed))
	w.ok("sandbox", "stop", "--grace", "0s", "a")
	w.ok("sandbox", "start", "a")
	w.attempts("a", numbered("started again", allowed))
	w.left(good()...)
}

// TestPromise1OtherPorts tests that if a name is allowed on all ports, data that looks like TLS or HTTP must be for
// that name on all of them.
func TestPromise1OtherPorts(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.ok("sandbox", "create", "--name", "a", "--allow", goodName, "--allow", goodName+"/udp", "host")
	w.probe(buildProbe(t), "a")
	const said = badName + " is the name in the connection"
	say := func(data, why string) attempt {
		return attempt{Do: "say", To: goodAddr4 + ":8080", Name: "this is " + badName, Data: data, why: why}
	}
	const host = "Host: " + badName + "\r\n\r\n"
	list := []attempt{
		{Do: "get", To: "http://" + goodName + ":8080/", open: true}, {Do: "get", To: "https://" + goodName + ":8443/", open: true},
		{Do: "tls", To: goodAddr4 + ":8443", Name: badName, why: said}, {Do: "tls", To: goodAddr4 + ":8443", Name: badName, Split: true, why: said},
		{Do: "tls", To: goodAddr4 + ":8443", why: "TLS must have it"},
		say("GET / HTTP/1.1\r\n"+host, said), say("GET http://"+badName+":8080/ HTTP/1.1\r\n"+host, said),
		say("\r\n\r\nGET / HTTP/1.1\r\n"+host, ""), say("LIST / HTTP/1.1\r\n"+host, said), say("GET / HTTP/1.0\n"+host, said),
		say("get / http/1.1\r\n"+host, ""), say(" GET / HTTP/1.1\r\n"+host, ""), say("GET\t/ HTTP/1.1\r\n"+host, ""), say("GET /\r\n"+host, ""),
		say("x\r\nGET / HTTP/1.1\r\n"+host, ""), say("\x00GET / HTTP/1.1\r\n"+host, ""), say("\x16\x02GET / HTTP/1.1\r\n"+host, ""),
		say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""), say("PROXY UNKNOWN\r\nGET / HTTP/1.1\r\n"+host, "the header of a proxy"),
		{Do: "say", To: goodAddr4 + ":8080", Name: "this is " + badName, Split: true, Data: "G|E|T| |/ HT|TP/1.1\r\nH|ost: bad|.example.org\r\n\r\n", why: said},
		// The server name of QUIC cannot be checked.
		{Do: "udp", To: goodAddr4 + ":443", why: "the name in QUIC cannot be compared"}, {Do: "udp", To: goodAddr4 + ":80", why: "the name in QUIC"},
	}
	w.attempts("a", numbered("other ports", list))
	var more []string
	for _, addr := range []string{goodAddr4, goodAddr6} {
		more = append(more, "tcp "+net.JoinHostPort(addr, "8080"), "tcp "+net.JoinHostPort(addr, "8443"))
	}
	w.left(append(good(), more...)...)
}
