package wire

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/dns"
	"github.com/caisson-dev/caisson/wire/flow"
	"github.com/caisson-dev/caisson/wire/report"
)

// A sandboxWire is one sandbox's TAP with its stack and resolver, the forwarder of its flows and the recorder of its decisions.
type sandboxWire struct {
	tap        *tap
	stack      *stack.Stack
	flows      *flow.Forwarder
	resolver   *dns.Resolver
	report     *report.Recorder   // sends decisions to the engine
	whyHandler http.Handler       // serves http://caisson.internal: pages about the wire and its recent refusals
	whySlot    chan struct{}      // full while a page of http://caisson.internal is rendered or sent: one at a time
	ctx        context.Context    // ends when the wire is removed
	cancel     context.CancelFunc // cancels ctx

	spec    atomic.Pointer[caisson.WireSpec] // the current spec
	decider atomic.Pointer[caisson.Decider]  // compiled policy of spec

	mu      sync.Mutex
	record  *recording           // records model calls; nil: they are not recorded; guarded by mu
	active  sync.WaitGroup       // requests to virtual hosts; none is added once closing is set
	closing bool                 // the wire is being removed; guarded by mu
	streams map[*stream]struct{} // streams to the engine; none is added once closing is set; guarded by mu
}

// newSandboxWire sets up a wire. It owns file (the TAP) and record (the file that records model calls, or nil), also if it fails.
func (s *server) newSandboxWire(id caisson.ID, file, record *os.File, spec *caisson.WireSpec, decider caisson.Decider) (_ *sandboxWire, err error) {
	w := &sandboxWire{whySlot: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			w.stop(0, 0)
			file.Close()
		}
	}()
	w.spec.Store(spec)
	w.decider.Store(&decider)
	w.setRecord(record)
	if w.report, err = report.New(report.Config{Deliver: func(list []caisson.Decision) {
		s.feed.send(feedMessage{Sandbox: id, Trace: w.spec.Load().Guest.Trace, Decisions: list}) // fails if the engine has exited
	}}); err != nil {
		return nil, err
	}
	w.whyHandler = report.WhyHandler(string(id), w.report.Recent, w.explain)
	if w.resolver, err = dns.New(dns.Config{
		Sandbox: string(id), Gateway4: netip.MustParseAddr(GatewayIPv4), Gateway6: netip.MustParseAddr(GatewayIPv6),
		Hosts:   func(host string) bool { return s.isHost(w, host) },
		Decider: w.decide, Usable: s.usable, Upstream: s.upstream, Report: w.report.Report,
	}); err != nil {
		return nil, err
	}
	if w.tap, err = newTap(file, s.bufs); err != nil {
		return nil, err
	}
	w.tap.offload = !s.process.Checksums
	w.stack, err = newStack(w.tap, func(st *stack.Stack) (err error) {
		w.flows, err = flow.New(s.flowConfig(w, st))
		return err
	})
	return w, err
}

// flowConfig returns the configuration of a wire's connections.
func (s *server) flowConfig(w *sandboxWire, st *stack.Stack) flow.Config {
	return flow.Config{
		Stack: st, NIC: nicID,
		Gateway: []netip.Addr{netip.MustParseAddr(GatewayIPv4), netip.MustParseAddr(GatewayIPv6)},
		Local: map[uint16]func(net.Conn){
			80: func(c net.Conn) { s.hosts.serve(w, c) },
			53: func(c net.Conn) { w.resolver.ServeTCP(w.ctx, c) },
		},
		LocalMost: map[uint16]int{80: maxHostConns, 53: maxNameConns},
		LocalUDP: map[uint16]func(context.Context, []byte, netip.AddrPort) []byte{
			53: func(ctx context.Context, query []byte, _ netip.AddrPort) []byte {
				return w.resolver.Answer(ctx, query, false)
			},
		},
		Decide: func(f caisson.Flow) caisson.Verdict { return w.decide().DecideFlow(f) },
		Names:  w.resolver.Names, Dialer: s.dialer, Report: w.report.Report, ProcessLimits: s.hosts.flows,
	}
}

// decide returns the current compiled policy.
func (w *sandboxWire) decide() caisson.Decider { return *w.decider.Load() }

// explain returns the policy's verdict on a host name or address for the page http://caisson.internal/why.
func (w *sandboxWire) explain(host string) caisson.Verdict {
	if a, err := netip.ParseAddr(host); err == nil {
		return w.decide().DecideAddress("", a.Unmap())
	}
	v, _ := w.decide().DecideName(host)
	return v
}

