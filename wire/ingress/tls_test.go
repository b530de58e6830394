package ingress

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/ingress/signedurl"
)

// newCertificate returns a certificate for 127.0.0.1 with its key in PEM, and a pool that trusts it.
func newCertificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	cert = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	pool.AppendCertsFromPEM([]byte(cert))
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b})), pool
}

// TestTLS tests HTTP/2 over TLS, the cookie of signed URLs there, a change of the certificate, and that a certificate that cannot be
// used is no reason to serve without TLS.
func TestTLS(t *testing.T) {
	w := newWorld(t, mirror, nil)
	w.Close()
	g := New(Config{Log: slog.New(slog.DiscardHandler), Dial: w.cfg.Dial})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	configure := func(cert, key string) {
		t.Helper()
		if err := g.Configure(&caisson.IngressConfig{
			Domain: domain, Key: w.private.Public().(ed25519.PublicKey), Certificate: cert, CertificateKey: key,
		}); err != nil {
			t.Fatal(err)
		}
	}
	configure("malformed", "malformed")
	go g.Serve(l)
	defer g.Close()
	token := w.sign(signedurl.Token{Sandbox: sandboxID, Port: 3000})
	get := func(scheme string, pool *x509.CertPool) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+l.Addr().String()+"/?caisson-token="+token, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "3000-" + string(sandboxID) + "." + domain
		c := &http.Client{
			Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}, Timeout: limit,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		res, err := c.Do(r)
		if err == nil {
			res.Body.Close()
		}
		return res, err
	}
	plain := func() {
		t.Helper()
		if res, err := get("http", nil); err == nil && res.StatusCode != http.StatusBadRequest {
			t.Errorf("without TLS: %d", res.StatusCode)
		}
	}
	plain()
	for range 2 {
		cert, key, pool := newCertificate(t)
		if _, err := get("https", pool); err == nil {
			t.Error("another certificate is trusted")
		}
		configure(cert, key)
		configure("malformed", "malformed") // the last good one stays
		res, err := get("https", pool)
		if err != nil {
			t.Fatal(err)
		}
		if c := res.Cookies(); res.ProtoMajor != 2 || res.StatusCode != http.StatusFound || len(c) != 1 || c[0].Name != "__Host-caisson-token-3000-"+string(sandboxID) || !c[0].Secure {
			t.Errorf("%s, %d, %+v", res.Proto, res.StatusCode, c)
		}
		plain()
	}
}

// tls serves the routes of w with TLS too. It returns the address, and a client that trusts the certificate there.
func (w *world) tls() (addr string, c *http.Client) {
	w.t.Helper()
	cert, key, pool := newCertificate(w.t)
	g := New(w.cfg)
	if err := g.Configure(&caisson.IngressConfig{
		Domain: domain, Key: w.private.Public().(ed25519.PublicKey), Routes: w.routes, Certificate: cert, CertificateKey: key,
	}); err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	go g.Serve(l)
	t := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool}}
	w.t.Cleanup(func() {
		t.CloseIdleConnections()
		g.Close()
	})
	return l.Addr().String(), &http.Client{Transport: t, Timeout: limit}
}

// TestFrames tests that a client of HTTP/2 cannot make the server allocate memory for a large frame.
func TestFrames(t *testing.T) {
	w := newWorld(t, mirror, nil)
	addr, client := w.tls()
	config := client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"h2"}
	c, err := tls.Dial("tcp", addr, config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"+"\x00\x40\x01\xfa\x00\x00\x00\x00\x00") // the header of a frame of 16385 bytes
	b, err := io.ReadAll(c)
	if err != nil || !strings.Contains(string(b), "\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x06") {
		t.Errorf("%q, %v; want GOAWAY with FRAME_SIZE_ERROR", b, err)
	}
}
