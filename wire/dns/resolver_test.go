package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/miekg/dns"
)

func TestAnswer(t *testing.T) {
	z := newZone(t, map[string][]string{
		"example.com.":      {"example.com. 60 A 93.184.216.34", "example.com. 60 AAAA 2606:2800:220:1::1", `example.com. 60 TXT "x"`},
		"alias.example.":    {"alias.example. 300 CNAME b.example.", "b.example. 20 CNAME c.example.", "c.example. 900 A 192.0.2.1", "other.example. 60 A 192.0.2.66"},
		"loop.example.":     {"loop.example. 60 CNAME loop2.example.", "loop2.example. 60 CNAME loop.example."},
		"dangling.example.": {"dangling.example. 60 CNAME gone.example.", "elsewhere.example. 60 A 192.0.2.66"},
		"rebind.example.":   {"rebind.example. 60 A 10.0.0.5", "rebind.example. 60 A 169.254.169.254", "rebind.example. 60 AAAA fd00::1"},
		"mixed.example.":    {"mixed.example. 60 A 127.0.0.1", "mixed.example. 60 A 192.0.2.7"},
		"gateway.example.":  {"gateway.example. 60 A 10.87.0.1"},
		"lan.example.":      {"lan.example. 60 A 172.16.5.5"},
		"zero.example.":     {"zero.example. 0 A 192.0.2.8"},
		"long.example.":     {"long.example. 86400 A 192.0.2.9"},
		"denied.test.":      {"denied.test. 60 A 192.0.2.10"},
		"db.corp.local.":    {"db.corp.local. 60 A 192.0.2.11"},
		"empty.example.":    {},
	})
	p := allowing{names: []string{"example.com", "*.example", "db.corp.local", "localhost", "1.2.3.4", "4.3.2.1.in-addr.arpa", "single"}, lan: "172.16.0.0/12"}
	type row struct {
		name  string
		typ   uint16
		rcode int
		addrs []string
		ttl   uint32
		ede   int    // 0: none
		text  string // part of the text
		asked bool   // an upstream query is sent
	}
	const blocked, filtered, unsupported = 15, 17, 21
	for _, r := range []row{
		{"example.com", dns.TypeA, 0, []string{"93.184.216.34"}, 60, 0, "", true},
		{"ExAmPlE.CoM", dns.TypeAAAA, 0, []string{"2606:2800:220:1::1"}, 60, 0, "", true},
		{"example.com", dns.TypeTXT, 0, nil, 0, unsupported, "TXT", false},
		{"example.com", dns.TypeHTTPS, 0, nil, 0, unsupported, "HTTPS", false},
		{"example.com", dns.TypeANY, 0, nil, 0, unsupported, "ANY", false},
		{"example.com", dns.TypeCNAME, 0, nil, 0, unsupported, "CNAME", false},
		{"example.com", 65280, 0, nil, 0, unsupported, "TYPE65280", false},
		{"example.com", dns.TypeAXFR, dns.RcodeRefused, nil, 0, 0, "", false},
		{"alias.example", dns.TypeA, 0, []string{"192.0.2.1"}, 20, 0, "", true},
		{"loop.example", dns.TypeA, dns.RcodeServerFailure, nil, 0, 23, "no name server answers", true},
		{"dangling.example", dns.TypeA, 0, nil, 0, 0, "", true},
		{"rebind.example", dns.TypeA, 0, nil, 0, filtered, "169.254.169.254 is private", true},
		{"rebind.example", dns.TypeAAAA, 0, nil, 0, filtered, "fd00::1 is private", true},
		{"mixed.example", dns.TypeA, 0, []string{"192.0.2.7"}, 60, 0, "", true},
		{"gateway.example", dns.TypeA, 0, nil, 0, filtered, "own address", true},
		{"lan.example", dns.TypeA, 0, []string{"172.16.5.5"}, 60, 0, "", true},
		{"zero.example", dns.TypeA, 0, []string{"192.0.2.8"}, 5, 0, "", true},
		{"long.example", dns.TypeA, 0, []string{"192.0.2.9"}, 300, 0, "", true},
		{"empty.example", dns.TypeA, 0, nil, 0, 0, "", true},
		{"nobody.example", dns.TypeA, dns.RcodeNameError, nil, 0, 0, "", true},
		{"denied.test", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "no rule allows it; the operator can see more with: caisson policy explain sb-1 denied.test", false},
		{"denied.test", dns.TypeTXT, dns.RcodeNameError, nil, 0, blocked, "no rule", false},
		// Names that are never sent upstream, even if the policy names them.
		{"localhost", dns.TypeA, 0, []string{"127.0.0.1"}, 60, 0, "", false},
		{"x.localhost", dns.TypeAAAA, 0, []string{"::1"}, 60, 0, "", false},
		{"db.corp.local", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "public DNS", false},
		{"abc.onion", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "onion", false},
		{"single", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "one label", false},
		{"1.2.3.4", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "address", false},
		{"1.2.0x7f", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "address", false},
		{"4.3.2.1.in-addr.arpa", dns.TypePTR, dns.RcodeNameError, nil, 0, blocked, "reverse", false},
		{"8.b.d.0.1.0.0.2.ip6.arpa", dns.TypePTR, dns.RcodeNameError, nil, 0, blocked, "reverse", false},
		{"use-application-dns.net", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "", false},
		{".", dns.TypeNS, dns.RcodeRefused, nil, 0, blocked, "root", false},
		{`a\.b.example`, dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "not the name of a host", false},
		{`a\000b.example`, dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "not the name of a host", false},
		{"bücher.example", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "not the name of a host", false},
		// Virtual hosts.
		{"caisson.internal", dns.TypeA, 0, []string{"10.87.0.1"}, 60, 0, "", false},
		{"LLM.caisson.internal", dns.TypeAAAA, 0, []string{"fdca:1550:a87::1"}, 60, 0, "", false},
		{"llm.caisson.internal", dns.TypeTXT, 0, nil, 0, 0, "", false},
		{"git.caisson.internal", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "not granted", false},
		{"x.llm.caisson.internal", dns.TypeA, dns.RcodeNameError, nil, 0, blocked, "not granted", false},
	} {
		t.Run(strings.Trim(r.name, ".")+" "+dns.Type(r.typ).String(), func(t *testing.T) {
			b := newBench(t, p, []netip.AddrPort{z.addr})
			before := len(z.queries())
			m := b.ask(t, r.name, r.typ)
			if m.Rcode != r.rcode {
				t.Errorf("rcode %s, want %s", dns.RcodeToString[m.Rcode], dns.RcodeToString[r.rcode])
			}
			if got := addrs(t, m); !slices.Equal(got, r.addrs) {
				t.Errorf("addresses %v, want %v", got, r.addrs)
			}
			for _, rr := range m.Answer {
				if rr.Header().Ttl != r.ttl {
					t.Errorf("ttl %d, want %d", rr.Header().Ttl, r.ttl)
				}
			}
			code, text := ede(m)
			if want := r.ede; code != want && !(want == 0 && code == -1) {
				t.Errorf("extended error %d %q, want %d", code, text, want)
			}
			if !strings.Contains(text, r.text) {
				t.Errorf("extended error says %q, want %q in it", text, r.text)
			}
			if asked := len(z.queries()) > before; asked != r.asked {
				t.Errorf("asked upstream: %v (%v)", asked, z.queries()[before:])
			}
			for _, a := range r.addrs {
				a := netip.MustParseAddr(a)
				if got := b.Names(a); r.asked && !slices.Equal(got, []string{lower(r.name)}) {
					t.Errorf("%v is pinned to %v", a, got)
				} else if !r.asked && len(got) > 0 {
					t.Errorf("%v is pinned to %v, though it was not looked up", a, got)
				}
			}
		})
	}
}

