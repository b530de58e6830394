package dns

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/miekg/dns"
)

func TestFloodIsBounded(t *testing.T) {
	b := newBench(t, allowing{}, nil)
	q, _ := new(dns.Msg).SetQuestion("e.example.", dns.TypeA).SetEdns0(1232, false).Pack()
	var answered, told, dropped int
	for range 1000 {
		got := b.Answer(t.Context(), q, false)
		m := new(dns.Msg)
		switch {
		case got == nil:
			dropped++
		case m.Unpack(got) != nil:
			t.Fatal("unreadable")
		case m.Rcode == dns.RcodeServerFailure:
			told++
			if _, text := ede(m); !strings.Contains(text, "200 queries a second") {
				t.Fatalf("says %q", text)
			}
		default:
			answered++
		}
	}
	if answered != 400 || told != 200 || dropped != 400 {
		t.Errorf("%d answered, %d told, %d dropped", answered, told, dropped)
	}
	if got := len(b.reported()); got != 1000 {
		t.Errorf("%d of 1000 queries are accounted for", got)
	}
	b.advance(time.Second)
	for range 200 {
		if m := b.ask(t, "e.example", dns.TypeA); m.Rcode != dns.RcodeNameError {
			t.Fatalf("a second later: %v", m)
		}
	}
	if m := b.ask(t, "e.example", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("the 201st of a second: %v", m)
	}
}

func TestLookupsAreBounded(t *testing.T) {
	z := newZone(t, nil)
	arrived, release := make(chan struct{}, 100), make(chan struct{})
	z.answerWith(func(q *dns.Msg, _ bool) *dns.Msg {
		arrived <- struct{}{}
		<-release
		return new(dns.Msg).SetReply(q)
	})
	b := newBench(t, allowing{names: []string{"*"}}, []netip.AddrPort{z.addr}, func(c *Config) { c.Lookups = 4 })
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { b.ask(t, fmt.Sprintf("n%d.example", i), dns.TypeA) })
		<-arrived
	}
	m := b.ask(t, "one.more.example", dns.TypeA)
	if _, text := ede(m); m.Rcode != dns.RcodeServerFailure || !strings.Contains(text, "more than 4 names") {
		t.Errorf("the fifth: %v", m)
	}
	close(release)
	wg.Wait()
	if m := b.ask(t, "one.more.example", dns.TypeA); m.Rcode != dns.RcodeSuccess {
		t.Errorf("afterwards: %v", m)
	}
}

// TestLookupsOfBusyUpstream checks that the limit of each wire is lower while all wires together have very many lookups.
func TestLookupsOfBusyUpstream(t *testing.T) {
	z := newZone(t, nil)
	arrived, release := make(chan struct{}, 100), make(chan struct{})
	z.answerWith(func(q *dns.Msg, _ bool) *dns.Msg {
		arrived <- struct{}{}
		<-release
		return new(dns.Msg).SetReply(q)
	})
	b := newBench(t, allowing{names: []string{"*"}}, []netip.AddrPort{z.addr}, func(c *Config) { c.BusyLookups = 2 })
	b.up.active = maxFlights / 2
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { b.ask(t, fmt.Sprintf("n%d.example", i), dns.TypeA) })
		<-arrived
	}
	m := b.ask(t, "one.more.example", dns.TypeA)
	if _, text := ede(m); m.Rcode != dns.RcodeServerFailure || !strings.Contains(text, "more than 2 names") {
		t.Errorf("the third: %v", m)
	}
	close(release)
	wg.Wait()
}

