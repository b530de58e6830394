package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
)

// DefaultUID is the user and group of the wire process if Config.UID is 0. No other process may use it.
const DefaultUID = 0x6f010000

// Config configures a Manager.
type Config struct {
	Exe string // path of a static binary that calls Main if IsWire returns true; required
	UID uint32 // user and group of the wire process; 0 is DefaultUID
	// NetNS opens the network namespace of a running sandbox; the Manager uses it after the wire process has died. It must be
	// safe for concurrent use, and must not call the Manager. Required.
	NetNS func(id caisson.ID) (*os.File, error)
	// Listen is a listening TCP socket on which the wire process serves the model gateway to other machines. If nil, other
	// machines are not served. The caller closes Listen after Run has returned.
	Listen *os.File
	// Ingress is a listening TCP socket on which the wire process serves routes. If nil, no routes are served. The caller
	// closes Ingress after Run has returned.
	Ingress *os.File
	// Ledger records model calls; nil: there are no model calls.
	Ledger Ledger
	// Record opens the file to which a sandbox's prompts and answers are appended. It is called for sandboxes whose spec requests
	// it.
	Record func(id caisson.ID) (*os.File, error)
	Log    *slog.Logger // required
}

// Handlers are the functions of the daemon that the Manager calls. They are passed to Run and not to New, because their
// implementations depend on the Manager.
type Handlers struct {
	// Settings returns the settings of the wire process other than the specs of wires. It is called when a process starts, and by
	// Refresh. Required.
	Settings func(ctx context.Context) (*caisson.GatewayConfig, error)
	// Runs returns the gateway runs, which are served on Config.Listen; required if Config.Listen is set. It is called when a
	// process starts. Its result must include a change before the change is passed to ChangeRuns.
	Runs func(ctx context.Context) ([]*caisson.GatewayRun, error)
	// Decided receives the decisions made for a guest. Lists are bounded, but their content comes from a process that reads
	// untrusted data. Decided must not block for long.
	Decided func(g caisson.Guest, list []caisson.Decision)
	// Tool calls a function of the engine on behalf of an agent. ctx has the guest whose sandbox sent the request. If Tool is
	// nil, there are no functions. in is untrusted, and the result must fit into a packet.
	Tool func(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error)
	// Stream opens the stream that the guest in ctx requests, whether or not its sandbox serves a run. If Stream is nil, there
	// are no streams. in is untrusted. conn is one end of a pair of unix stream sockets (SOCK_STREAM): the wire process receives
	// it, and the Manager closes it. The stream counts against the limits until done is closed, which happens when the job at the
	// other end has exited. The job must exit when its peer closes and when ctx ends, which is when the wire is detached or the
	// wire process has exited; that may be after Run has returned.
	Stream func(ctx context.Context, in json.RawMessage) (conn *os.File, done <-chan struct{}, err error)
	// Dial connects to a port of a sandbox for the ingress. If nil, such connections are refused. d is untrusted, because the
	// wire process takes it from a request from outside. The Manager closes the connection once the wire process has received it.
	Dial func(ctx context.Context, d caisson.IngressDial) (*os.File, error)
	// Requested receives log entries of requests to routes. If nil, entries are discarded. Their content is untrusted. Requested
	// must not block.
	Requested func(route caisson.ID, e caisson.RouteRequest)
	// Used receives the sandboxes to which the ingress passes requests. If nil, the reports are discarded. Their content is
	// untrusted. Used must not block.
	Used func(list []caisson.IngressUse)
}

// A Ledger keeps the budgets and the journals to which wire processes write model calls. It must be safe for concurrent use and
// must not call the Manager.
type Ledger interface {
	// Begin creates a journal and returns its file, which the caller closes.
	Begin(ctx context.Context) (caisson.ID, *os.File, error)
	// Lessor returns the lessor for the process that writes the journal. The arguments of its methods are untrusted.
	Lessor(journal caisson.ID) caisson.Lessor
	// JournalGrew notifies the ledger that a journal has new rows. It must not block.
	JournalGrew()
	// Finish ends a journal. Nothing is written to it any more.
	Finish(ctx context.Context, journal caisson.ID) error
}

// maxDetached bounds how many detached wires are recorded, so that their last decisions are still passed to Handlers.Decided.
const maxDetached = 1024