// TestMappedAddresses checks that IPv4-mapped addresses are not answered, public or not.
func TestMappedAddresses(t *testing.T) {
	z := newZone(t, nil)
	z.answerWith(func(q *dns.Msg, _ bool) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		for _, a := range []string{"::ffff:10.0.0.1", "::ffff:192.0.2.1", "::1"} {
			addr := netip.MustParseAddr(a)
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeAAAA, Class: 1, Ttl: 9}, AAAA: addr.AsSlice()})
		}
		return m
	})
	b := newBench(t, allowing{names: []string{"m.example"}}, []netip.AddrPort{z.addr})
	m := b.ask(t, "m.example", dns.TypeAAAA)
	if code, _ := ede(m); len(m.Answer) != 0 || code != 17 {
		t.Errorf("answer %v, extended error %d", m.Answer, code)
	}
	var refused []string
	for _, d := range b.reported() {
		if !d.Allowed {
			refused = append(refused, d.Address)
		}
	}
	if len(refused) != 3 {
		t.Errorf("reported as refused: %v", refused)
	}
}

func TestUsable(t *testing.T) {
	z := newZone(t, map[string][]string{"e.example.": {"e.example. 60 A 192.0.2.1", "e.example. 60 AAAA 2001:db8::1"}})
	b := newBench(t, allowing{names: []string{"*"}}, []netip.AddrPort{z.addr}, func(c *Config) { c.Usable = netip.Addr.Is4 })
	if got := addrs(t, b.ask(t, "e.example", dns.TypeAAAA)); got != nil {
		t.Errorf("AAAA: %v", got)
	}
	if got := addrs(t, b.ask(t, "e.example", dns.TypeA)); len(got) != 1 {
		t.Errorf("A: %v", got)
	}
	if got := b.Names(netip.MustParseAddr("2001:db8::1")); got != nil {
		t.Errorf("what was not given out is pinned to %v", got)
	}
}

