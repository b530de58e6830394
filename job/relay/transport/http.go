package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
)

const (
	// userAgent is the User-Agent header of requests. Forges use it to distinguish git from browsers.
	userAgent = "git/2.39 (caisson)"
	// maxErrorText limits how many bytes of an error answer are passed on.
	maxErrorText = 2 << 10
	// responseTimeout is how long a remote may take to answer. It is long because a remote runs its hooks before it answers a push.
	responseTimeout = 10 * time.Minute
	// maxAttempts limits the attempts per request, including those after redirects.
	maxAttempts = 3
)

// An httpLink forwards smart HTTP requests to a remote.
type httpLink struct {
	transport *http.Transport
	user      string         // user of the credential; "" makes secret a bearer token
	secret    caisson.Secret // token or password; zero for no credential
	push      bool           // whether pushes are allowed

	mu   sync.Mutex // guards base
	base *url.URL   // base URL of the remote; changes after a redirect to another path
}

// newHTTP returns an httpLink to a remote.
func newHTTP(remote remoteurl.URL, req Request) (*httpLink, error) {
	base, err := url.Parse(remote.String())
	if err != nil {
		return nil, caisson.Invalidf("url", "cannot be used over HTTP")
	}
	if !req.Auth.Secret.IsZero() && !remote.Confidential() {
		return nil, caisson.Errorf(caisson.Denied, "the credential is not sent to %.100s without TLS; write the URL with https", remote.Host)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // without the host's certificates, only those of the request are trusted
	}
	if req.Roots != "" && !roots.AppendCertsFromPEM([]byte(req.Roots)) {
		return nil, caisson.Invalidf("roots", "there is no certificate in it; give it as PEM")
	}
	if strings.ContainsAny(req.Auth.User, ":\r\n\x00") || strings.ContainsAny(req.Auth.Secret.Reveal(), "\r\n\x00") {
		return nil, caisson.Invalidf("credential", "a user name with a colon, or a token with a line break, cannot be sent; check the credential")
	}
	h := &httpLink{base: base, user: req.Auth.User, secret: req.Auth.Secret, push: req.Push}
	h.transport = &http.Transport{
		DialContext:            dialer(remote, req).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  responseTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
	return h, nil
}

// close closes the connections to the remote.
func (h *httpLink) close() { h.transport.CloseIdleConnections() }

// route checks that the git job may send the request r, and returns the path and query of r relative to the remote's URL.
func (h *httpLink) route(r *http.Request) (path, query string, err error) {
	var service string
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/info/refs":
		service = r.URL.Query().Get("service")
		path, query = "/info/refs", "service="+service
	case r.Method == http.MethodPost:
		service = strings.TrimPrefix(r.URL.Path, "/")
		path = "/" + service
	}
	switch {
	case service == remote.UploadPack, service == remote.ReceivePack && h.push:
		return path, query, nil
	case service == remote.ReceivePack:
		return "", "", errNoPush
	}
	return "", "", caisson.Errorf(caisson.Denied, "the link forwards nothing but git")
}

// ServeHTTP forwards one request to the remote.
func (h *httpLink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, query, err := h.route(r)
	if err != nil {
		refuse(w, err)
		return
	}
	resp, err := h.send(r, path, query)
	if err != nil {
		refuse(w, err)
		return
	}
	defer resp.Body.Close()
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		refuse(w, caisson.Errorf(caisson.Denied, "the remote compresses its answer, which was not requested"))
		return
	}
	if resp.StatusCode != http.StatusOK {
		w.WriteHeader(resp.StatusCode)
		if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/plain" {
			io.Copy(w, io.LimitReader(resp.Body, maxErrorText))
		}
		return
	}
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	w.WriteHeader(http.StatusOK)
	if _, err := io.Copy(remote.FlushWriter{W: w}, resp.Body); err != nil {
		panic(http.ErrAbortHandler) // so that the git job does not take a partial answer for a complete one
	}
}

