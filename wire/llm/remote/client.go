package remote

import (
	"context"
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
	"github.com/caisson-dev/caisson/wire/llm/runtoken"
)

// ClientConfig configures a Client.
type ClientConfig struct {
	// URL is that of the other gateway: https://host[:port][/path]. http is allowed for loopback addresses only, because prompts
	// and tokens are transmitted. Required.
	URL string
	// Tokens signs a run token for each request, which names the run; if nil, requests are refused until SetTokens is called.
	Tokens *runtoken.Tokens
	Roots  *x509.CertPool // certificate authorities that are trusted for the gateway; nil means those of the system
	Log    *slog.Logger   // receives failures to sign run tokens and to reach the gateway; required
	// Dial connects to the gateway; nil means TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

const (
	dialTimeout = 10 * time.Second // for connecting, and for the TLS handshake
	idleTimeout = 90 * time.Second // after which an unused connection is closed
	maxHeader   = 64 << 10         // maximum size of the header of an answer, in bytes
)

// A Client serves the model calls of sandboxes by forwarding them to a gateway on another machine. It streams requests and
// answers without parsing them. It is safe for concurrent use. The zero Client refuses every request.
type Client struct {
	tokens atomic.Pointer[runtoken.Tokens] // signs run tokens; nil: every request is refused
	proxy  *httputil.ReverseProxy          // forwards requests to the gateway; nil in the zero Client
	log    *slog.Logger                    // receives failures to sign run tokens and to reach the gateway
}

// NewClient returns a client without connecting. Errors are of kind Invalid.
func NewClient(cfg ClientConfig) (*Client, error) {
	if cfg.Log == nil {
		return nil, errors.New("remote: Log is required")
	}
	target, err := ParseURL(cfg.URL)
	if err != nil {
		return nil, caisson.Invalidf("remoteURL", "%s", err)
	}
	c := &Client{log: cfg.Log}
	c.tokens.Store(cfg.Tokens)
	c.proxy = &httputil.ReverseProxy{
		Rewrite:        func(pr *httputil.ProxyRequest) { rewrite(pr, target) },
		Transport:      newTransport(cfg),
		FlushInterval:  -1, // flush each piece of an answer immediately
		ModifyResponse: checkAnswer,
		ErrorHandler:   c.fail,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return c, nil
}

// ParseURL parses the URL of a gateway. The error is a sentence without a subject, such as "is not a URL like https://host:8443".
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

// loopback reports whether host is "localhost" or a loopback address.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// newTransport returns the transport for connections to the gateway.
func newTransport(cfg ClientConfig) *http.Transport {
	dial := cfg.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &http.Transport{
		Proxy: nil, // tokens are sent to the gateway only
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return dial(ctx, network, addr)
		},
		TLSClientConfig:        &tls.Config{RootCAs: cfg.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
		ExpectContinueTimeout:  dialTimeout,
	}
}

// authHeaders returns the headers in which clients of models send keys.
func authHeaders() []string {
	return []string{
		"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Goog-Iam-Authorization-Token",
		"X-Goog-User-Project", "Openai-Organization", "Openai-Project",
	}
}

// authParams returns the query parameters in which clients of models send keys.
func authParams() []string { return []string{"key", "api_key", "access_token"} }

// rewrite addresses a request to the gateway, removes the keys that the guest has sent, and adds the run token in the context of
// the request. ReverseProxy has removed hop-by-hop headers before, including those named by Connection.
func rewrite(pr *httputil.ProxyRequest, target *url.URL) {
	pr.SetURL(target) // sets Host too
	for _, h := range authHeaders() {
		pr.Out.Header.Del(h)
	}
	pr.Out.Header[runtoken.Header] = []string{contextToken(pr.In.Context())}
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

// checkAnswer rejects answers with statuses that a gateway does not return, such as a redirect, which could lead a client to
// another server.
func checkAnswer(resp *http.Response) error {
	if resp.StatusCode < 200 || resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return errors.New("the gateway answered with status " + resp.Status)
	}
	resp.Header.Del("Set-Cookie")
	resp.Header.Del(runtoken.Header)
	return nil
}

// SetTokens replaces what signs the run tokens of future requests; if t is nil, they are refused.
func (c *Client) SetTokens(t *runtoken.Tokens) { c.tokens.Store(t) }

// ServeHTTP forwards a request of the guest in its context.
func (c *Client) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	guest, err := caisson.GuestOf(r.Context())
	if err != nil {
		writeError(w, http.StatusUnauthorized, caisson.MessageOf(err))
		return
	}
	if r.Header.Get("Upgrade") != "" || r.Method == http.MethodConnect {
		writeError(w, http.StatusBadRequest, "the model gateway supports plain HTTP only; do not upgrade the connection")
		return
	}
	tokens := c.tokens.Load()
	if tokens == nil || c.proxy == nil {
		writeError(w, http.StatusServiceUnavailable, "the keys for the model gateway are missing; the log of the daemon has the reason")
		return
	}
	token, err := tokens.Mint(tokenRun(guest), guest.Attempt)
	if err != nil {
		c.log.ErrorContext(r.Context(), "a run token could not be signed", "sandbox", guest.Sandbox, "err", err)
		writeError(w, http.StatusBadGateway, "this run cannot use the model gateway; the log of the daemon has the reason")
		return
	}
	// The answer may begin before the whole request was sent. An error is ignored: it means that w cannot do that, and sends the
	// answer only after it has read the request.
	_ = http.NewResponseController(w).EnableFullDuplex()
	c.proxy.ServeHTTP(w, r.WithContext(withToken(r.Context(), token)))
}

// fail responds if the gateway could not be reached, or if its answer was rejected.
func (c *Client) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the guest has disconnected
	}
	c.log.WarnContext(r.Context(), "the remote model gateway does not answer", "err", err)
	writeError(w, http.StatusBadGateway, "the model gateway cannot be reached now; try again")
}

// CloseIdleConnections closes idle connections to the gateway.
func (c *Client) CloseIdleConnections() {
	if c.proxy == nil {
		return
	}
	if t, ok := c.proxy.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}
