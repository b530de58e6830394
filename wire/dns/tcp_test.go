package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// serveTCP returns a client's end of a connection that r serves, and a channel that is closed when r has stopped serving it.
func serveTCP(t *testing.T, r *Resolver) (net.Conn, <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); r.ServeTCP(t.Context(), server) }()
	t.Cleanup(func() { client.Close(); <-done })
	return client, done
}

func TestServeTCP(t *testing.T) {
	z := newZone(t, map[string][]string{"e.example.": {"e.example. 60 A 192.0.2.1"}})
	b := newBench(t, allowing{names: []string{"e.example"}}, []netip.AddrPort{z.addr})
	conn, done := serveTCP(t, b.Resolver)
	c := &dns.Conn{Conn: conn}
	for i, name := range []string{"e.example.", "no.example.", "e.example."} {
		if err := c.WriteMsg(new(dns.Msg).SetQuestion(name, dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		m, err := c.ReadMsg()
		if err != nil {
			t.Fatal(err)
		}
		if ok := len(m.Answer) == 1; ok != (i != 1) {
			t.Errorf("%s: %v", name, m)
		}
	}
	conn.Close()
	<-done
}

// TestServeTCPEndsWithContext checks that the removal of a wire does not wait for name servers.
func TestServeTCPEndsWithContext(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	b := newBench(t, allowing{names: []string{"e.example"}}, []netip.AddrPort{silent.LocalAddr().(*net.UDPAddr).AddrPort()})
	client, server := net.Pipe()
	defer client.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.ServeTCP(ctx, server) }()
	if err := (&dns.Conn{Conn: client}).WriteMsg(new(dns.Msg).SetQuestion("e.example.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := silent.ReadFrom(make([]byte, maxQuery)); err != nil { // the lookup has started
		t.Fatal(err)
	}
	cancel()
	<-done
	b.up.mu.Lock()
	defer b.up.mu.Unlock()
	if b.up.active != 1 {
		t.Error("it waited for the lookup")
	}
}

// TestServeTCPEndsJunk checks that a malformed query closes the connection.
func TestServeTCPEndsJunk(t *testing.T) {
	b := newBench(t, allowing{}, nil)
	for _, junk := range []string{"\xff\xff", "\x00\x00", "\x00\x03abc", "GET / HTTP/1.1\r\n\r\n"} {
		conn, done := serveTCP(t, b.Resolver)
		if _, err := io.WriteString(conn, junk); err != nil {
			t.Fatal(err)
		}
		<-done
	}
}

func TestServeTCPIsBounded(t *testing.T) {
	b := newBench(t, allowing{}, nil, func(c *Config) { c.Conns = 2 })
	q, _ := new(dns.Msg).SetQuestion("e.example.", dns.TypeA).Pack()
	query := append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	for range 2 { // an answer shows that the connection is served
		conn, _ := serveTCP(t, b.Resolver)
		if _, err := conn.Write(query); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 14)); err != nil {
			t.Fatal(err)
		}
	}
	_, done := serveTCP(t, b.Resolver)
	<-done
}

// TestManyAtOnce runs concurrent queries for the race detector.
func TestManyAtOnce(t *testing.T) {
	z := newZone(t, nil)
	z.answerWith(one("192.0.2.1"))
	b := newBench(t, allowing{names: []string{"*.example"}}, []netip.AddrPort{z.addr}, func(c *Config) { c.QueryBurst = 1000; c.NewNames = 1000 })
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range 10 {
				m := b.ask(t, fmt.Sprintf("n%d.example", (i+j)%15), dns.TypeA)
				if m.Rcode != dns.RcodeSuccess {
					t.Errorf("%v", m)
				}
				b.Names(netip.MustParseAddr("192.0.2.1"))
				b.up.SetServers([]netip.AddrPort{z.addr})
			}
		})
	}
	wg.Wait()
}