// TestMalformed checks that malformed queries receive the matching error, without a lookup.
func TestMalformed(t *testing.T) {
	z := newZone(t, map[string][]string{"e.example.": {"e.example. 60 A 192.0.2.1"}})
	b := newBench(t, allowing{names: []string{"*"}}, []netip.AddrPort{z.addr}, func(c *Config) { c.QueryBurst = 1000 })
	plain := func(change func(*dns.Msg)) *dns.Msg {
		m := new(dns.Msg).SetQuestion("e.example.", dns.TypeA)
		change(m)
		return m
	}
	rr, err := dns.NewRR("e.example. 60 A 192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	opt := func(version uint8) *dns.OPT {
		o := new(dns.Msg).SetEdns0(1232, false).IsEdns0()
		o.SetVersion(version)
		return o
	}
	for name, row := range map[string]struct {
		q     *dns.Msg
		rcode int
	}{
		"status":        {plain(func(m *dns.Msg) { m.Opcode = dns.OpcodeStatus }), dns.RcodeNotImplemented},
		"update":        {plain(func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), dns.RcodeNotImplemented},
		"chaos":         {plain(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), dns.RcodeRefused},
		"any class":     {plain(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }), dns.RcodeRefused},
		"two questions": {plain(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), dns.RcodeFormatError},
		"no question":   {plain(func(m *dns.Msg) { m.Question = nil }), dns.RcodeFormatError},
		"an answer":     {plain(func(m *dns.Msg) { m.Answer = append(m.Answer, rr) }), dns.RcodeFormatError},
		"authority":     {plain(func(m *dns.Msg) { m.Ns = append(m.Ns, rr) }), dns.RcodeFormatError},
		"three more":    {plain(func(m *dns.Msg) { m.Extra = append(m.Extra, rr, rr, rr) }), dns.RcodeFormatError},
		"two OPT":       {plain(func(m *dns.Msg) { m.Extra = append(m.Extra, opt(0), opt(0)) }), dns.RcodeFormatError},
		"EDNS 1":        {plain(func(m *dns.Msg) { m.Extra = append(m.Extra, opt(1)) }), dns.RcodeBadVers},
		"truncated":     {plain(func(m *dns.Msg) { m.Truncated = true }), dns.RcodeFormatError},
	} {
		t.Run(name, func(t *testing.T) {
			if m := b.send(t, row.q, false); m.Rcode != row.rcode {
				t.Errorf("rcode %s, want %s", dns.RcodeToString[m.Rcode], dns.RcodeToString[row.rcode])
			}
		})
	}
	response, _ := plain(func(m *dns.Msg) { m.Response = true }).Pack()
	for _, junk := range [][]byte{nil, {1}, make([]byte, 11), response} {
		if got := b.Answer(t.Context(), junk, false); got != nil {
			t.Errorf("%x was answered with %x", junk, got)
		}
	}
	if got := z.queries(); len(got) != 0 {
		t.Errorf("asked upstream: %v", got)
	}
}

