package routes

import (
	"context"
	"crypto/ed25519"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/wire/ingress/signedurl"
)

// A Connector makes the connections to sandboxes that the wire process requests. The wire process is not trusted: a Connector
// connects only to the sandbox and port of a stored route or of a valid token.
type Connector struct {
	enabled bool              // whether an ingress is configured
	key     ed25519.PublicKey // verifies the tokens of signed URLs
	store   caisson.Table[caisson.Route]
	owner   func(ctx context.Context, sandbox caisson.ID) (account string, err error) // returns the account of a sandbox
	dialer  caisson.Dialer                                                            // connects to servers in sandboxes
	wire    Wire                                                                      // sends the routes to the wire process
	waker   *waker                                                                    // wakes and resumes sandboxes for requests
	// used records that the wire process has passed requests to a sandbox; active reports whether a request is in progress.
	used func(sandbox caisson.ID, active bool)

	mu sync.Mutex
	// dials contains the calls of Dial in progress, by sandbox, each as a flag that Disconnect sets; guarded by mu
	dials map[caisson.ID]map[*bool]struct{}
	// dialCounts contains the number of calls of Dial in progress, by account; guarded by mu
	dialCounts map[string]int
	// connected contains the sandboxes to which the wire process may have connections; guarded by mu
	connected map[caisson.ID]struct{}
}

// newConnector returns a Connector that has no connections yet. Operations that wake or resume sandboxes for requests have the
// context of background.
func newConnector(cfg Config, background *background.Group) *Connector {
	return &Connector{
		enabled: cfg.Settings.Listen != "", key: cfg.Key.Public().(ed25519.PublicKey), store: cfg.Store, owner: cfg.Owner,
		dialer: cfg.Dialer, wire: cfg.Wire, waker: &waker{sandboxes: cfg.Sandboxes, background: background}, used: cfg.Used,
		dials: map[caisson.ID]map[*bool]struct{}{}, connected: map[caisson.ID]struct{}{},
		dialCounts: map[string]int{},
	}
}

// A target is the destination of a connection.
type target struct {
	account string     // account of the sandbox
	sandbox caisson.ID // sandbox to connect to
	port    int        // port in the sandbox to connect to
	resume  bool       // whether the sandbox is resumed for the connection if it is suspended or paused
}

// maxTries is how often Dial tries to connect to a sandbox if the sandbox is suspended again during each try.
const maxTries = 5

// Limits of dials. A dial is a call of Dial, which connects to a sandbox. The dials of each account are limited so that slow
// sandboxes do not delay the dials of other accounts.
const (
	maxAccountDials = 512              // maximum number of dials of one account in progress
	connectTime     = 10 * time.Second // timeout for connecting to a running sandbox
)

// Dial connects to the sandbox of a route or token. If the route or token allows it, Dial first resumes the sandbox. Errors:
// Denied and Unauthed if no route or token allows the connection, Unavailable if the sandbox does not run and is not or cannot be
// resumed, Exhausted if too many dials of its account are in progress, NotFound if no process listens on the port.
func (c *Connector) Dial(ctx context.Context, d caisson.IngressDial) (*os.File, error) {
	t, err := c.authorize(ctx, d)
	if err != nil {
		return nil, err
	}
	if !c.enter(t.account) {
		return nil, caisson.Errorf(caisson.Exhausted, "too many requests wait for sandboxes; try again")
	}
	defer c.leave(t.account)
	for range maxTries {
		disconnected, done := c.begin(t.sandbox)
		f, err := c.dial(ctx, t)
		if err == nil && c.finish(t.sandbox, disconnected) {
			c.used(t.sandbox, true) // a use is counted now, because the wire process reports the request only later
			done()
			return f, nil
		}
		done()
		if err == nil {
			f.Close()
			continue
		}
		if caisson.KindOf(err) != caisson.Conflict || ctx.Err() != nil {
			return nil, err
		}
	}
	return nil, caisson.Errorf(caisson.Unavailable, "the sandbox is suspended again and again; try again later")
}

// dial tries once to connect to the target. It returns Conflict if the sandbox was suspended meanwhile.
func (c *Connector) dial(ctx context.Context, t target) (*os.File, error) {
	if err := c.waker.ready(ctx, t); err != nil {
		return nil, err
	}
	connecting, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	f, err := c.dialer.Dial(connecting, t.sandbox, "tcp", strconv.Itoa(t.port))
	if err != nil && connecting.Err() != nil && ctx.Err() == nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "port %d of the sandbox did not accept the connection in time; try again", t.port)
	}
	if caisson.KindOf(err) == caisson.Unavailable && ctx.Err() == nil {
		return nil, caisson.Wrap(err, caisson.NotFound, "no server listens on port %d of the sandbox", t.port)
	}
	return f, err
}

