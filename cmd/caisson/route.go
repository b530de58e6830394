package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// routeCmd contains the commands that manage routes.
type routeCmd struct {
	Add  routeAddCmd  `cmd:"" help:"Add or replace a route."`
	Ls   routeLsCmd   `cmd:"" help:"List routes."`
	Show routeShowCmd `cmd:"" help:"Show everything about a route."`
	Logs routeLogsCmd `cmd:"" help:"Show recent requests of a route."`
	Rm   routeRmCmd   `cmd:"" help:"Remove routes and end their requests."`
}

func routeName(r *caisson.Route) string { return r.Name }

func routeID(r *caisson.Route) string { return string(r.ID) }

// routeAddCmd adds or replaces a route.
type routeAddCmd struct {
	Name    string `arg:"" help:"Name of the route."`
	Sandbox string `arg:"" help:"Id or name of the sandbox." complete:"sandbox"`
	Port    int    `arg:"" help:"TCP port inside."`

	At          string            `help:"Host of the requests, such as NAME.DOMAIN, with a prefix of their path or without; or a path on the ingress's own domain." required:"" placeholder:"HOST[/PATH]"`
	StripPrefix bool              `help:"Remove that prefix from the path that the sandbox sees."`
	Method      []string          `help:"Allow only this method; may be repeated." placeholder:"METHOD"`
	Auth        string            `help:"Who may use it: signed (URLs of caisson open --route), bearer or basic:USER (with a new secret, which is printed), or none (everybody)." default:"signed" placeholder:"KIND"`
	Hash        []string          `help:"SHA-256 of the bearer token, or of user:password, instead of a new secret; may be repeated." placeholder:"HEX"`
	Resume      bool              `help:"A request wakes or resumes the sandbox."`
	Timeout     caisson.Duration  `help:"Time until the answer begins." placeholder:"DURATION"`
	IdleTimeout caisson.Duration  `help:"Time without data after which a request or WebSocket ends." placeholder:"DURATION"`
	MaxBody     caisson.Size      `help:"Maximum size of a request's body." placeholder:"SIZE"`
	CORS        []string          `name:"cors" help:"Let pages of this origin use the route; may be repeated." placeholder:"ORIGIN" sep:"none"`
	Rate        float64           `help:"Requests per second of each client." placeholder:"N"`
	Header      map[string]string `help:"Set a header field of requests; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
}

func (c *routeAddCmd) Help() string {
	return "The daemon serves routes if its configuration has ingress.listen; see docs/guides/routes.md.\n\n" +
		examples("caisson route add app my-sandbox 3000 --at app.example.com --auth none",
			"caisson route add api my-sandbox 8080 --at api.localhost/v1 --auth bearer --resume",
			"caisson route add docs my-sandbox 8000 --at /docs --strip-prefix")
}

// ProvideSpec returns the properties of the route that the flags describe.
func (c *routeAddCmd) ProvideSpec() (spec caisson.RouteSpec, err error) {
	kind, _, _ := strings.Cut(c.Auth, ":")
	if scheme, rest, ok := strings.Cut(c.At, "://"); ok {
		return spec, caisson.Invalidf("--at", "leave %s:// out; write %.100q", scheme, strings.TrimSuffix(rest, "/"))
	}
	host, path, below := strings.Cut(c.At, "/")
	if below {
		path = "/" + path
	}
	spec = caisson.RouteSpec{
		Host: host, Path: path, Sandbox: c.Sandbox, Port: c.Port, Methods: c.Method, StripPrefix: c.StripPrefix,
		Auth: caisson.RouteAuth{Kind: kind, Hashes: c.Hash}, Resume: c.Resume, Timeout: c.Timeout, IdleTimeout: c.IdleTimeout, MaxBody: c.MaxBody,
	}
	if len(c.CORS) > 0 {
		spec.CORS = &caisson.RouteCORS{Origins: c.CORS}
	}
	if c.Rate > 0 {
		spec.Limits.Client = caisson.RouteRate{PerSecond: c.Rate, Burst: max(1, int(4*c.Rate))}
	}
	if len(c.Header) > 0 {
		spec.Headers = &caisson.RouteHeaders{Set: c.Header}
	}
	return spec, nil
}

// routeSecret returns a new secret, which clients of the route must present, and its hash. Both are "" if the flags give the
// hash, or if this kind of authentication has no such secret.
func (c *routeAddCmd) routeSecret() (secret, hash string, err error) {
	kind, user, named := strings.Cut(c.Auth, ":")
	switch {
	case kind == caisson.RouteAuthBasic && (user == "" || strings.Contains(user, ":")) && len(c.Hash) == 0:
		return "", "", caisson.Invalidf("auth", "write basic:USER")
	case named && kind != caisson.RouteAuthBasic:
		return "", "", caisson.Invalidf("auth", "%.40q is not one of signed, bearer, basic:USER, none", c.Auth)
	case len(c.Hash) > 0 || kind != caisson.RouteAuthBearer && kind != caisson.RouteAuthBasic:
		return "", "", nil
	}
	secret = rand.Text()
	if kind == caisson.RouteAuthBasic {
		secret = user + ":" + secret
	}
	sum := sha256.Sum256([]byte(secret))
	return secret, hex.EncodeToString(sum[:]), nil
}

func (c *routeAddCmd) Run(ctx context.Context, a *app, spec caisson.RouteSpec, api api) error {
	secret, hash, err := c.routeSecret()
	if err != nil {
		return err
	}
	if hash != "" {
		spec.Auth.Hashes = []string{hash}
	}
	r, err := api.PutRoute(ctx, c.Name, spec)
	if err != nil {
		return err
	}
	if r.URL == "" {
		a.infof("The daemon serves no routes yet: set ingress.listen in its configuration.")
	}
	if secret != "" {
		a.infof("The secret of this route, which is not shown again: %s", secret)
	}
	return printDone(a, r, cmp.Or(r.URL, r.Name))
}

// routeLsCmd lists routes.
type routeLsCmd struct{}

func (c *routeLsCmd) Help() string {
	return examples("caisson route ls", "caisson route ls -o json")
}

func (c *routeLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[*caisson.Route]{
		{name: "NAME", value: routeName},
		{name: "URL", value: func(r *caisson.Route) string { return cmp.Or(r.URL, r.Spec.Host+r.Spec.Path) }},
		{name: "SANDBOX", value: func(r *caisson.Route) string { return r.Spec.Sandbox }},
		{name: "PORT", value: func(r *caisson.Route) string { return strconv.Itoa(r.Spec.Port) }},
		{name: "AUTH", value: func(r *caisson.Route) string { return r.Spec.Auth.Kind }},
	})(allPages(ctx, caisson.Filter{}, routeID, api.ListRoutes))
}

// routeShowCmd shows one route.
type routeShowCmd struct {
	Route string `arg:"" help:"Id or name." complete:"route"`
}

func (c *routeShowCmd) Help() string {
	return examples("caisson route show app", "caisson route show app -o yaml")
}

func (c *routeShowCmd) Run(ctx context.Context, a *app, api api) error {
	return asOne(a, routeName, routeRows)(api.GetRoute(ctx, c.Route))
}

// routeRows returns the properties of a route, as pairs of a name and a value.
func routeRows(r *caisson.Route) [][2]string {
	s := r.Spec
	rows := [][2]string{
		{"ID", string(r.ID)}, {"Name", r.Name}, {"Account", r.Account}, {"URL", r.URL}, {"Host", s.Host}, {"Path", s.Path}, {"Sandbox", s.Sandbox},
		{"Port", strconv.Itoa(s.Port)}, {"Auth", s.Auth.Kind}, {"Methods", strings.Join(s.Methods, " ")},
	}
	if s.Resume {
		rows = append(rows, [2]string{"Resume", "yes"})
	}
	return append(rows, [2]string{"Created", formatTime(r.CreatedAt)}, [2]string{"Updated", formatTime(r.UpdatedAt)})
}

// routeLogsCmd shows the requests of a route.
type routeLogsCmd struct {
	Route string `arg:"" help:"Id or name." complete:"route"`
}

func (c *routeLogsCmd) Help() string {
	return "The log is in memory and has the last requests only; of many at once some are missing. Status 499 means that the client went away.\n\n" +
		examples("caisson route logs app")
}

func (c *routeLogsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[caisson.RouteRequest]{
		{name: "TIME", value: func(r caisson.RouteRequest) string { return formatTime(r.At) }},
		{name: "CLIENT", value: func(r caisson.RouteRequest) string { return r.Client }},
		{name: "METHOD", value: func(r caisson.RouteRequest) string { return r.Method }},
		{name: "PATH", value: func(r caisson.RouteRequest) string { return r.Path }},
		{name: "STATUS", value: func(r caisson.RouteRequest) string { return strconv.Itoa(r.Status) }},
		{name: "BYTES", value: func(r caisson.RouteRequest) string { return r.Bytes.String() }},
		{name: "TIME TAKEN", value: func(r caisson.RouteRequest) string { return time.Duration(r.Duration).Round(time.Millisecond).String() }},
	})(api.RouteLog(ctx, c.Route))
}

// routeRmCmd removes routes.
type routeRmCmd struct {
	Routes []string `arg:"" name:"route" help:"Ids or names." complete:"route"`
}

func (c *routeRmCmd) Help() string {
	return examples("caisson route rm app", "caisson route rm $(caisson route ls -q)")
}

func (c *routeRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Routes, api.RemoveRoute)
}
