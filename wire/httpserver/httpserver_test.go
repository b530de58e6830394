package httpserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"
)

var timeouts = Timeouts{Header: 10 * time.Second, Idle: time.Minute, Write: time.Minute}

// certificate returns a new certificate for 127.0.0.1, and a pool that trusts it.
func certificate(t testing.TB, serial int64) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// serveFront serves f at an address of this machine and returns it.
func serveFront(t testing.TB, f *Server, wrap func(net.Listener) net.Listener) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if wrap != nil {
		l = wrap(l)
	}
	done := make(chan error, 1)
	go func() { done <- f.Serve(l, false) }()
	t.Cleanup(func() {
		f.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return addr
}

// outward is a listener whose address is not a loopback address.
type outward struct{ net.Listener }

func (outward) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443} }

func hello(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }

// fetch returns the body of an answer.
func fetch(t testing.TB, url string, roots *x509.CertPool) (string, error) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func TestFrontTLS(t *testing.T) {
	f := New(http.HandlerFunc(hello), timeouts)
	first, trustsFirst := certificate(t, 1)
	f.SetCertificate(first)
	addr := serveFront(t, f, nil)
	if got, err := fetch(t, "https://"+addr, trustsFirst); err != nil || got != "HTTP/2.0" {
		t.Error(got, err)
	}
	if got, err := fetch(t, "http://"+addr, nil); err == nil && got == "HTTP/1.1" {
		t.Error("served without TLS")
	}
	// The header of a frame that is too large makes it allocate nothing.
	if c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: trustsFirst, NextProtos: []string{"h2"}}); err != nil {
		t.Error(err)
	} else {
		c.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"+"\x00\x40\x01\xfa\x00\x00\x00\x00\x00")
		if _, err := io.ReadAll(c); err != nil {
			t.Errorf("after a frame of 16385 bytes: %v", err)
		}
		c.Close()
	}
	second, trustsSecond := certificate(t, 2)
	f.SetCertificate(second)
	if _, err := fetch(t, "https://"+addr, trustsFirst); err == nil {
		t.Error("the old certificate is still shown")
	}
	if got, err := fetch(t, "https://"+addr, trustsSecond); err != nil || got != "HTTP/2.0" {
		t.Error(got, err)
	}
	f.SetCertificate(nil)
	if _, err := fetch(t, "https://"+addr, trustsSecond); err == nil {
		t.Error("served without a certificate")
	}
}

// TestFrontPlain checks that plain HTTP is served on loopback only.
func TestFrontPlain(t *testing.T) {
	addr := serveFront(t, New(http.HandlerFunc(hello), timeouts), nil)
	if got, err := fetch(t, "http://"+addr, nil); err != nil || got != "HTTP/1.1" {
		t.Error(got, err)
	}
	addr = serveFront(t, New(http.HandlerFunc(hello), timeouts), func(l net.Listener) net.Listener { return outward{l} })
	if got, err := fetch(t, "http://"+addr, nil); err == nil && got == "HTTP/1.1" {
		t.Error("other machines are served in the clear")
	}
}
