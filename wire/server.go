package wire

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/wire/dns"
	"github.com/caisson-dev/caisson/wire/flow"
)

// maxWires bounds how many wires one process holds; each needs a descriptor, about four goroutines and memory for a stack.
const maxWires = 4000

// maxDescriptors bounds the descriptors of wires and connections of one process.
const maxDescriptors = 65536

// maxJournal bounds the size of the files to which the process can append, in bytes: journals and recordings.
const maxJournal = 256 << 20

// maxMemoryFile bounds the JSON of a caisson.GatewayConfig or caisson.GatewayRunChange, in bytes.
const maxMemoryFile = 8 << 20

// How long the removal of a wire waits for its model calls to be written to the ledger: detachTimeout while the engine waits,
// which can send no other request meanwhile, and then drainTimeout in the background.
const (
	detachTimeout = 500 * time.Millisecond
	drainTimeout  = 3 * time.Second
)

// A server is the wire process's end of the control connection.
type server struct {
	conn     *net.UnixConn
	feed     *feed
	process  Process // configuration from [Main]
	gateway  Gateway
	hosts    *virtualHosts
	upstream *dns.Upstream
	dialer   flow.Dialer
	bufs     *sync.Pool // read buffers of the TAPs: *[maxFrame]byte

	roots        *x509.CertPool                // authorities that are trusted for providers: of the system and the settings
	rootsLoaded  bool                          // roots has the authorities of the settings; used by serve only
	dialSettings atomic.Pointer[flow.Settings] // settings of dialer; replaced by applySettings

	mu    sync.Mutex
	wires map[caisson.ID]*sandboxWire // by the sandbox's id; guarded by mu; changed by serve only
}

func newServer(conn, feedConn *net.UnixConn, p Process, env Env, descriptors int) (*server, error) {
	s := &server{
		conn: conn, feed: newFeed(feedConn), process: p, roots: env.Roots,
		wires: map[caisson.ID]*sandboxWire{},
		bufs:  &sync.Pool{New: func() any { return new([maxFrame]byte) }},
	}
	s.dialSettings.Store(&flow.Settings{})
	var err error
	if s.upstream, err = dns.NewUpstream(dns.UpstreamConfig{}); err != nil {
		return nil, err
	}
	limited := newLimitedDialer(flow.NewDialer(func() flow.Settings { return *s.dialSettings.Load() }), descriptors)
	s.dialer = limited
	env.Dial, env.Log = s.dial, s.feed.logger()
	env.Lessor = func(journal caisson.ID) caisson.Lessor { return lessor{s.feed, journal} }
	env.Finished = func(journal caisson.ID) { s.feed.send(feedMessage{Journal: journal, Finished: true}) }
	env.Grant = func(ctx context.Context) *caisson.ModelGrant {
		if w := requestWire(ctx); w != nil && w.ctx.Err() == nil {
			return w.spec.Load().Models
		}
		return nil
	}
	env.Record = func(g caisson.Guest) io.Writer {
		if w := s.wire(g.Sandbox); w != nil {
			return w.recorder()
		}
		return nil
	}
	env.Grew = newCoalescer(func() { s.feed.send(feedMessage{Grew: true}) }).trigger
	slots := newToolLimiter()
	env.Tool = func(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error) {
		return s.feed.tool(ctx, slots, name, in)
	}
	streams := newStreamLimiter()
	env.Stream = func(ctx context.Context, in json.RawMessage) (net.Conn, error) {
		return s.feed.requestStream(ctx, streams, in)
	}
	dials := newDialLimiter()
	env.DialSandbox = func(ctx context.Context, d caisson.IngressDial) (net.Conn, error) {
		if err := limited.checkFree(); err != nil {
			return nil, err
		}
		return s.feed.dial(ctx, dials, d)
	}
	env.Requested = newAccessLog(s.feed).add
	env.Used = s.feed.reportUses
	env.Rotate = func() { s.feed.send(feedMessage{Rotate: true}) }
	if s.gateway, err = p.Gateway(env); err != nil {
		return nil, err
	}
	s.hosts = newVirtualHosts(s.gateway.Hosts())
	return s, nil
}

// serve answers requests until the engine closes the connection, which is not an error, and then removes all wires.
func (s *server) serve(c Confinement) error {
	go s.hosts.run()
	go s.feed.run()
	defer s.hosts.close()
	defer func() {
		for _, w := range s.wires {
			w.stop(0, 0)
		}
	}()
	if _, err := s.conn.Write(dataReply(c).encodeAs(opHello, 0)); err != nil {
		return err
	}
	for {
		req, files, err := s.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var r reply
		switch {
		case err == nil:
			r = s.handle(req, files)
		case errors.Is(err, errNoDescriptors) && req.op == opAttach:
			r = reply{status: statusFull}
		case errors.Is(err, errNoDescriptors):
			r = errorReply(err)
		default:
			return err
		}
		if _, err := s.conn.Write(r.encodeAs(req.op, req.seq)); err != nil {
			return err
		}
	}
}

