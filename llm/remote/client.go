package remote

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/llm/runtoken"
)

// ClientConfig is what a Client needs.
type ClientConfig struct {
	// URL is where the gateway is: https://host[:port][/path]. http is for loopback only: what crosses is prompts and
	// tokens. Required.
	URL string
	// Tokens sign for runs; nil refuses every request until SetTokens is called.
	Tokens *runtoken.Tokens
	// Roots are the authorities to trust for the gateway; nil means the system's.
	Roots *x509.CertPool
	// Log is required.
	Log *slog.Logger
	// Transport replaces the way to the gateway, where the process has no network of its own; nil means TCP. Roots
	// must be nil then.
	Transport http.RoundTripper
}

const (
	dialTimeout = 10 * time.Second
	idleTimeout = 90 * time.Second
	maxHeader   = 64 << 10
)

// A Client is the model gateway of sandboxes whose real one is elsewhere. It passes requests and answers on as they come,
// unread. It is safe for concurrent use. The zero Client refuses every request.
type Client struct {
	tokens atomic.Pointer[runtoken.Tokens]
	proxy  *httputil.ReverseProxy
	log    *slog.Logger
}

// NewClient returns a client. It does not connect yet. Errors are Invalid.
func NewClient(cfg ClientConfig) (*Client, error) {
	if cfg.Log == nil || cfg.Transport != nil && cfg.Roots != nil {
		return nil, errors.New("remote: Log is required, and of Transport and Roots at most one")
	}
	target, err := ParseURL(cfg.URL)
	if err != nil {
		return nil, caisson.Invalidf("remoteURL", "%s", err)
	}
	c := &Client{log: cfg.Log}
	c.tokens.Store(cfg.Tokens)
	transport := cfg.Transport
	if transport == nil {
		transport = newTransport(cfg.Roots)
	}
	c.proxy = &httputil.ReverseProxy{
		Rewrite:        func(pr *httputil.ProxyRequest) { rewrite(pr, target) },
		Transport:      transport,
		FlushInterval:  -1, // each piece of an answer when it comes
		ModifyResponse: checkAnswer,
		ErrorHandler:   c.fail,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return c, nil
}

// ParseURL reads the URL of a gateway. The error is a sentence about it.
func ParseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "":
		return nil, errors.New("is not a URL like https://host:8443")
	case u.User != nil:
		return nil, errors.New("must not hold a password; run tokens are signed with gateway.runTokenKeys")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, errors.New("needs https: prompts and tokens would cross the network unencrypted")
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func newTransport(roots *x509.CertPool) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout}
	return &http.Transport{
		Proxy:                  nil, // tokens go to the gateway and nowhere else
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
		ExpectContinueTimeout:  dialTimeout,
	}
}

// authHeaders are where clients of models put what they believe to be a key.
func authHeaders() []string {
	return []string{
		"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Goog-Iam-Authorization-Token",
		"X-Goog-User-Project", "Openai-Organization", "Openai-Project",
	}
}

// authParams are query parameters that hold keys.
func authParams() []string { return []string{"key", "api_key", "access_token"} }

// rewrite makes the request to the gateway. Headers of the connection, those that Connection names included, are gone by
// now; ServeHTTP has set the token.
func rewrite(pr *httputil.ProxyRequest, target *url.URL) {
	pr.SetURL(target) // and with it Host
	for _, h := range authHeaders() {
		pr.Out.Header.Del(h)
	}
	pr.Out.Header[runtoken.Header] = []string{tokenOf(pr.In.Context())}
	if pr.Out.URL.RawQuery == "" {
		return
	}
	q := pr.Out.URL.Query()
	had := len(q)
	for _, p := range authParams() {
		q.Del(p)
	}
	if len(q) != had {
		pr.Out.URL.RawQuery = q.Encode()
	}
}

// checkAnswer refuses answers that no gateway gives. A redirect might take a client elsewhere with its next request.
func checkAnswer(resp *http.Response) error {
	if resp.StatusCode < 200 || resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return errors.New("the gateway answered with status " + resp.Status)
	}
	resp.Header.Del("Set-Cookie")
	resp.Header.Del(runtoken.Header)
	return nil
}

// SetTokens replaces what signs, for requests that begin afterwards; nil refuses them all.
func (c *Client) SetTokens(t *runtoken.Tokens) { c.tokens.Store(t) }

// ServeHTTP passes a request on, for the guest in its context.
func (c *Client) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	guest, err := caisson.GuestOf(r.Context())
	if err != nil {
		writeError(w, http.StatusUnauthorized, caisson.MessageOf(err))
		return
	}
	if r.Header.Get("Upgrade") != "" || r.Method == http.MethodConnect {
		writeError(w, http.StatusBadRequest, "the model gateway speaks plain HTTP only; do not upgrade the connection")
		return
	}
	tokens := c.tokens.Load()
	if tokens == nil || c.proxy == nil {
		writeError(w, http.StatusServiceUnavailable, "the keys for the model gateway are not there; the log of the daemon says why")
		return
	}
	token, err := tokens.Mint(runOf(guest), guest.Attempt)
	if err != nil {
		c.log.ErrorContext(r.Context(), "sign for a run", "sandbox", guest.Sandbox, "err", err)
		writeError(w, http.StatusBadGateway, "this run cannot use the model gateway; the log of the daemon says why")
		return
	}
	// An answer may begin while the request is still on its way; a writer that cannot do this does it one after the other.
	_ = http.NewResponseController(w).EnableFullDuplex()
	c.proxy.ServeHTTP(w, r.WithContext(withToken(r.Context(), token)))
}

// fail answers when the gateway did not.
func (c *Client) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the guest has gone
	}
	c.log.WarnContext(r.Context(), "the remote model gateway does not answer", "err", err)
	writeError(w, http.StatusBadGateway, "the model gateway cannot be reached now; try again")
}

// CloseIdleConnections closes connections to the gateway that nothing uses.
func (c *Client) CloseIdleConnections() {
	if c.proxy == nil {
		return
	}
	if t, ok := c.proxy.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}
