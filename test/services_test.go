package test_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// A fakeDNS is the name server of a world's host. It answers with configured records.
type fakeDNS struct {
	mu      sync.Mutex
	records map[string][]string // guarded by mu; addresses by name
	asked   []string            // Guarded by mu; "name TYPE" in the order of the first query.
}

func newFakeDNS(t testing.TB, w *world) *fakeDNS {
	t.Helper()
	d := &fakeDNS{records: map[string][]string{
		goodName: {goodAddr4, goodAddr6}, sharedName: {goodAddr4, goodAddr6}, badName: {badAddr4, badAddr6},
	}}
	conn, l := w.beyond.listenPacket(t, nameserverAddr+":53"), w.beyond.listen(t, nameserverAddr+":53")
	for _, s := range []*dns.Server{{PacketConn: conn, Handler: d}, {Listener: l, Handler: d}} {
		go s.ActivateAndServe() // Returns when the listener is closed.
	}
	return d
}

// set changes the addresses of a name.
func (d *fakeDNS) set(name string, addrs ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records[name] = addrs
}

// ServeDNS implements [dns.Handler].
func (d *fakeDNS) ServeDNS(rw dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	name := strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))
	kind := dns.TypeToString[q.Question[0].Qtype]
	d.mu.Lock()
	if line := name + " " + kind; !slices.Contains(d.asked, line) {
		d.asked = append(d.asked, line)
	}
	addrs, ok := d.records[name]
	d.mu.Unlock()
	if !ok {
		m.Rcode = dns.RcodeNameError
	}
	for _, a := range addrs {
		of := "A"
		if strings.Contains(a, ":") {
			of = "AAAA"
		}
		if of == kind {
			rr, err := dns.NewRR(fmt.Sprintf("%s 0 IN %s %s", q.Question[0].Name, kind, a))
			if err == nil && rr == nil || err != nil {
				m.Rcode = dns.RcodeServerFailure
				continue
			}
			m.Answer = append(m.Answer, rr)
		}
	}
	rw.WriteMsg(m) // An error means that the client does not wait any more.
}

// questions returns the received questions except the expected ones.
func (d *fakeDNS) questions(expected ...string) (list []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.asked {
		if !slices.Contains(expected, q) {
			list = append(list, q)
		}
	}
	return list
}

// serveWeb serves HTTP and HTTPS at every address of the world beyond the host, for any name, on the usual ports and on
// 8080 and 8443.
func (w *world) serveWeb(t testing.TB) {
	t.Helper()
	server := &http.Server{Handler: http.HandlerFunc(page), ErrorLog: log.New(io.Discard, "", 0)}
	plain, secure := w.beyond.listen(t, ":80"), w.beyond.listen(t, ":443")
	oddPlain, oddSecure := w.beyond.listen(t, ":8080"), w.beyond.listen(t, ":8443")
	config := &tls.Config{Certificates: []tls.Certificate{certificate(t, goodName, sharedName, badName)}}
	go server.Serve(plain)
	go server.Serve(oddPlain)
	go server.Serve(tls.NewListener(secure, config))
	go server.Serve(tls.NewListener(oddSecure, config))
	t.Cleanup(func() { server.Close() })
}

// page answers with the requested host; /to?URL redirects, and /stream does not end.
func page(rw http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/to":
		http.Redirect(rw, r, r.URL.RawQuery, http.StatusFound)
	case "/stream":
		stream(r.Context(), rw)
	default:
		fmt.Fprintf(rw, "this is %s for %s\n", r.Host, r.URL.Path)
	}
}

// stream writes a little every few milliseconds until the client disconnects.
func stream(ctx context.Context, rw http.ResponseWriter) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := rw.Write(make([]byte, 1000)); err != nil || http.NewResponseController(rw).Flush() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// certificate returns a self-signed certificate.
func certificate(t testing.TB, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// An echo accepts all connections and packets at a place, and records the sources.
type echo struct {
	mu   sync.Mutex
	from []string // guarded by mu
}

// listenAll starts an echo on a port of every address, TCP and UDP.
func (p *place) listenAll(t testing.TB, port int) *echo {
	t.Helper()
	e := &echo{}
	l, c := p.listen(t, fmt.Sprintf(":%d", port)), p.listenPacket(t, fmt.Sprintf(":%d", port))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			e.note(conn.LocalAddr(), conn.RemoteAddr())
			fmt.Fprintln(conn, "welcome")
			conn.Close()
		}
	}()
	go func() {
		for buf := make([]byte, 100); ; {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			e.note(c.LocalAddr(), from)
			c.WriteTo(buf[:n], from)
		}
	}()
	return e
}

func (e *echo) note(at, from net.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.from = append(e.from, at.Network()+" "+at.String()+" from "+from.String())
}

// visits returns the recorded sources.
func (e *echo) visits() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.from)
}