// authorize returns the target of a request for a connection. Returns an error if no route or token allows the connection.
func (c *Connector) authorize(ctx context.Context, d caisson.IngressDial) (target, error) {
	if !c.enabled {
		return target{}, caisson.Errorf(caisson.Denied, "this daemon serves no routes")
	}
	var token signedurl.Token
	if d.Token != "" {
		var err error
		if token, err = signedurl.Verify(c.key, d.Token, time.Now()); err != nil {
			return target{}, err
		}
	}
	if d.Route == "" {
		if token.Sandbox == "" {
			return target{}, errNoRoute
		}
		account, err := c.owner(ctx, token.Sandbox)
		return target{account, token.Sandbox, token.Port, token.Resume}, err
	}
	r, err := c.store.Get(ctx, caisson.AllAccounts(), string(d.Route))
	if caisson.KindOf(err) == caisson.NotFound {
		return target{}, errNoRoute
	}
	if err != nil {
		return target{}, err
	}
	if r.ID != d.Route || r.Spec.Auth.Kind == caisson.RouteAuthSigned && token.Route != r.ID {
		return target{}, errNoRoute
	}
	sandbox, err := caisson.ParseID(caisson.SandboxPrefix, r.Spec.Sandbox)
	return target{r.Account, sandbox, r.Spec.Port, r.Spec.Resume}, err
}

// errNoRoute is the error for a connection that no route allows.
var errNoRoute = caisson.Errorf(caisson.Denied, "no route leads there")

// enter counts a dial of an account, until leave is called. It returns false if the account already has maxAccountDials dials.
func (c *Connector) enter(account string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dialCounts[account] >= maxAccountDials {
		return false
	}
	c.dialCounts[account]++
	return true
}

// leave ends the count of a dial that enter has counted.
func (c *Connector) leave(account string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dialCounts[account]--; c.dialCounts[account] == 0 {
		delete(c.dialCounts, account)
	}
}

// begin records a dial to a sandbox. The caller must call done when the dial has ended. Until then, Disconnect sets
// *disconnected.
func (c *Connector) begin(id caisson.ID) (disconnected *bool, done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	disconnected = new(bool)
	if c.dials[id] == nil {
		c.dials[id] = map[*bool]struct{}{}
	}
	c.dials[id][disconnected] = struct{}{}
	return disconnected, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if delete(c.dials[id], disconnected); len(c.dials[id]) == 0 {
			delete(c.dials, id)
		}
	}
}

// finish records a connection to a sandbox, or returns false if Disconnect was called since begin.
func (c *Connector) finish(id caisson.ID, disconnected *bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *disconnected {
		return false
	}
	c.connected[id] = struct{}{}
	return true
}

// Used receives the reports of the wire process about the sandboxes to which it passes requests. A report about a sandbox to
// which the wire process can have no connection is ignored.
func (c *Connector) Used(list []caisson.IngressUse) {
	for _, u := range list {
		c.mu.Lock()
		_, ok := c.connected[u.Sandbox]
		c.mu.Unlock()
		if ok {
			c.used(u.Sandbox, u.Active)
		}
	}
}

// Disconnect closes all connections of the ingress to a sandbox that is being suspended, paused or stopped. The caller must first
// store the new state of the sandbox, so that no further connections are made.
func (c *Connector) Disconnect(ctx context.Context, id caisson.ID) error {
	c.mu.Lock()
	for disconnected := range c.dials[id] {
		*disconnected = true
	}
	_, connected := c.connected[id]
	delete(c.connected, id)
	c.mu.Unlock()
	if !connected {
		return nil
	}
	return c.wire.DropSandbox(ctx, id)
}

// A waker wakes or resumes sandboxes for requests. Concurrent requests for one sandbox share one operation.
type waker struct {
	sandboxes  func() Sandboxes // returns the core of sandboxes, which gets and resumes them
	background *background.Group
	flights    singleflight.Group // operations in progress, by sandbox
}

// Minimum and maximum of the time between two checks of a sandbox whose state is changing.
const (
	minPause = 5 * time.Millisecond
	maxPause = 200 * time.Millisecond
)

// ready waits until the sandbox of the target runs. If the target allows it, ready resumes the sandbox.
func (w *waker) ready(ctx context.Context, t target) error {
	caller := caisson.WithCaller(ctx, caisson.DaemonCaller(t.account, "request of a route"))
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		sb, err := w.sandboxes().Get(caller, string(t.sandbox))
		if err != nil {
			return err
		}
		switch s := sb.State; {
		case s == caisson.Running:
			return nil
		case s == caisson.Suspended || s == caisson.Paused:
			if !t.resume {
				return caisson.Errorf(caisson.Unavailable, "the sandbox is %s, and the route does not resume it", s)
			}
			if err := w.wake(ctx, t, s); err == nil {
				continue
			} else if caisson.KindOf(err) != caisson.Conflict {
				return caisson.Wrap(err, caisson.Unavailable, "the sandbox cannot be resumed now; try again later")
			}
		case !s.Transient() || s == caisson.Removing:
			return caisson.Errorf(caisson.NotFound, "the sandbox is %s", s)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return caisson.Wrap(ctx.Err(), caisson.Unavailable, "the sandbox was not ready in time; try again later")
		}
	}
}

// wake wakes or resumes a sandbox in the state s. If ctx ends, wake returns, but the operation continues, because other
// requests may wait for it.
func (w *waker) wake(ctx context.Context, t target, s caisson.State) error {
	done := w.flights.DoChan(string(t.sandbox), func() (any, error) {
		own := caisson.WithCaller(w.background.Context(), caisson.DaemonCaller(t.account, "request of a route"))
		var err error
		if s == caisson.Suspended {
			_, err = w.sandboxes().Wake(own, string(t.sandbox))
		} else {
			_, err = w.sandboxes().Resume(own, string(t.sandbox))
		}
		return nil, err
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}