// TestNothingOfTheGuestTravels checks that queries are constructed anew for the upstream.
func TestNothingOfTheGuestTravels(t *testing.T) {
	z := newZone(t, nil)
	seen := make(chan *dns.Msg, 1)
	z.answerWith(func(q *dns.Msg, _ bool) *dns.Msg {
		seen <- q.Copy()
		return new(dns.Msg).SetReply(q)
	})
	b := newBench(t, allowing{names: []string{"*"}}, []netip.AddrPort{z.addr})
	q := new(dns.Msg).SetQuestion("SeCrEt.example.", dns.TypeA).SetEdns0(1232, true)
	q.Id, q.AuthenticatedData, q.CheckingDisabled = 4242, true, true
	opt := q.IsEdns0()
	opt.Option = append(opt.Option, &dns.EDNS0_COOKIE{Cookie: "0011223344556677"}, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("data")},
		&dns.EDNS0_SUBNET{Family: 1, SourceNetmask: 24, Address: []byte{1, 2, 3, 0}})
	b.send(t, q, false)
	got := <-seen
	own := got.IsEdns0()
	if got.Question[0].Name != "secret.example." || got.AuthenticatedData || got.CheckingDisabled || own == nil || len(own.Option) != 0 || own.Do() {
		t.Errorf("sent upstream: %v", got)
	}
}

func TestTruncation(t *testing.T) {
	var lines []string
	for i := range 60 {
		lines = append(lines, fmt.Sprintf("big.example. 60 A 192.0.2.%d", i))
	}
	z := newZone(t, map[string][]string{"big.example.": lines})
	b := newBench(t, allowing{names: []string{"*"}}, []netip.AddrPort{z.addr})
	plain := new(dns.Msg).SetQuestion("big.example.", dns.TypeA)
	wire, _ := plain.Pack()
	small := b.Answer(t.Context(), wire, false)
	m := new(dns.Msg)
	if err := m.Unpack(small); err != nil || len(small) > 512 || !m.Truncated {
		t.Errorf("over UDP: %d bytes, truncated %v, %v", len(small), m.Truncated, err)
	}
	if m := b.send(t, plain, true); m.Truncated || len(m.Answer) != maxAddrs {
		t.Errorf("over TCP: truncated %v, %d addresses", m.Truncated, len(m.Answer))
	}
	if m := b.ask(t, "big.example", dns.TypeA); m.Truncated || len(m.Answer) != maxAddrs {
		t.Errorf("with EDNS: truncated %v, %d addresses", m.Truncated, len(m.Answer))
	}
	if got := len(z.queries()); got != 2 { // UDP (truncated) and TCP; then from the cache
		t.Errorf("%d queries upstream: %v", got, z.queries())
	}
}

// TestLongestRefusal checks that the reason and the longest name fit into 512 bytes.
func TestLongestRefusal(t *testing.T) {
	label := strings.Repeat("a", 63)
	long := label + "." + label + "." + label + "." + label[:61]
	b := newBench(t, reasoned{strings.Repeat("\u00e4\x1b", 300)}, nil, func(c *Config) { c.Sandbox = strings.Repeat("s", maxSandbox) })
	q := new(dns.Msg).SetQuestion(long+".", dns.TypeA).SetEdns0(512, false)
	wire, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	got := b.Answer(t.Context(), wire, false)
	m := new(dns.Msg)
	if err := m.Unpack(got); err != nil || len(got) > 512 || m.Truncated {
		t.Fatalf("%d bytes, truncated %v, %v", len(got), m.Truncated, err)
	}
	if _, text := ede(m); !strings.Contains(text, "caisson policy explain") || strings.Contains(text, "\x1b") {
		t.Errorf("says %q", text)
	}
}

// reasoned is a policy that denies with a reason.
type reasoned struct{ reason string }

func (r reasoned) verdict() caisson.Verdict                         { return caisson.Verdict{Rule: 0, Reason: r.reason} }
func (r reasoned) DecideName(string) (caisson.Verdict, string)      { return r.verdict(), "" }
func (r reasoned) DecideAddress(string, netip.Addr) caisson.Verdict { return r.verdict() }
func (r reasoned) DecideFlow(caisson.Flow) caisson.Verdict          { return r.verdict() }

