// Package httpapi serves Caisson's API: JSON over HTTP below /api/v1, described by an OpenAPI document that is generated from
// the types here, with server-sent events for streams and a WebSocket for interactive exec.
//
// One [API] serves two kinds of listeners. [API.Local] is for the unix socket, whose permissions are the authentication:
// callers have full rights and may pass descriptors of host directories. [API.Remote] is for TCP: every request but /healthz
// needs a bearer token and acts for the token's account. Neither can be used by web pages of other sites: a request with the
// Origin of another host is refused and no CORS header is ever sent. A name that an attacker points at a loopback listener (DNS
// rebinding) gains nothing, because a browser holds no token and tokens are never cookies. A client without a token can neither
// occupy the connections of a listener of [Limit], nor try many tokens.
//
// Huma binds and validates requests and writes the OpenAPI document; only router.go, handlers.go, validation.go and the
// declarations of routes use it.
package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
)

// Config contains the dependencies of an API. All fields but DefaultAgent are required.
type Config struct {
	caisson.API
	// DefaultAgent is the id of the agent for chat requests that name no agent; "" means "caisson".
	DefaultAgent string
	// Answers stores the answers to requests with an Idempotency-Key.
	Answers caisson.AnswerStore
	// FindToken returns the unexpired token whose secret has this SHA-256 hash; Unauthed if there is none.
	FindToken func(ctx context.Context, hash [32]byte) (*caisson.Token, error)
	// FindAccount returns the account of that name; NotFound if there is none.
	FindAccount func(ctx context.Context, name string) (*caisson.Account, error)
	Log         *slog.Logger
}

// An API serves the requests of the HTTP API. It is safe for concurrent use.
type API struct {
	cfg     Config
	router  *router
	handles *handleTable
	calls   *tokenCalls        // the requests with a token that are being served
	execs   *atomic.Int64      // number of processes that clients have started and wait for
	close   context.CancelFunc // cancels the contexts of streamed responses and exec sessions
}

// New returns an API with these dependencies. It returns an error if a required one is missing.
func New(cfg Config) (*API, error) {
	if err := cfg.API.Validate(); err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	if cfg.Answers == nil || cfg.FindToken == nil || cfg.FindAccount == nil || cfg.Log == nil {
		return nil, errors.New("httpapi: Answers, FindToken, FindAccount and Log are required")
	}
	cfg.Log = cfg.Log.With("component", "httpapi")
	a := &API{cfg: cfg, handles: newHandleTable(), calls: newTokenCalls(), execs: new(atomic.Int64)}
	var open context.Context
	open, a.close = context.WithCancel(context.Background())
	a.router = newRouter(open, cfg.Log)
	once := idempotency{answers: cfg.Answers, log: cfg.Log}

	sandboxRoutes{cfg.Sandboxes, once, a.handles}.register(a.router)
	snapshotRoutes{cfg.Snapshots, once}.register(a.router)
	processRoutes{cfg.Processes, a.execs}.register(a.router)
	execRoutes{cfg.Processes, a.execs, cfg.Log}.register(a.router)
	serviceRoutes{cfg.Services}.register(a.router)
	terminalRoutes{cfg.Terminals, cfg.Log}.register(a.router)
	connectionRoutes{cfg.Connections}.register(a.router)
	fileRoutes{cfg.Files}.register(a.router)
	treeRoutes{cfg.Files}.register(a.router)
	templateRoutes{cfg.Templates}.register(a.router)
	imageRoutes{cfg.Images, a.handles}.register(a.router)
	eventRoutes{cfg.Events}.register(a.router)
	tokenRoutes{cfg.Tokens, a.calls}.register(a.router)
	policyRoutes{cfg.Policies}.register(a.router)
	credentialRoutes{cfg.Credentials}.register(a.router)
	auditRoutes{cfg.Audit}.register(a.router)
	usageRoutes{cfg.Ledger}.register(a.router)
	modelRoutes{cfg.Models}.register(a.router)
	gatewayRoutes{cfg.GatewayRuns}.register(a.router)
	daemonRoutes{cfg.Daemon, a.execs}.register(a.router)
	handleRoutes{a.handles}.register(a.router)
	agentRoutes{cfg.Agents}.register(a.router)
	runRoutes{cfg.Runs, once, a.handles}.register(a.router)
	sessionRoutes{cfg.Runs}.register(a.router)
	workspaceRoutes{cfg.Workspaces, once, a.handles}.register(a.router)
	repoRoutes{cfg.Repos, once}.register(a.router)
	deliveryRoutes{cfg.Repos}.register(a.router)
	volumeRoutes{cfg.Volumes, once}.register(a.router)
	ingressRoutes{cfg.Routes}.register(a.router)
	sshRoutes{cfg.SSH}.register(a.router)
	chatRoutes{cfg.Agents, cfg.Runs, cmp.Or(cfg.DefaultAgent, defaultAgent)}.register(a.router)
	a.router.finish()
	return a, nil
}

// OpenAPI returns the OpenAPI 3.1 document that describes the API, as indented JSON.
func (a *API) OpenAPI() ([]byte, error) { return a.router.document() }

// Close ends streamed responses and exec sessions, whose processes are killed, and closes descriptors that no request has taken.
// Call it before http.Server.Shutdown, which waits for responses and does not track exec sessions. Further calls have no effect.
func (a *API) Close() error {
	a.close()
	a.handles.closeAll()
	return nil
}

// Limits of [Server].
const (
	headerTimeout = 10 * time.Second // time in which a client must send the headers of a request
	idleTimeout   = 2 * time.Minute  // time that a connection may be open without a request
	headerBytes   = 64 << 10         // maximum size of the headers of a request in bytes
)

// Server returns a server for h that limits the resources of a client: the time and size of headers, and the time of idle
// connections. The handlers of an [API] limit the time of bodies, and listeners from [Limit] the time until a valid token
// arrives. Only HTTP/1.1 is enabled, because upgrades need it.
func Server(h http.Handler, log *slog.Logger) *http.Server {
	s := &http.Server{
		Handler:           h,
		ConnContext:       withConn,
		ConnState:         connState,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // logs failed handshakes of untrusted clients
		Protocols:         new(http.Protocols),
	}
	s.Protocols.SetHTTP1(true)
	return s
}
