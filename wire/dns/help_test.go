package dns

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/miekg/dns"
)

// zone is a real DNS server on loopback, over UDP and TCP, with records in presentation form.
type zone struct {
	addr netip.AddrPort

	mu      sync.Mutex
	records map[string][]string // by lower-case owner with final dot; an empty list is NODATA
	asked   []string            // "name. TYPE"
	reply   func(q *dns.Msg, tcp bool) *dns.Msg
}

func newZone(t *testing.T, records map[string][]string) *zone {
	t.Helper()
	z := &zone{records: records}
	tcp, udp := listenBoth(t)
	z.addr = tcp.Addr().(*net.TCPAddr).AddrPort()
	for _, s := range []*dns.Server{{Listener: tcp}, {PacketConn: udp}} {
		s.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { z.serve(w, q, s.Listener != nil) })
		done := make(chan struct{})
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(done)
			if err := s.ActivateAndServe(); err != nil {
				t.Error(err)
			}
		}()
		<-started
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-done
		})
	}
	return z
}

// listenBoth listens on a port that is free for both protocols: a port that is free for TCP may be in use for UDP.
func listenBoth(t *testing.T) (tcp net.Listener, udp net.PacketConn) {
	t.Helper()
	for range 20 {
		var err error
		if tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			return tcp, udp
		}
		defer tcp.Close() // not at once, or the same port might be selected again
	}
	t.Fatal("no port is free for TCP and UDP")
	return nil, nil
}

func (z *zone) serve(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
	z.mu.Lock()
	z.asked = append(z.asked, q.Question[0].Name+" "+dns.Type(q.Question[0].Qtype).String())
	reply := z.reply
	z.mu.Unlock()
	if reply == nil {
		reply = z.fromRecords
	}
	if m := reply(q, tcp); m != nil {
		_ = w.WriteMsg(m)
	}
}

func (z *zone) fromRecords(q *dns.Msg, tcp bool) *dns.Msg {
	z.mu.Lock()
	defer z.mu.Unlock()
	m := new(dns.Msg).SetReply(q)
	lines, ok := z.records[q.Question[0].Name]
	if !ok {
		m.Rcode = dns.RcodeNameError
	}
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		if err != nil {
			panic(err)
		}
		if typ := rr.Header().Rrtype; typ == q.Question[0].Qtype || typ == dns.TypeCNAME {
			m.Answer = append(m.Answer, rr)
		}
	}
	if !tcp {
		m.Truncate(512)
	}
	return m
}

func (z *zone) queries() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked)
}

func (z *zone) answerWith(reply func(q *dns.Msg, tcp bool) *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.reply = reply
}

// allowing is a policy that allows names, "*.zone" among them, and no private address except those of lan.
type allowing struct {
	names []string
	lan   string
}

func (p allowing) DecideName(name string) (caisson.Verdict, string) {
	for i, n := range p.names {
		v := caisson.Verdict{Allowed: true, Rule: i, Name: name, Reason: "a rule allows " + n}
		zone, wild := strings.CutPrefix(n, "*.")
		switch {
		case n == name:
			return v, ""
		case wild && strings.HasSuffix(name, "."+zone):
			return v, zone
		case n == "*":
			return v, ""
		}
	}
	return caisson.Verdict{Rule: -1, Reason: "no rule allows it"}, ""
}

func (p allowing) DecideAddress(_ string, a netip.Addr) caisson.Verdict {
	if a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.Is4In6() {
		if p.lan == "" || !netip.MustParsePrefix(p.lan).Contains(a) {
			return caisson.Verdict{Rule: -1, Reason: a.String() + " is private"}
		}
	}
	return caisson.Verdict{Allowed: true, Reason: "public"}
}

func (p allowing) DecideFlow(f caisson.Flow) caisson.Verdict {
	return p.DecideAddress("", f.Dst.Addr())
}

var _ caisson.Decider = allowing{}

// clock is a clock that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// bench is a resolver and its reports.
type bench struct {
	*Resolver
	*clock
	up *Upstream

	mu      sync.Mutex
	reports []caisson.Decision
}

var (
	gateway4 = netip.MustParseAddr("10.87.0.1")
	gateway6 = netip.MustParseAddr("fdca:1550:a87::1")
)

func newBench(t testing.TB, p caisson.Decider, servers []netip.AddrPort, change ...func(*Config)) *bench {
	t.Helper()
	b := &bench{clock: &clock{now: time.Unix(1_800_000_000, 0)}}
	var err error
	if b.up, err = NewUpstream(UpstreamConfig{Servers: servers, Now: b.Now}); err != nil {
		t.Fatal(err)
	}
	c := Config{
		Sandbox: "sb-1", Gateway4: gateway4, Gateway6: gateway6,
		Hosts:    func(n string) bool { return n == "llm.caisson.internal" },
		Decider:  func() caisson.Decider { return p },
		Upstream: b.up,
		Now:      b.Now,
		Report: func(d caisson.Decision) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.reports = append(b.reports, d)
		},
	}
	for _, f := range change {
		f(&c)
	}
	if b.Resolver, err = New(c); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) reported() []caisson.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.reports)
}

// ask sends a query over UDP with EDNS.
func (b *bench) ask(t testing.TB, name string, qtype uint16) *dns.Msg {
	t.Helper()
	return b.send(t, new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype).SetEdns0(1232, false), false)
}

func (b *bench) send(t testing.TB, q *dns.Msg, tcp bool) *dns.Msg {
	t.Helper()
	wire, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	got := b.Answer(context.Background(), wire, tcp)
	if got == nil {
		return nil
	}
	m := new(dns.Msg)
	if err := m.Unpack(got); err != nil {
		t.Fatalf("the answer cannot be read: %v", err)
	}
	if m.Id != q.Id || !m.Response {
		t.Fatalf("the answer has id %d, response %v", m.Id, m.Response)
	}
	return m
}

// addrs returns the addresses in m, all of which must belong to the question.
func addrs(t testing.TB, m *dns.Msg) (all []string) {
	t.Helper()
	for _, rr := range m.Answer {
		if rr.Header().Name != m.Question[0].Name || rr.Header().Rrtype != m.Question[0].Qtype {
			t.Errorf("a record of another name or type: %v", rr)
		}
		if a, ok := recordAddress(rr); ok {
			all = append(all, a.String())
		}
	}
	return all
}

// ede returns the code and text of the extended error in m; -1 if there is none.
func ede(m *dns.Msg) (int, string) {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return int(e.InfoCode), e.ExtraText
			}
		}
	}
	return -1, ""
}