// TestPolicyIsLive checks that the current policy decides each query, also about cached names, and also if it changes during a
// lookup.
func TestPolicyIsLive(t *testing.T) {
	z := newZone(t, map[string][]string{"e.example.": {"e.example. 60 A 10.0.0.1"}})
	var mu sync.Mutex
	p := allowing{}
	set := func(to allowing) {
		mu.Lock()
		defer mu.Unlock()
		p = to
	}
	b := newBench(t, nil, []netip.AddrPort{z.addr}, func(c *Config) {
		c.Decider = func() caisson.Decider {
			mu.Lock()
			defer mu.Unlock()
			return p
		}
	})
	for _, step := range []struct {
		policy allowing
		rcode  int
		addrs  int
	}{
		{allowing{}, dns.RcodeNameError, 0},
		{allowing{names: []string{"e.example"}}, dns.RcodeSuccess, 0},
		{allowing{names: []string{"e.example"}, lan: "10.0.0.0/8"}, dns.RcodeSuccess, 1},
		{allowing{}, dns.RcodeNameError, 0},
	} {
		set(step.policy)
		if m := b.ask(t, "e.example", dns.TypeA); m.Rcode != step.rcode || len(m.Answer) != step.addrs {
			t.Errorf("%+v: %v", step, m)
		}
	}
	b.up.SetServers(nil) // clears the cache
	b.up.SetServers([]netip.AddrPort{z.addr})
	set(allowing{names: []string{"e.example"}, lan: "10.0.0.0/8"})
	z.answerWith(func(q *dns.Msg, tcp bool) *dns.Msg {
		set(allowing{names: []string{"e.example"}})
		return z.fromRecords(q, tcp)
	})
	if m := b.ask(t, "e.example", dns.TypeA); len(m.Answer) != 0 {
		t.Errorf("the policy changed during the lookup: %v", m)
	}
}

// TestReports checks that there is one decision for each query, with its rule and reason.
func TestReports(t *testing.T) {
	z := newZone(t, map[string][]string{"b.example.": {"b.example. 60 A 10.0.0.1", "b.example. 60 A 192.0.2.1"}})
	b := newBench(t, allowing{names: []string{"a.example", "b.example"}}, []netip.AddrPort{z.addr})
	for _, q := range []struct {
		name string
		typ  uint16
	}{{"B.example", dns.TypeA}, {"b.example", dns.TypeHTTPS}, {"b.example", dns.TypeTXT}, {"no.example", dns.TypeA}, {"localhost", dns.TypeA}, {"llm.caisson.internal", dns.TypeA}} {
		b.ask(t, q.name, q.typ)
	}
	want := []caisson.Decision{
		{Allowed: true, Rule: 1, Reason: "a rule allows b.example", Name: "b.example"},
		{Rule: -1, Reason: "10.0.0.1 is private", Name: "b.example", Address: "10.0.0.1"},
		{Rule: -1, Reason: "only addresses are looked up, not records of type TXT", Name: "b.example"},
		{Rule: -1, Reason: "no rule allows it", Name: "no.example"},
		{Allowed: true, Rule: -1, Reason: "a virtual host of this wire", Name: "llm.caisson.internal"},
	}
	for i := range want {
		want[i].At, want[i].Kind, want[i].Count = b.Now(), "name", 1
	}
	if got := b.reported(); !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

func TestNewChecksItsConfig(t *testing.T) {
	up, _ := NewUpstream(UpstreamConfig{})
	good := Config{
		Sandbox: "sb-1", Gateway4: gateway4, Gateway6: gateway6, Upstream: up,
		Decider: func() caisson.Decider { return allowing{} }, Report: func(caisson.Decision) {},
	}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for _, spoil := range []func(*Config){
		func(c *Config) { c.Sandbox = "" },
		func(c *Config) { c.Gateway4 = gateway6 },
		func(c *Config) { c.Gateway6 = netip.Addr{} },
		func(c *Config) { c.Decider = nil },
		func(c *Config) { c.Upstream = nil },
		func(c *Config) { c.Report = nil },
	} {
		c := good
		spoil(&c)
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v) succeeds", c)
		}
	}
}
