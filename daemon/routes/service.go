package routes

import (
	"context"
	"crypto/ed25519"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/ingress/signedurl"
)

// Service implements [caisson.Routes].
type Service struct {
	settings  Settings           // settings of the ingress
	address   string             // address on which the ingress listens
	key       ed25519.PrivateKey // signs the tokens of signed URLs
	store     caisson.Table[caisson.Route]
	sandboxes func() Sandboxes // returns the core of sandboxes, which finds the sandboxes of routes
	table     *Table           // compiles the routes for the wire process
	requests  *Requests        // recent requests of routes
	events    caisson.Publisher

	changing sync.Mutex // held while a route is added or replaced
}

var _ caisson.Routes = (*Service)(nil)

// maxAccountRoutes is the maximum number of routes of one account.
const maxAccountRoutes = 500

// ListRoutes implements [caisson.Routes].
func (s *Service) ListRoutes(ctx context.Context, f caisson.Filter) ([]*caisson.Route, bool, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, false, err
	}
	page, more, err := s.store.List(ctx, caisson.In(caller.Account), f)
	for _, r := range page {
		s.fill(r)
	}
	return page, more, err
}

// GetRoute implements [caisson.Routes].
func (s *Service) GetRoute(ctx context.Context, ref string) (*caisson.Route, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.store.Get(ctx, caisson.In(caller.Account), ref)
	if err != nil {
		return nil, err
	}
	return s.fill(r), nil
}

// fill sets the URL of a route, which is not stored, and returns the route.
func (s *Service) fill(r *caisson.Route) *caisson.Route {
	r.URL = ""
	if s.settings.Listen != "" {
		r.URL = s.base(r.Spec.Host) + r.Spec.Path
		if r.Spec.Path == "" {
			r.URL += "/"
		}
	}
	return r
}

// base returns the URL of the ingress with the given host, without a path. host is "" for the domain of the ingress.
func (s *Service) base(host string) string {
	if host == "" {
		host = s.settings.domain()
	}
	scheme, usual := "http", "80"
	if s.settings.TLS.Cert != "" {
		scheme, usual = "https", "443"
	}
	if _, port, err := net.SplitHostPort(s.address); err == nil && port != usual {
		host = net.JoinHostPort(host, port)
	}
	return scheme + "://" + host
}

// PutRoute implements [caisson.Routes].
func (s *Service) PutRoute(ctx context.Context, name string, spec caisson.RouteSpec) (*caisson.Route, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := checkSpec(&spec); err != nil {
		return nil, err
	}
	if err := s.checkHost(caller, spec); err != nil {
		return nil, err
	}
	sb, err := s.sandboxes().Get(ctx, spec.Sandbox)
	if err != nil {
		return nil, err
	}
	spec.Sandbox = string(sb.ID)
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.checkOthers(ctx, caller.Account, name, spec); err != nil {
		return nil, err
	}
	// Cancellation by the caller is ignored from here on, because otherwise the wire process could have other routes than the
	// store.
	ctx = context.WithoutCancel(ctx)
	old, err := s.store.Get(ctx, caisson.In(caller.Account), name) // nil if there is no route of that name
	if err := caisson.IgnoreNotFound(err); err != nil {
		return nil, err
	}
	r, err := s.put(ctx, caller.Account, name, spec, old)
	if err != nil {
		return nil, err
	}
	kind := "route.created"
	if old != nil {
		kind = "route.changed"
	}
	s.events.Publish(ctx, r.Account, kind, string(r.ID), map[string]string{
		"name": r.Name, "host": spec.Host, "path": spec.Path, "sandbox": spec.Sandbox, "port": strconv.Itoa(spec.Port), "auth": spec.Auth.Kind,
	})
	return s.fill(r), nil
}

// put stores a route, which replaces old if old is not nil, and sends the table of routes to the wire process. If sending
// fails, put restores old in the store and in the wire process, which may have accepted the new table before the error: a route
// whose creation has failed must not stay in force. The first error is returned.
func (s *Service) put(ctx context.Context, account, name string, spec caisson.RouteSpec, old *caisson.Route) (*caisson.Route, error) {
	at := time.Now().UTC()
	if old == nil {
		r := &caisson.Route{ID: caisson.NewID(caisson.RoutePrefix), Account: account, Name: name, Spec: spec, CreatedAt: at, UpdatedAt: at}
		if err := s.store.Insert(ctx, r); err != nil {
			return nil, err
		}
		if err := s.table.send(ctx); err != nil {
			_ = s.store.Delete(ctx, caisson.In(account), string(r.ID))
			_ = s.table.send(ctx)
			return nil, err
		}
		return r, nil
	}
	set := func(spec caisson.RouteSpec, at time.Time) (*caisson.Route, error) {
		return s.store.Update(ctx, caisson.In(account), string(old.ID), func(r *caisson.Route) error {
			r.Spec, r.UpdatedAt = spec, at
			return nil
		})
	}
	r, err := set(spec, at)
	if err != nil {
		return nil, err
	}
	if err := s.table.send(ctx); err != nil {
		_, _ = set(old.Spec, old.UpdatedAt)
		_ = s.table.send(ctx)
		return nil, err
	}
	return r, nil
}