// send sends the request to the remote. It follows redirects of GET requests only, and only within the same scheme, host and
// port.
func (h *httpLink) send(r *http.Request, path, query string) (*http.Response, error) {
	for range maxAttempts {
		base := h.baseURL()
		u := *base.JoinPath(path)
		u.RawQuery = query
		req, err := h.newRequest(r, &u)
		if err != nil {
			return nil, err
		}
		resp, err := h.transport.RoundTrip(req)
		if err != nil {
			return nil, dialError(base.Hostname(), err)
		}
		switch resp.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		default:
			return resp, nil
		}
		if r.Method != http.MethodGet || !h.acceptRedirect(base, &u, resp.Header.Get("Location"), path) {
			return resp, nil
		}
		resp.Body.Close()
	}
	return nil, caisson.Errorf(caisson.Denied, "the remote redirects again and again; check the URL")
}

// baseURL returns the current base URL of the remote.
func (h *httpLink) baseURL() *url.URL {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.base
}

// acceptRedirect accepts a redirect and stores the new base URL if the redirect leads to another path of the same server.
func (h *httpLink) acceptRedirect(base, asked *url.URL, location, path string) bool {
	u, err := asked.Parse(location)
	if err != nil || location == "" || u.Scheme != base.Scheme || u.Host != base.Host || u.User != nil {
		return false
	}
	rest, ok := strings.CutSuffix(u.Path, path)
	if !ok {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.base = &url.URL{Scheme: base.Scheme, Host: base.Host, Path: rest}
	return true
}

// newRequest returns the request to the remote for the git job's request r. It copies only the headers that git needs.
func (h *httpLink) newRequest(r *http.Request, u *url.URL) (*http.Request, error) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), nil)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "the request cannot be made; check the URL")
	}
	if r.Method == http.MethodPost {
		req.Body, req.ContentLength = r.Body, r.ContentLength
		if enc := r.Header.Get("Content-Encoding"); enc == "gzip" {
			req.Header.Set("Content-Encoding", enc)
		}
		if ct := r.Header.Get("Content-Type"); strings.HasPrefix(ct, "application/x-git-") {
			req.Header.Set("Content-Type", ct)
		}
	}
	if p := r.Header.Get(remote.HeaderProtocol); p != "" && remote.ValidProtocol(p) {
		req.Header.Set(remote.HeaderProtocol, p)
	}
	req.Header.Set("Accept", "application/x-git-upload-pack-result, application/x-git-receive-pack-result, */*")
	req.Header.Set("User-Agent", userAgent)
	switch {
	case h.secret.IsZero():
	case h.user == "":
		req.Header.Set("Authorization", "Bearer "+h.secret.Reveal())
	default:
		req.SetBasicAuth(h.user, h.secret.Reveal())
	}
	return req, nil
}

// dialError returns the error for a remote that did not answer. Its cause never contains the credential.
func dialError(host string, err error) error {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var notTLS tls.RecordHeaderError
	var dns *net.DNSError
	if e, ok := errors.AsType[*caisson.Error](err); ok {
		return e // the dialer does not allow the address
	}
	switch {
	case errors.As(err, &unknown), errors.As(err, &invalid), errors.As(err, &name):
		return caisson.Wrap(err, caisson.Denied, "the certificate of %.100s is not trusted (%.200s); trust its issuer on this host", host, rootCause(err))
	case errors.As(err, &notTLS):
		return caisson.Wrap(err, caisson.Denied, "%.100s does not speak TLS there; check the URL", host)
	case errors.As(err, &dns) && dns.IsNotFound:
		return caisson.Wrap(err, caisson.Unavailable, "there is no host %.100s; check the URL, or this machine's name servers", host)
	case errors.Is(err, context.Canceled):
		return caisson.Wrap(err, caisson.Unavailable, "the request was given up")
	}
	return caisson.Wrap(err, caisson.Unavailable, "cannot reach %.100s (%.200s); try again later", host, rootCause(err))
}

// rootCause returns the text of the innermost error of a chain, which contains neither internal addresses nor URLs.
func rootCause(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}