// granted reports whether the wire's spec grants a virtual host.
func (w *sandboxWire) granted(host string) bool {
	switch spec := w.spec.Load(); host {
	case modelHost:
		return spec.Models != nil
	case toolsHost:
		return spec.Tools
	case gitHost: // the engine decides which repositories the guest may use
		return true
	}
	return false
}

// The names of the virtual hosts.
const (
	modelHost = "llm"
	toolsHost = "tools"
	gitHost   = "git"
)

// configure replaces the wire's spec and decider. Connections that are no longer allowed have been closed when it returns.
func (w *sandboxWire) configure(spec *caisson.WireSpec, decider caisson.Decider, record *os.File) {
	if w.spec.Load().Guest != spec.Guest {
		w.report.Flush() // decisions for one run must not be reported for the next
	}
	w.spec.Store(spec)
	w.decider.Store(&decider)
	if record != nil || spec.Models == nil || !spec.Models.Record {
		w.setRecord(record)
	}
	w.flows.Recheck()
}

// beginRequest begins a request to a virtual host. It returns false if the wire is being removed.
func (w *sandboxWire) beginRequest() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return false
	}
	w.active.Add(1)
	return true
}

// endRequest ends a request that beginRequest has begun.
func (w *sandboxWire) endRequest() { w.active.Done() }

// stop closes the TAP and waits for model calls in progress to be written to the ledger: for up to wait, and then in the
// background for up to longer. It may be called on a partly constructed wire.
func (w *sandboxWire) stop(wait, longer time.Duration) {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	w.cancel()
	w.closeStreams()
	if w.flows != nil {
		w.flows.Close()
	}
	if w.stack != nil {
		stopStack(w.stack)
	}
	idle := make(chan struct{})
	go func() {
		w.active.Wait()
		close(idle)
	}()
	if waitIdle(idle, wait) || longer == 0 {
		w.closeReport()
		return
	}
	go func() {
		waitIdle(idle, longer)
		w.closeReport()
	}()
}

// waitIdle waits for idle for at most wait, and reports whether it was closed.
func waitIdle(idle <-chan struct{}, wait time.Duration) bool {
	select {
	case <-idle:
		return true
	case <-time.After(wait):
		return false
	}
}

// closeReport sends the decisions that were not sent yet to the engine, and closes the file that records model calls.
func (w *sandboxWire) closeReport() {
	if w.report != nil {
		w.report.Close()
	}
	w.setRecord(nil)
}

func (w *sandboxWire) stats() Stats {
	st := w.tap.stats()
	f := w.flows.Stats()
	c := w.report.Counters()
	st.Flows = Flows{Allowed: c.Allowed, Denied: c.Denied, Limited: f.Limited + f.Dropped, Open: f.TCP + f.UDP}
	return st
}

// setRecord closes the file that records model calls, and lets f take its place. With nil, model calls are no longer recorded.
func (w *sandboxWire) setRecord(f *os.File) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.record != nil {
		w.record.close()
		w.record = nil
	}
	if f != nil {
		w.record = newRecording(f)
	}
}

// recorder returns the writer that records the wire's model calls, or nil.
func (w *sandboxWire) recorder() io.Writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.record == nil {
		return nil
	}
	return w.record
}

// maxRecording bounds the file in which the model calls of one sandbox are recorded, in bytes.
const maxRecording = 64 << 20

// A recording is a file with the prompts and answers of a sandbox's model calls. A write that does not fit is discarded whole.
type recording struct {
	mu        sync.Mutex
	file      *os.File // guarded by mu; nil once closed
	remaining int      // bytes that the file may still grow; guarded by mu
}

// newRecording returns a recording of model calls that appends to f. The size of f counts against maxRecording, because the
// engine opens the same file again when it changes the wire's spec.
func newRecording(f *os.File) *recording {
	r := &recording{file: f}
	if info, err := f.Stat(); err == nil {
		r.remaining = int(max(0, maxRecording-info.Size()))
	}
	return r
}

// Write appends p, a record of one model call. If p does not fit into the file, it writes nothing and returns an error.
func (r *recording) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil || len(p) > r.remaining {
		return 0, io.ErrShortWrite
	}
	r.remaining -= len(p)
	return r.file.Write(p)
}

func (r *recording) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.file.Close()
	r.file = nil
}