// encodeAs encodes r as the reply to the request of type o with number seq.
func (r reply) encodeAs(o op, seq uint32) []byte {
	r.op, r.seq = o, seq
	return r.encode()
}

// errNoDescriptors reports that the process had no free descriptors for those that came with a request.
var errNoDescriptors = errors.New("the wire process has no free file descriptors")

// receive returns the next request and its descriptors. The engine is trusted, but after a malformed message the two ends are
// out of step, and the process must exit. With errNoDescriptors it returns the request without its descriptors, and the ends
// are still in step.
func (s *server) receive() (_ request, files []*os.File, err error) {
	buf := make([]byte, maxRequest+1)
	oob := make([]byte, unix.CmsgSpace(2*4))
	n, oobn, flags, _, err := s.conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return request{}, nil, err
	}
	defer func() {
		if err != nil {
			closeAll(files...)
			files = nil
		}
	}()
	if oobn > 0 {
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(msgs) != 1 {
			return request{}, nil, fmt.Errorf("%w: control data", errMessage)
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil {
			return request{}, nil, fmt.Errorf("%w: control data", errMessage)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	req, err := decodeRequest(buf[:n])
	if err != nil {
		return request{}, files, err
	}
	// oob has room for two descriptors, so a truncated message with fewer descriptors means that the process had no free one.
	if flags&unix.MSG_CTRUNC != 0 && len(files) < 2 && flags&unix.MSG_TRUNC == 0 {
		return req, files, errNoDescriptors
	}
	if least, most := req.op.descriptors(); flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(files) < least || len(files) > most {
		return request{}, files, fmt.Errorf("%w: descriptors", errMessage)
	}
	return req, files, nil
}

// pollable returns a non-blocking duplicate of f for Go's poller, because a TAP is opened in blocking mode. It closes f.
func pollable(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	f.Close()
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tap"), nil
}

// handle executes a request. It owns files.
func (s *server) handle(req request, files []*os.File) reply {
	w := s.wire(req.id)
	if w == nil && req.op.perWire() && req.op != opAttach {
		closeAll(files...)
		return reply{status: statusUnknown}
	}
	switch req.op {
	case opAttach:
		return s.attach(req, files)
	case opConfigure:
		return s.configure(w, req.body, files)
	case opDetach:
		s.setWire(req.id, nil)
		w.stop(detachTimeout, drainTimeout)
		return reply{}
	case opStats:
		return dataReply(w.stats())
	case opRecent:
		return dataReply(w.report.Recent())
	case opSettings:
		return errorReply(s.applySettings(files[0]))
	case opJournal:
		return errorReply(s.addJournal(req.body, files[0]))
	case opRuns:
		return errorReply(s.runs(files[0]))
	case opListen:
		return errorReply(s.gateway.Listen(files[0]))
	case opIngress:
		return errorReply(s.gateway.Ingress(files[0]))
	case opDrop:
		return errorReply(s.drop(req.body))
	default:
		return errorReply(s.forget(req.body))
	}
}

// dataReply returns a reply of success with v as JSON.
func dataReply(v any) reply {
	b, err := json.Marshal(v)
	if err == nil && len(b) > maxBody {
		err = errors.New("the reply is too large")
	}
	if err != nil {
		return errorReply(err)
	}
	return reply{body: b}
}

// errorReply returns a reply of success without a body if err is nil, otherwise a reply of failure with the text of err.
func errorReply(err error) reply {
	if err != nil {
		return reply{status: statusFailed, body: []byte(err.Error())}
	}
	return reply{}
}

// attach adds a wire for the TAP in files. It owns files.
func (s *server) attach(req request, files []*os.File) reply {
	st := statusOK
	switch {
	case s.wire(req.id) != nil:
		st = statusExists
	case s.countWires() >= maxWires:
		st = statusFull
	}
	if st != statusOK {
		closeAll(files...)
		return reply{status: st}
	}
	spec, decider, err := s.decodeSpec(req.body)
	if err != nil {
		closeAll(files...)
		return errorReply(err)
	}
	tap, err := pollable(files[0])
	if err != nil {
		closeAll(files[1:]...)
		return reply{status: statusFull}
	}
	w, err := s.newSandboxWire(req.id, tap, firstFile(files[1:]), spec, decider)
	if err != nil {
		return errorReply(err)
	}
	s.setWire(req.id, w)
	return reply{}
}

// wire returns the wire of a sandbox, or nil if it has none.
func (s *server) wire(id caisson.ID) *sandboxWire {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wires[id]
}

// setWire adds a wire, or removes it if w is nil.
func (s *server) setWire(id caisson.ID, w *sandboxWire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w == nil {
		delete(s.wires, id)
		return
	}
	s.wires[id] = w
}

// countWires returns the number of wires.
func (s *server) countWires() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.wires)
}