// A Manager is the engine's end of all wires. Its Run supervises the wire process.
type Manager struct {
	cfg      Config
	handlers Handlers // set by Run, before a wire process is started
	log      *slog.Logger

	mu          sync.Mutex
	wires       map[caisson.ID]*wireState           // by sandbox; guarded by mu
	detached    *lru.Map[caisson.ID, caisson.Guest] // guests of detached wires; guarded by mu
	streams     *streams                            // counts the streams whose job at the other end is running
	link        *link                               // link to the current wire process; nil while there is none; guarded by mu
	up          chan struct{}                       // closed while link is not nil; guarded by mu
	running     bool                                // Run was called; guarded by mu
	confinement Confinement                         // confinement of the latest wire process; guarded by mu

	refreshes uint64 // number of calls of Refresh; guarded by mu

	// settingsMu is held while the result of Handlers.Settings is got and sent to a process, so that the last one sent is the
	// newest. Locked before mu.
	settingsMu sync.Mutex
	// runsMu is held while a process receives changes of the gateway runs, so that they arrive in order. Locked before mu.
	runsMu sync.Mutex
}

// A wireState is the Manager's state of one wire. Operations on the wire hold the mutex of its wireState. Manager.mu may be
// locked while that mutex is held, but not the other way round.
type wireState struct {
	guest         caisson.Guest // the guest that the wire serves; guarded by Manager.mu
	previousGuest caisson.Guest // the guest that the wire served before; guarded by Manager.mu

	ctx    context.Context    // ends when the wire is detached
	cancel context.CancelFunc // cancels ctx

	mu       sync.Mutex
	link     *link            // link to the process that holds the TAP; nil if none does; guarded by mu
	spec     caisson.WireSpec // the current spec of the wire; guarded by mu
	detached bool             // the wire is detached, or attaching it failed; guarded by mu
}

func newWireState(g caisson.Guest) *wireState {
	a := &wireState{guest: g}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

var _ caisson.Wires = (*Manager)(nil)

// A Supervisor keeps a wire process running and informed; [Manager] implements it.
type Supervisor interface {
	Run(ctx context.Context, handlers Handlers) error
	// Refresh sends the wire process the settings that Handlers.Settings returns. It must be called after they have changed.
	Refresh(ctx context.Context) error
	// ChangeRuns sends the wire process a change of the runs on other machines.
	ChangeRuns(ctx context.Context, change caisson.GatewayRunChange) error
	// Forget makes the wire process return its leases of the budgets with these keys, whose limits have changed.
	Forget(ctx context.Context, budgets ...string) error
	// DropSandbox closes the connections of the ingress to a sandbox.
	DropSandbox(ctx context.Context, id caisson.ID) error
}

var _ Supervisor = (*Manager)(nil)

// New returns a Manager. Until Run is called there is no wire process, and Attach and Reattach return Unavailable.
func New(cfg Config) (*Manager, error) {
	switch {
	case cfg.Exe == "":
		return nil, caisson.Invalidf("exe", "the binary of the wire process is required")
	case cfg.NetNS == nil:
		return nil, caisson.Invalidf("netNS", "a function that opens the network namespaces of sandboxes is required")
	case cfg.Log == nil:
		return nil, caisson.Invalidf("log", "a logger is required")
	case cfg.UID > 1<<31-1:
		return nil, caisson.Invalidf("uid", "%d is not a user id", cfg.UID)
	}
	if cfg.UID == 0 {
		cfg.UID = DefaultUID
	}
	if _, err := os.Stat(cfg.Exe); err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "cannot find the binary of the wire process")
	}
	log := cfg.Log.With("component", "wire")
	return &Manager{
		cfg:   cfg,
		log:   log,
		wires: map[caisson.ID]*wireState{}, detached: lru.New[caisson.ID, caisson.Guest](maxDetached),
		streams: newStreams(), up: make(chan struct{}),
	}, nil
}

// setGuest records the guest that the wire serves from now on. mu is Manager.mu.
func (a *wireState) setGuest(mu *sync.Mutex, g caisson.Guest) {
	mu.Lock()
	defer mu.Unlock()
	if a.guest != g {
		a.previousGuest, a.guest = a.guest, g
	}
}

// guest returns the guest that the wire of sandbox id serves, or the guest before it if trace is the trace id of that guest's
// attempt. known is also true for wires that were detached recently.
func (s *processState) guest(id caisson.ID, trace string) (g caisson.Guest, known bool) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	g, known = m.detached.Get(id)
	if a := m.wires[id]; a != nil {
		g, known = a.guest, true
		if trace == a.previousGuest.Trace && trace != g.Trace && a.previousGuest.Account != "" {
			g = a.previousGuest
		}
	}
	return g, known
}