// TestWildcardNames checks that generated names of real services are allowed, and encoded data is not.
func TestWildcardNames(t *testing.T) {
	sum := sha256.Sum256([]byte("x"))
	b32 := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
	hexsum := hex.EncodeToString(sum[:])
	var data []byte
	for i := range 4 {
		s := sha256.Sum256([]byte{byte(i)})
		data = append(data, s[:]...)
	}
	long := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(data))
	for _, row := range []struct {
		guest, zone string
		ok          bool
	}{
		{"d111111abcdef8", "cloudfront.net", true},
		{"d3k81ch9hvuctc", "cloudfront.net", true},
		{"productionresultssa19", "blob.core.windows.net", true},
		{"0a1b2c3d4e5f60718293a4b5", "blob.core.windows.net", true},
		{"my-bucket-0123456789abcdef0123456789abcdef.s3.us-west-2", "amazonaws.com", true},
		{"vpce-0a1b2c3d4e5f60718-9z8y7x6w-us-east-1a.s3.us-east-1.vpce", "amazonaws.com", true},
		{"k8s-istiosys-istioing-1a2b3c4d5e-0f1e2d3c4b5a6978.elb.eu-central-1", "amazonaws.com", true},
		{"internal-a0b1c2d3e4f5061728394a5b6c7d8e9f-1234567890.us-east-1.elb", "amazonaws.com", true},
		{"bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi.ipfs", "dweb.link", true},
		{"rr3---sn-4g5e6nsz", "googlevideo.com", true},
		{"friendly-space-waddle-7q9jx5r6jvp3rw9g-3000", "app.github.dev", true},
		{"my-project-git-feature-some-long-branch-name-my-team", "vercel.app", true},
		{"pkg-containers", "githubusercontent.com", true},
		{b32, "example.com", true},
		{hexsum[:32] + "." + hexsum[32:], "example.com", true},
		{"a.b.c.d.e.f", "example.com", true},

		{strings.Repeat("a", 50) + "." + strings.Repeat("a", 50), "example.com", false},
		{long[:50] + "." + long[50:99], "example.com", false},
		{b32 + "." + b32[:47], "example.com", false},
		{hexsum[:63] + "." + hexsum[:36], "example.com", false},
	} {
		w := newWildcards(Limits{}.withDefaults(), time.Now)
		v, ok := w.check(row.guest+"."+row.zone, row.zone)
		if ok != row.ok {
			t.Errorf("%s (%d characters, %.0f bits): %v %q", row.guest, len(row.guest), entropy(row.guest), ok, v.Reason)
		}
		if !ok && (v.Allowed || v.Rule != -1 || v.Reason == "") {
			t.Errorf("%s: verdict %+v", row.guest, v)
		}
	}
}

func TestNewNamesAreBounded(t *testing.T) {
	z := newZone(t, nil)
	p := allowing{names: []string{"exact.example.com", "*.example.com", "*.example.net"}}
	b := newBench(t, p, []netip.AddrPort{z.addr}, func(c *Config) { c.QueryBurst = 10000 })
	ask := func(name string) int {
		t.Helper()
		return b.ask(t, name, dns.TypeA).Rcode
	}
	upstream := func() int { return len(z.queries()) }
	for i := range 200 {
		ask(fmt.Sprintf("n%d.example.com", i))
	}
	if got := upstream(); got != 60 {
		t.Errorf("%d of 200 new names went upstream", got)
	}
	m := b.ask(t, "n100.example.com", dns.TypeA)
	if code, text := ede(m); code != 15 || !strings.Contains(text, "more than 60 new names below *.example.com") {
		t.Errorf("the refusal says %d %q", code, text)
	}
	ask("exact.example.com") // matches by its full name
	ask("n0.example.net")    // matches another wildcard
	if got := upstream(); got != 62 {
		t.Errorf("%d queries upstream, want 62", got)
	}
	b.advance(10 * time.Minute) // longer than the time to live of the cached answers
	for i := range 60 {
		ask(fmt.Sprintf("n%d.example.com", i)) // known names do not count
	}
	for i := range 200 {
		ask(fmt.Sprintf("m%d.example.com", i))
	}
	if got := upstream(); got != 62+60+60 {
		t.Errorf("%d queries upstream, want %d", got, 62+60+60)
	}
}

// TestNoTunnelThroughTypes checks that no query type transports data that a name does not.
func TestNoTunnelThroughTypes(t *testing.T) {
	z := newZone(t, nil)
	b := newBench(t, allowing{names: []string{"*.example.com"}}, []netip.AddrPort{z.addr}, func(c *Config) { c.QueryBurst = 100000 })
	for typ := range 1 << 10 {
		if typ != int(dns.TypeA) && typ != int(dns.TypeAAAA) {
			b.ask(t, "x.example.com", uint16(typ))
		}
	}
	if got := z.queries(); len(got) != 0 {
		t.Errorf("asked upstream: %v", got)
	}
}

func BenchmarkAnswerDenied(b *testing.B) {
	r := newBench(b, allowing{}, nil, func(c *Config) { c.QueryBurst = 1 << 40; c.Report = func(caisson.Decision) {} })
	q, _ := new(dns.Msg).SetQuestion("some.host.example.com.", dns.TypeA).SetEdns0(1232, false).Pack()
	b.ReportAllocs()
	for b.Loop() {
		r.Answer(b.Context(), q, false)
	}
}