// RemoveRoute implements [caisson.Routes].
func (s *Service) RemoveRoute(ctx context.Context, ref string) error {
	r, err := s.GetRoute(ctx, ref)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := s.store.Delete(ctx, caisson.In(r.Account), string(r.ID)); err != nil {
		return err
	}
	s.requests.forget(r.ID)
	s.events.Publish(ctx, r.Account, "route.removed", string(r.ID), map[string]string{"name": r.Name})
	return s.table.send(ctx)
}

// send sends the settings, which have the table of routes, to the wire process; it does nothing if there is no ingress.
func (t *Table) send(ctx context.Context) error {
	if t.settings.Listen == "" {
		return nil
	}
	return t.wire.Refresh(ctx)
}

// defaultTTL is how long a signed URL is valid if the request sets no TTL.
const defaultTTL = time.Hour

// SignURL implements [caisson.Routes].
func (s *Service) SignURL(ctx context.Context, req caisson.SignRequest) (*caisson.SignedURL, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	ttl := time.Duration(req.TTL)
	if ttl == 0 {
		ttl = defaultTTL
	}
	path, err := parseSignPath(req.Path)
	switch {
	case err != nil:
		return nil, err
	case ttl < time.Second || ttl > signedurl.MaxTTL:
		return nil, caisson.Invalidf("ttl", "must be between a second and 30 days")
	case (req.Route == "") == (req.Sandbox == ""):
		return nil, caisson.Invalidf("sandbox", "name either a sandbox or a route")
	case s.settings.Listen == "":
		return nil, caisson.Errorf(caisson.Conflict, "no ingress is configured on this daemon; set ingress.listen, for example to 127.0.0.1:8088")
	}
	token := signedurl.Token{Expires: time.Now().Add(ttl).Truncate(time.Second), Resume: req.Resume}
	var base, subject string
	if req.Route != "" {
		r, err := s.GetRoute(ctx, req.Route)
		if err != nil {
			return nil, err
		}
		if r.Spec.Auth.Kind != caisson.RouteAuthSigned {
			return nil, caisson.Errorf(caisson.Conflict, "route %s has auth %s; only URLs of routes with auth signed are signed", r.Name, r.Spec.Auth.Kind)
		}
		if req.Port != 0 || req.Resume {
			return nil, caisson.Invalidf("port", "port and resume are properties of the route")
		}
		token.Route, subject = r.ID, string(r.ID)
		base = s.base(r.Spec.Host) + strings.TrimSuffix(r.Spec.Path, "/")
	} else {
		if req.Port < 1 || req.Port > 65535 {
			return nil, caisson.Invalidf("port", "must be between 1 and 65535")
		}
		sb, err := s.sandboxes().Get(ctx, req.Sandbox)
		if err != nil {
			return nil, err
		}
		token.Sandbox, token.Port, subject = sb.ID, req.Port, string(sb.ID)
		base = s.base(strconv.Itoa(req.Port) + "-" + string(sb.ID) + "." + s.settings.domain())
	}
	s.events.Publish(ctx, caller.Account, "route.signed", subject, map[string]string{
		"port": strconv.Itoa(req.Port), "expires": token.Expires.UTC().Format(time.RFC3339),
	})
	return &caisson.SignedURL{URL: base + addToken(path, signedurl.Sign(s.key, token)), ExpiresAt: token.Expires.UTC()}, nil
}

// parseSignPath parses the path of a request to sign a URL, which may have a query; "" means /. It returns an error if it is invalid.
func parseSignPath(path string) (*url.URL, error) {
	if path == "" {
		path = "/"
	}
	u, err := url.Parse(path)
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(path, "//") {
		return nil, caisson.Invalidf("path", "%.100q is not a path that begins with a slash", path)
	}
	return u, nil
}

// addToken returns u with the token of a signed URL as query parameter.
func addToken(u *url.URL, token string) string {
	out := *u
	if out.RawQuery != "" {
		out.RawQuery += "&"
	}
	out.RawQuery += signedurl.Parameter + "=" + token
	return out.String()
}

// RouteLog implements [caisson.Routes].
func (s *Service) RouteLog(ctx context.Context, ref string) ([]caisson.RouteRequest, error) {
	r, err := s.GetRoute(ctx, ref)
	if err != nil {
		return nil, err
	}
	return s.requests.list(r.ID), nil
}