// Recent returns the recent refusals of a wire, the latest first. Their content is untrusted.
func (m *Manager) Recent(ctx context.Context, id caisson.ID) ([]caisson.Decision, error) {
	r, err := m.callWire(ctx, request{op: opRecent, id: id})
	if err != nil {
		return nil, err
	}
	var list []caisson.Decision
	if err := unmarshal(r.body, &list); err != nil {
		return nil, errUnavailable(err)
	}
	return list, nil
}

// Network returns the traffic counters of the sandbox's wire. It returns NotFound if the sandbox has no wire, and Unavailable
// while the wire process restarts.
func (m *Manager) Network(ctx context.Context, id caisson.ID) (*caisson.NetworkStats, error) {
	r, err := m.callWire(ctx, request{op: opStats, id: id})
	if err != nil {
		return nil, err
	}
	var s Stats
	if err := unmarshal(r.body, &s); err != nil {
		return nil, errUnavailable(err)
	}
	return &caisson.NetworkStats{
		BytesOut: int64(s.BytesOut), BytesIn: int64(s.BytesIn), Dropped: int64(s.DroppedOut),
		Allowed: s.Flows.Allowed, Denied: s.Flows.Denied, Limited: s.Flows.Limited, Open: s.Flows.Open,
	}, nil
}

// callWire sends the wire process a request about one wire.
func (m *Manager) callWire(ctx context.Context, req request) (reply, error) {
	m.mu.Lock()
	l, known := m.link, m.wires[req.id] != nil
	m.mu.Unlock()
	if !known {
		return reply{}, caisson.Errorf(caisson.NotFound, "sandbox %.40q has no wire", req.id)
	}
	if l == nil {
		return reply{}, errUnavailable(nil)
	}
	r, err := l.call(ctx, req, nil)
	if err != nil {
		return reply{}, errUnavailable(err)
	}
	return r, r.err()
}

// Confinement returns how the wire process is confined, for caisson doctor. It waits for the process if it is starting.
func (m *Manager) Confinement(ctx context.Context) (Confinement, error) {
	if _, err := m.awaitLink(ctx); err != nil {
		return Confinement{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.confinement, nil
}

// wireState returns the state of the wire of sandbox id. If there is none, it creates one, returned locked with created true.
func (m *Manager) wireState(id caisson.ID, g caisson.Guest) (a *wireState, created bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.wires[id]; a != nil {
		return a, false
	}
	a = newWireState(g)
	a.mu.Lock() // not contended: a is not published yet
	m.wires[id] = a
	return a, true
}

// removeWireState removes a, the state of the wire of sandbox id, and marks it as detached. The caller must hold a.mu.
func (m *Manager) removeWireState(id caisson.ID, a *wireState) {
	a.detached = true
	a.cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.wires, id)
	m.detached.Put(id, a.guest)
}

// awaitLink returns the link to the wire process. It waits for up to replyTimeout while the process is starting.
func (m *Manager) awaitLink(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	for {
		m.mu.Lock()
		l, up := m.link, m.up
		m.mu.Unlock()
		if l != nil {
			return l, nil
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, errUnavailable(ctx.Err())
		}
	}
}

// validateSandboxID returns an error unless id is the id of a sandbox.
func validateSandboxID(id caisson.ID) error {
	_, err := caisson.ParseID(caisson.SandboxPrefix, string(id))
	return err
}

// errUnavailable returns an error of kind Unavailable: there is no wire process, or it did not answer correctly and was killed.
// cause may be nil.
func errUnavailable(cause error) error {
	const msg = "the network of sandboxes is restarting; try again"
	if cause == nil {
		return caisson.Errorf(caisson.Unavailable, msg)
	}
	return caisson.Wrap(cause, caisson.Unavailable, msg)
}

// err returns the status of a reply as an error whose text users may see; nil if the request succeeded.
func (r reply) err() error {
	switch r.status {
	case statusOK:
		return nil
	case statusUnknown:
		return caisson.Errorf(caisson.NotFound, "the sandbox's wire is down")
	case statusExists:
		return caisson.Errorf(caisson.Conflict, "the sandbox has a wire already")
	case statusFull:
		return caisson.Errorf(caisson.Exhausted, "there are %d wires, and no room for more; remove a sandbox", maxWires)
	default:
		return caisson.Wrap(fmt.Errorf("wire process: %q", r.body), caisson.Internal, "the sandbox's wire returned an error")
	}
}