// firstFile returns the first of files; nil if there are none.
func firstFile(files []*os.File) *os.File {
	if len(files) > 0 {
		return files[0]
	}
	return nil
}

// decodeSpec decodes a wire's spec and compiles its policy.
func (s *server) decodeSpec(body []byte) (*caisson.WireSpec, caisson.Decider, error) {
	spec := &caisson.WireSpec{}
	if err := unmarshal(body, spec); err != nil {
		return nil, nil, err
	}
	decider, err := s.process.Compile(spec.Policy)
	return spec, decider, err
}

// configure executes a request of type opConfigure, whose body is the wire's new spec.
func (s *server) configure(w *sandboxWire, body []byte, files []*os.File) reply {
	spec, decider, err := s.decodeSpec(body)
	if err != nil {
		closeAll(files...)
		return errorReply(err)
	}
	w.configure(spec, decider, firstFile(files))
	return reply{}
}

// applySettings applies the caisson.GatewayConfig in f, a file that memoryFile has created.
func (s *server) applySettings(f *os.File) error {
	cfg := &caisson.GatewayConfig{}
	if err := readMemoryFile(f, cfg); err != nil {
		return err
	}
	if !s.rootsLoaded && s.roots != nil {
		// The configured authorities are added only once, before the first wire, because the pool is in use afterwards. They
		// change only with the configuration of the daemon, which requires a restart.
		s.roots.AppendCertsFromPEM([]byte(cfg.Roots))
		s.rootsLoaded = true
	}
	s.upstream.SetServers(cfg.Nameservers)
	s.dialSettings.Store(&flow.Settings{Host: reach.Host{PublicAddresses: cfg.PublicAddresses}, Forbidden: cfg.Forbidden})
	return s.gateway.Configure(*cfg)
}

// readMemoryFile decodes the JSON in a file that memoryFile has created, and closes the file.
func readMemoryFile(f *os.File, v any) error {
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMemoryFile+1))
	if err != nil {
		return err
	}
	defer clear(b) // b may contain keys
	if len(b) > maxMemoryFile {
		return fmt.Errorf("%w: settings of more than %s", errMessage, caisson.Size(maxMemoryFile))
	}
	return unmarshal(b, v)
}

// runs changes the set of runs on other machines that are served.
func (s *server) runs(f *os.File) error {
	var change caisson.GatewayRunChange
	if err := readMemoryFile(f, &change); err != nil {
		return err
	}
	return s.gateway.Runs(change)
}

// drop closes the connections of the ingress to a sandbox.
func (s *server) drop(body []byte) error {
	var b dropBody
	if err := unmarshal(body, &b); err != nil {
		return err
	}
	s.gateway.Drop(b.Sandbox)
	return nil
}

// addJournal passes a new journal to the gateway.
func (s *server) addJournal(body []byte, f *os.File) error {
	var b journalBody
	if err := unmarshal(body, &b); err != nil {
		f.Close()
		return err
	}
	return s.gateway.Journal(b.ID, f)
}

// forget makes the gateway return its leases of budgets whose limits have changed.
func (s *server) forget(body []byte) error {
	var b forgetBody
	if err := unmarshal(body, &b); err != nil {
		return err
	}
	s.gateway.Forget(b.Budgets)
	return nil
}

// isHost reports whether host is Domain or a virtual host that the wire grants.
func (s *server) isHost(w *sandboxWire, host string) bool {
	if host == Domain {
		return true
	}
	name, ok := strings.CutSuffix(host, "."+Domain)
	return ok && s.hosts.handlers[name] != nil && w.granted(name)
}

// usable reports whether the host has a route to an address.
func (s *server) usable(a netip.Addr) bool {
	_, err := s.dialer.Own(a)
	return err == nil
}

// dialTime is the time limit for connecting to one address of a host.
const dialTime = 10 * time.Second

// dial connects to a host of the configuration. No policy applies, and addresses of this machine are allowed.
func (s *server) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	addrs, err := s.upstream.Addrs(ctx, host)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTime}
	var errs []error
	for _, a := range addrs {
		c, err := d.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return nil, errors.Join(errs...)
}

// A coalescer coalesces events that occur within coalesceDelay into one call of fn.
type coalescer struct {
	pending atomic.Bool // a call of fn is scheduled
	fn      func()      // called coalesceDelay after the first event
}

// coalesceDelay is the time from the first event that a coalescer gets to its call of fn.
const coalesceDelay = 50 * time.Millisecond

// newCoalescer returns a coalescer that calls tell once for all events that occur within coalesceDelay.
func newCoalescer(tell func()) *coalescer { return &coalescer{fn: tell} }

// trigger records an event: it schedules a call of fn unless one is scheduled already.
func (n *coalescer) trigger() {
	if n.pending.CompareAndSwap(false, true) {
		time.AfterFunc(coalesceDelay, func() {
			n.pending.Store(false)
			n.fn()
		})
	}
}
