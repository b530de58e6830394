package wire

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

// Limits on the requests of the ingress to the engine for connections to sandboxes: the number that may be unanswered at a time.
// The wire process enforces them, and refuses further requests. A request may stay unanswered until its sandbox is resumed.
const (
	maxDials    = 256  // for one route, or for one sandbox if a signed URL without a route is used
	maxAllDials = 2048 // for all routes and sandboxes together
)

// dialTimeout bounds how long a connection may wait for its sandbox.
const dialTimeout = 90 * time.Second

// maxDialBody bounds the token of a signed URL in a request for a connection, in bytes.
const maxDialBody = 512

func newDialLimiter() *limiter { return newLimiter(maxDials, maxAllDials) }

// dialKey returns the key under which a request for a connection counts against maxDials: the id of the route or, without one,
// the id of the route or sandbox in the token.
func dialKey(d *caisson.IngressDial) caisson.ID {
	if d.Route != "" {
		return d.Route
	}
	_, rest, _ := strings.Cut(d.Token, ".")
	id, _, _ := strings.Cut(rest, ".")
	return caisson.ID(id)
}

// dial makes the engine connect to a sandbox. It is used in the wire process. The request counts in slots until the engine has
// answered it, even if ctx ends before.
func (f *feed) dial(ctx context.Context, slots *limiter, d caisson.IngressDial) (net.Conn, error) {
	if len(d.Token) > maxDialBody {
		return nil, caisson.Errorf(caisson.Invalid, "the token is too long")
	}
	key := dialKey(&d)
	a, err := f.countedCall(ctx, slots, key, feedMessage{Dial: &d}, "too many requests wait for sandboxes; try again")
	if err != nil {
		return nil, err
	}
	slots.release(key)
	return a.conn()
}

// startDial answers a request for a connection in the background. It returns false if more requests are unanswered than the wire
// process may send.
func (s *processState) startDial(ctx context.Context, conn *net.UnixConn, msg feedMessage, background func(func())) bool {
	if len(msg.Dial.Route) > idSize || len(msg.Dial.Token) > maxDialBody {
		return false
	}
	return s.respond(conn, s.pendingDials, dialKey(msg.Dial), background, func() (feedAnswer, *os.File, func(), error) {
		file, err := s.dial(ctx, *msg.Dial)
		if err != nil && caisson.KindOf(err) == caisson.Internal && ctx.Err() == nil {
			s.m.log.ErrorContext(ctx, "the ingress could not be connected to a sandbox", "route", msg.Dial.Route, "err", err)
		}
		return feedAnswer{N: msg.N, Stream: true}, file, nil, err
	})
}

// dial returns a connection to a sandbox, which it gets from Handlers.Dial.
func (s *processState) dial(ctx context.Context, d caisson.IngressDial) (*os.File, error) {
	if s.m.cfg.Ingress == nil || s.m.handlers.Dial == nil {
		return nil, caisson.Errorf(caisson.Denied, "this daemon serves no routes")
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return s.m.handlers.Dial(ctx, d)
}

// serveIngress sends a new process the socket on which it serves routes. The process has received the routes before, with the
// settings.
func (s *processState) serveIngress(ctx context.Context) error {
	if s.m.cfg.Ingress == nil {
		return nil
	}
	r, err := s.link.call(ctx, request{op: opIngress}, nil, s.m.cfg.Ingress)
	if err == nil {
		err = r.err()
	}
	return err
}

// DropSandbox closes the connections of the ingress to a sandbox. When it returns, no connection that was requested before the
// call is in use or will be used. It waits for the wire process, and does nothing if there is none.
func (m *Manager) DropSandbox(ctx context.Context, id caisson.ID) error {
	m.mu.Lock()
	l := m.link
	m.mu.Unlock()
	if l == nil || m.cfg.Ingress == nil {
		return nil
	}
	r, err := l.call(ctx, request{op: opDrop}, dropBody{id})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return nil // the process was killed, and its connections with it
	}
	return r.err()
}

// A routeRequest is an entry for the log of a route: one request to the route.
type routeRequest struct {
	Route caisson.ID           `json:"route"`
	Entry caisson.RouteRequest `json:"entry"`
}

// Limits on the entries that the wire process sends to the engine for the logs of routes, in batches.
const (
	maxRequestBatch = 64                     // entries in a batch, of all routes
	batchInterval   = 200 * time.Millisecond // time for which entries are collected in a batch before it is sent
)

// An accessLog sends log entries of requests to routes to the engine, in batches. Entries that do not fit into a batch are
// dropped. Safe for concurrent use.
type accessLog struct {
	send func(list []routeRequest) // sends a batch to the engine

	mu    sync.Mutex
	list  []routeRequest // entries that were not sent yet; guarded by mu
	timer *time.Timer    // sends list; nil if there is nothing to send; guarded by mu
}

func newAccessLog(f *feed) *accessLog {
	return &accessLog{send: func(list []routeRequest) { f.send(feedMessage{Requests: list}) }}
}

// add adds an entry to the current batch, or drops it if the batch is full.
func (l *accessLog) add(route caisson.ID, e caisson.RouteRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) >= maxRequestBatch {
		return
	}
	l.list = append(l.list, routeRequest{route, e})
	if l.timer == nil {
		l.timer = time.AfterFunc(batchInterval, l.flush)
	}
}

// flush sends the current batch.
func (l *accessLog) flush() {
	l.mu.Lock()
	list := l.list
	l.list, l.timer = nil, nil
	l.mu.Unlock()
	l.send(list)
}

// maxUses is the maximum number of sandboxes in a report of their use.
const maxUses = 256

// reportUses reports to the engine which sandboxes the ingress passes requests to.
func (f *feed) reportUses(list []caisson.IngressUse) {
	for part := range slices.Chunk(list, maxUses) {
		f.send(feedMessage{Uses: part}) // an error is ignored: the connection has ended
	}
}

// passRequests passes log entries of requests to routes to Handlers.Requested.
func (s *processState) passRequests(list []routeRequest) {
	if s.m.handlers.Requested == nil {
		return
	}
	for _, r := range list {
		s.m.handlers.Requested(r.Route, r.Entry)
	}
}
