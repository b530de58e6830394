package caisson

import (
	"context"
	"time"
)

// RoutePrefix is the prefix of the IDs of routes.
const RoutePrefix = "rt"

// A Route leads requests from outside to a port of a sandbox. The ingress, which serves routes, is off unless it is configured.
type Route struct {
	ID        ID        `json:"id"`
	Account   string    `json:"account"`
	Name      string    `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,63}$" doc:"Unique within the account; may be used instead of the id"`
	Spec      RouteSpec `json:"spec"`
	URL       string    `json:"url,omitempty" doc:"Where the route is served; absent if no ingress is configured"`
	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"updatedAt"`
}

// A RouteSpec contains the properties of a route that clients choose. At least one of Host and Path is required.
type RouteSpec struct {
	Host    string   `json:"host,omitempty" maxLength:"253" doc:"Host name of the requests; absent: the ingress's own domain. A token may choose NAME.DOMAIN; the local administrator any name"`
	Path    string   `json:"path,omitempty" maxLength:"512" doc:"Prefix of the path, in whole segments; absent: every path. The longest one wins"`
	Sandbox string   `json:"sandbox" maxLength:"128" doc:"Id or name of the sandbox; a route has the id"`
	Port    int      `json:"port" minimum:"1" maximum:"65535" doc:"TCP port inside"`
	Methods []string `json:"methods,omitempty" maxItems:"16" doc:"Allowed methods; absent: all"`
	// StripPrefix means that Path is removed from the beginning of the path of requests to the sandbox.
	StripPrefix     bool          `json:"stripPrefix,omitempty" doc:"Remove path from the path that the sandbox sees"`
	Auth            RouteAuth     `json:"auth" doc:"Who may use the route"`
	Resume          bool          `json:"resume,omitempty" doc:"A request wakes or resumes the sandbox if it is suspended or paused"`
	Timeout         Duration      `json:"timeout,omitempty" doc:"Time until the answer begins; absent: one minute"`
	IdleTimeout     Duration      `json:"idleTimeout,omitempty" doc:"Time without a byte in either direction, after which a request or WebSocket ends; absent: ten minutes"`
	MaxBody         Size          `json:"maxBody,omitempty" doc:"Maximum size of a request's body; absent: 256 MiB"`
	CORS            *RouteCORS    `json:"cors,omitempty" doc:"Access for pages of other origins; absent: what the sandbox answers"`
	Limits          RouteLimits   `json:"limits,omitzero"`
	Headers         *RouteHeaders `json:"headers,omitempty" doc:"Changes to the header of requests"`
	ResponseHeaders *RouteHeaders `json:"responseHeaders,omitempty" doc:"Changes to the header of answers"`
}

// The kinds of authentication of a route.
const (
	RouteAuthNone   = "none"
	RouteAuthBearer = "bearer"
	RouteAuthBasic  = "basic"
	RouteAuthSigned = "signed"
)

// A RouteAuth defines how clients authenticate to use a route.
type RouteAuth struct {
	Kind string `json:"kind" enum:"none,bearer,basic,signed" doc:"signed: anyone with a URL that was signed for the route"`
	// Hashes are SHA-256 hashes in hexadecimal.
	Hashes []string `json:"hashes,omitempty" maxItems:"16" doc:"SHA-256, in hexadecimal, of each bearer token, or of each user:password of basic; they should be random"`
}

// A RouteCORS allows pages of other origins to use a route. The ingress answers preflight requests itself.
type RouteCORS struct {
	Origins     []string `json:"origins" minItems:"1" maxItems:"32" doc:"Origins such as https://app.example.com, or *, which excludes credentials"`
	Methods     []string `json:"methods,omitempty" maxItems:"16" doc:"Absent: GET, HEAD and POST"`
	Headers     []string `json:"headers,omitempty" maxItems:"32" doc:"Header fields of requests, besides those that are always allowed"`
	Credentials bool     `json:"credentials,omitempty"` // requests of these pages may contain cookies and other credentials
	MaxAge      Duration `json:"maxAge,omitempty" doc:"How long a browser may keep the answer"`
}

// RouteLimits bound the use of a route.
type RouteLimits struct {
	Client      RouteRate `json:"client,omitzero" doc:"Rate of each client; absent: 200 requests per second, 1000 at once"`
	Total       RouteRate `json:"total,omitzero" doc:"Rate of all clients; absent: none"`
	MaxRequests int       `json:"maxRequests,omitempty" minimum:"0" maximum:"4096" doc:"Requests and WebSockets under way; absent: 256"`
	// MaxClient is the maximum number of requests and WebSockets of one client that are in progress; 0 means 64.
	MaxClient int `json:"maxClientRequests,omitempty" minimum:"0" maximum:"4096" doc:"Requests of each client at the same time; absent: 64"`
}

// A RouteRate limits requests. The zero value means the ingress's default rate for one client, and no limit for all together.
type RouteRate struct {
	PerSecond float64 `json:"perSecond,omitempty" minimum:"0" maximum:"1000000"` // requests per second in the long run
	Burst     int     `json:"burst,omitempty" minimum:"0" maximum:"1000000"`     // requests at once
}

// RouteHeaders are changes to the header of the requests, or of the responses, of a route.
type RouteHeaders struct {
	Set   map[string]string `json:"set,omitempty"`                 // new values, by the name of the field
	Strip []string          `json:"strip,omitempty" maxItems:"32"` // names of fields to remove
}

// A SignRequest is the input of [Routes.SignURL]. Exactly one of Route and Sandbox is required.
type SignRequest struct {
	Route   string   `json:"route,omitempty" maxLength:"128" doc:"Id or name of a route whose auth is signed"`
	Sandbox string   `json:"sandbox,omitempty" maxLength:"128" doc:"Id or name of a sandbox"`
	Port    int      `json:"port,omitempty" minimum:"0" maximum:"65535" doc:"TCP port of the sandbox"`
	Path    string   `json:"path,omitempty" maxLength:"2048" doc:"Path, with query, that the URL leads to"`
	TTL     Duration `json:"ttl,omitempty" doc:"How long the URL can be used; absent: one hour, at most 30 days"`
	Resume  bool     `json:"resume,omitempty" doc:"A request wakes or resumes the sandbox"`
}

// A SignedURL is a URL whose holder may use a port of a sandbox.
type SignedURL struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// A RouteRequest is an entry of a route's log of requests. Method and Path come from outside; they are one line of visible text.
type RouteRequest struct {
	At       time.Time `json:"at"` // when the request arrived
	Client   string    `json:"client" doc:"Address of the client"`
	Method   string    `json:"method"`
	Path     string    `json:"path" doc:"Without the query"`
	Status   int       `json:"status"`   // HTTP status; 499 if the client left or the request was cut off before the answer
	Duration Duration  `json:"duration"` // from the arrival of the request to the end of the answer
	Bytes    Size      `json:"bytes" doc:"Size of the answer's body"`
}

// Routes is the service that manages routes. All methods are safe for concurrent use, and act for the account of the
// [Caller] in ctx. ref is the id or name of a route.
type Routes interface {
	ListRoutes(ctx context.Context, f Filter) (page []*Route, more bool, err error)
	// PutRoute adds or replaces the route of that name. When it returns, requests are served by the new spec. Conflict if
	// another route has the same host and path, or if another account has routes of that host.
	PutRoute(ctx context.Context, name string, spec RouteSpec) (*Route, error)
	GetRoute(ctx context.Context, ref string) (*Route, error)
	// RemoveRoute removes a route and ends its requests.
	RemoveRoute(ctx context.Context, ref string) error
	// SignURL returns a URL that gives its holder access to a port of a sandbox of the caller's account, or to a route.
	// Conflict if no ingress is configured.
	SignURL(ctx context.Context, req SignRequest) (*SignedURL, error)
	// RouteLog returns recent requests of a route, the newest last. The log is in memory and bounded, so entries may be missing.
	RouteLog(ctx context.Context, ref string) ([]RouteRequest, error)
}

// An IngressConfig is the part of the settings of the wire process with which it serves routes.
type IngressConfig struct {
	Domain string `json:"domain"` // domain of the ingress; routes and signed URLs use it and hosts below it
	// Key is the public key (Ed25519) with which the tokens of signed URLs are verified.
	Key    []byte         `json:"key"`
	Routes []IngressRoute `json:"routes"`
	// Certificate and CertificateKey are in PEM. If they are empty, the ingress serves HTTP without TLS.
	Certificate    string `json:"certificate,omitempty"`
	CertificateKey string `json:"certificateKey,omitempty"`
}

// An IngressRoute is the part of a route that the wire process gets.
type IngressRoute struct {
	ID   ID        `json:"id"`
	Spec RouteSpec `json:"spec"`
}

// An IngressUse reports to the daemon that the ingress has passed requests to a sandbox.
type IngressUse struct {
	Sandbox ID   `json:"sandbox"`
	Active  bool `json:"active,omitempty"` // at least one of the requests is still in progress
}

// An IngressDial is the wire process's request to the daemon for a connection to a port of a sandbox. It names either a route or
// a signed token, from which the daemon determines the sandbox, the port and whether the sandbox is resumed.
type IngressDial struct {
	Route ID     `json:"route,omitempty"`
	Token string `json:"token,omitempty"`
}
