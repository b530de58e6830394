package forge

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
)

const (
	callTime  = 30 * time.Second // timeout of one request
	maxAnswer = 1 << 20          // size limit of one answer, in bytes
)

// A client makes requests to one forge. It is used by one goroutine.
type client struct {
	http    *http.Client // sends the requests
	base    *url.URL     // base URL of the API
	secrets []string     // secrets that newFailure redacts from errors
	// authorize adds the credential to a request.
	authorize func(*http.Request)
	headers   map[string]string // headers that this kind of forge needs in every request
}

// newClient returns a client of the API at args.API. With plain http it sends its token to loopback addresses only.
func newClient(args jobArgs) (*client, error) {
	base, err := parseAPI(args.API)
	if err != nil {
		return nil, err
	}
	loopback := remoteurl.Loopback(base.Hostname())
	if base.Scheme != "https" && !loopback {
		return nil, caisson.Errorf(caisson.Denied, "the token is not sent to %s without TLS; give the address of its API with https", base.Host)
	}
	var roots *x509.CertPool // nil means the host's certificates
	if args.Roots != "" {
		if roots, err = x509.SystemCertPool(); err != nil {
			return nil, err
		}
		if !roots.AppendCertsFromPEM([]byte(args.Roots)) {
			return nil, caisson.Errorf(caisson.Invalid, "the certificates to trust are not in PEM format")
		}
	}
	c := &client{base: base, secrets: secretParts(args.Secret)}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext:            dialer(base.Scheme, loopback, args.Local, args.Own).DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    20 * time.Second,
			ResponseHeaderTimeout:  callTime,
			MaxResponseHeaderBytes: 64 << 10,
			MaxIdleConns:           2,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		},
		Timeout:       callTime,
		CheckRedirect: sameServerOnly,
	}
	return c, nil
}

// sameServerOnly is the CheckRedirect function of a client. It follows redirects to the same server, which GitHub sends for
// renamed repositories. It requires the same method: a POST that is redirected as a GET would return a misleading answer.
func sameServerOnly(r *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) > 3 || r.URL.Scheme != first.URL.Scheme || r.URL.Host != first.URL.Host || r.Method != first.Method || r.URL.User != nil {
		return caisson.Errorf(caisson.Invalid, "%s redirects to another server; has the repository moved, or is the address of its API wrong?", first.URL.Host)
	}
	return nil
}

// call makes one request below the API's base URL, with in as its JSON body unless in is nil, and decodes the answer into out.
// The path must already be escaped. Returns a *statusError if the status is not 2xx.
func (c *client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	to := strings.TrimSuffix(c.base.String(), "/") + path
	if len(query) > 0 {
		to += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, to, body)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "caisson")
	r.Header.Set("Accept", "application/json")
	for k, v := range c.headers {
		r.Header.Set(k, v)
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	c.authorize(r)
	resp, err := c.http.Do(r)
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err // without the URL of the request, which after a redirect is chosen by the forge
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.read(resp, out)
}

// read decodes the body of a response into out. Returns a *statusError if the status is not 2xx.
func (c *client) read(resp *http.Response, out any) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		words := errorMessage(text[:min(len(text), maxAnswer)], c.secrets...)
		after, limited := retryDelay(resp.Header, resp.StatusCode, words, time.Now())
		return &statusError{status: resp.StatusCode, message: words, retryAfter: after, rateLimited: limited}
	}
	if err != nil {
		return err
	}
	if len(text) > maxAnswer {
		return caisson.Errorf(caisson.Exhausted, "%s answered with more than %v", c.base.Host, caisson.Size(maxAnswer))
	}
	if err := json.Unmarshal(text, out); err != nil {
		return caisson.Wrap(err, caisson.Invalid, "%s answers with what makes no sense; is the address of its API right?", c.base.Host)
	}
	return nil
}

// bearer returns a function that authorizes requests with a scheme and a secret. The secret is a token, or user:password, of
// which only the password is sent.
func bearer(scheme, secret string) func(*http.Request) {
	if _, password, ok := strings.Cut(secret, ":"); ok {
		secret = password
	}
	return func(r *http.Request) { r.Header.Set("Authorization", scheme+" "+secret) }
}

// basic returns a function that authorizes requests with user:password.
func basic(secret string) func(*http.Request) {
	value := "Basic " + base64.StdEncoding.EncodeToString([]byte(secret))
	return func(r *http.Request) { r.Header.Set("Authorization", value) }
}

// parseAPI parses the base URL of an API.
func parseAPI(s string) (*url.URL, error) {
	bad := caisson.Invalidf("api", "is no address of an API, as https://host/api/v1")
	u, err := url.Parse(s)
	if err != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || u.User != nil || strings.ContainsAny(s, "%#?") {
		return nil, bad
	}
	// The rules for URLs of remotes apply, except that those need a path: one is appended here, and removed below.
	probe, err := remoteurl.ParseURL(strings.TrimSuffix(s, "/") + "/x")
	if err != nil || probe.Scheme != remoteurl.HTTPS && probe.Scheme != remoteurl.HTTP {
		return nil, bad
	}
	return url.Parse(strings.TrimSuffix(probe.String(), "/x"))
}
