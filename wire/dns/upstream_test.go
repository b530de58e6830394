package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/miekg/dns"
)

func newUpstream(t testing.TB, c *clock, servers ...netip.AddrPort) *Upstream {
	t.Helper()
	config := UpstreamConfig{Servers: servers}
	if c != nil {
		config.Now = c.Now
	}
	u, err := NewUpstream(config)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func one(addr string) func(*dns.Msg, bool) *dns.Msg {
	return func(q *dns.Msg, _ bool) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: 1, Ttl: 60}, A: net.ParseIP(addr)}}
		return m
	}
}

func TestCache(t *testing.T) {
	z := newZone(t, nil)
	z.answerWith(one("192.0.2.1"))
	c := &clock{now: time.Unix(1000, 0)}
	u := newUpstream(t, c, z.addr)
	lookup := func() Answer {
		t.Helper()
		a, err := u.Lookup(t.Context(), "e.example", A)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := lookup(); a.TTL != time.Minute || !a.Exists || len(a.Addrs) != 1 {
		t.Errorf("first: %+v", a)
	}
	c.advance(20 * time.Second)
	if a := lookup(); a.TTL != 40*time.Second {
		t.Errorf("after 20 s: %+v", a)
	}
	if got := len(z.queries()); got != 1 {
		t.Errorf("%d queries", got)
	}
	c.advance(41 * time.Second)
	if a := lookup(); a.TTL != time.Minute {
		t.Errorf("after 61 s: %+v", a)
	}
	if got := len(z.queries()); got != 2 {
		t.Errorf("%d queries", got)
	}
	for i := range cacheSize + 100 {
		u.mu.Lock()
		u.cache.Put(question{fmt.Sprint(i), A}, cachedAnswer{})
		u.mu.Unlock()
	}
	if u.cache.Len() != cacheSize {
		t.Errorf("the cache has %d entries", u.cache.Len())
	}
}

func TestNegativeCache(t *testing.T) {
	for name, row := range map[string]struct {
		rcode int
		soa   string
		ttl   time.Duration
		err   bool
	}{
		"nxdomain with soa":    {dns.RcodeNameError, "example. 900 SOA a. b. 1 2 3 4 60", time.Minute, false},
		"nxdomain without":     {dns.RcodeNameError, "", minTTL, false},
		"nodata with long soa": {dns.RcodeSuccess, "example. 90000 SOA a. b. 1 2 3 4 90000", maxNegative, false},
		"servfail":             {dns.RcodeServerFailure, "", failureTTL, true},
		"refused":              {dns.RcodeRefused, "", failureTTL, true},
	} {
		t.Run(name, func(t *testing.T) {
			z := newZone(t, nil)
			z.answerWith(func(q *dns.Msg, _ bool) *dns.Msg {
				m := new(dns.Msg).SetRcode(q, row.rcode)
				if row.soa != "" {
					rr, err := dns.NewRR(row.soa)
					if err != nil {
						t.Error(err)
					}
					m.Ns = append(m.Ns, rr)
				}
				return m
			})
			c := &clock{now: time.Unix(1000, 0)}
			u := newUpstream(t, c, z.addr)
			for _, step := range []time.Duration{0, row.ttl - time.Millisecond} {
				c.advance(step)
				a, err := u.Lookup(t.Context(), "e.example", A)
				if (err != nil) != row.err || (err != nil && caisson.KindOf(err) != caisson.Unavailable) {
					t.Fatalf("error %v", err)
				}
				if a.Exists != (row.rcode == 0) || len(a.Addrs) != 0 {
					t.Errorf("answer %+v", a)
				}
			}
			before := len(z.queries())
			if want := 1; !row.err && before != want {
				t.Errorf("%d queries, want %d", before, want)
			}
			c.advance(time.Millisecond)
			_, _ = u.Lookup(t.Context(), "e.example", A)
			if len(z.queries()) == before {
				t.Error("remembered for too long")
			}
		})
	}
}

func TestSetServersForgets(t *testing.T) {
	z1, z2 := newZone(t, nil), newZone(t, nil)
	z1.answerWith(one("192.0.2.1"))
	z2.answerWith(one("192.0.2.2"))
	u := newUpstream(t, nil, z1.addr)
	for range 2 {
		if got, err := u.Addrs(t.Context(), "E.example."); err != nil || got[0].String() != "192.0.2.1" {
			t.Fatal(got, err)
		}
	}
	u.SetServers([]netip.AddrPort{z2.addr})
	if got, err := u.Addrs(t.Context(), "e.example"); err != nil || got[0].String() != "192.0.2.2" {
		t.Fatal(got, err)
	}
	u.SetServers(nil)
	if _, err := u.Addrs(t.Context(), "e.example"); caisson.KindOf(err) != caisson.Unavailable {
		t.Errorf("without servers: %v", err)
	}
}

func TestAddrs(t *testing.T) {
	z := newZone(t, map[string][]string{
		"both.example.": {"both.example. 60 AAAA 2001:db8::1", "both.example. 60 A 192.0.2.1"},
		"six.example.":  {"six.example. 60 AAAA 2001:db8::1"},
		"none.example.": {},
		"litellm.":      {"litellm. 60 A 172.18.0.2"},
	})
	u := newUpstream(t, nil, z.addr)
	for _, row := range []struct {
		host string
		want []string
		kind caisson.Kind
	}{
		{"both.example", []string{"192.0.2.1", "2001:db8::1"}, ""},
		{"six.example", []string{"2001:db8::1"}, ""},
		{"none.example", nil, caisson.NotFound},
		{"gone.example", nil, caisson.NotFound},
		{"litellm", []string{"172.18.0.2"}, ""},
		{"localhost", []string{"127.0.0.1", "::1"}, ""},
		{"10.1.2.3", []string{"10.1.2.3"}, ""},
		{"::1", []string{"::1"}, ""},
		{"", nil, caisson.Invalid},
		{"a..b", nil, caisson.Invalid},
		{"a b.example", nil, caisson.Invalid},
		{strings.Repeat("a.", 127) + "a", nil, caisson.Invalid},
	} {
		got, err := u.Addrs(t.Context(), row.host)
		var text []string
		for _, a := range got {
			text = append(text, a.String())
		}
		if !slices.Equal(text, row.want) || (err != nil && caisson.KindOf(err) != row.kind) || (err != nil) != (row.kind != "") {
			t.Errorf("Addrs(%q) = %v, %v", row.host, text, err)
		}
	}
}

// TestNextServer checks that servers that are unreachable, do not answer or refuse are skipped.
func TestNextServer(t *testing.T) {
	gone, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := gone.LocalAddr().(*net.UDPAddr).AddrPort()
	gone.Close()
	refuses, noEDNS, good := newZone(t, nil), newZone(t, nil), newZone(t, nil)
	refuses.answerWith(func(q *dns.Msg, _ bool) *dns.Msg {
		m := new(dns.Msg).SetRcode(q, dns.RcodeRefused)
		m.Question = nil // as 9.9.9.9 does
		return m
	})
	noEDNS.answerWith(func(q *dns.Msg, tcp bool) *dns.Msg {
		if q.IsEdns0() != nil {
			return new(dns.Msg).SetRcodeFormatError(q)
		}
		return one("192.0.2.2")(q, tcp)
	})
	good.answerWith(one("192.0.2.1"))
	if got, err := newUpstream(t, nil, dead, refuses.addr, good.addr).Addrs(t.Context(), "e.example"); err != nil || got[0].String() != "192.0.2.1" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := newUpstream(t, nil, noEDNS.addr).Addrs(t.Context(), "e.example"); err != nil || got[0].String() != "192.0.2.2" {
		t.Errorf("without EDNS: %v, %v", got, err)
	}
}

// TestOneExchangeForMany checks that equal lookups share an exchange, which continues if one caller's context ends.
func TestOneExchangeForMany(t *testing.T) {
	z := newZone(t, nil)
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	z.answerWith(func(q *dns.Msg, tcp bool) *dns.Msg {
		arrived <- struct{}{}
		<-release
		return one("192.0.2.1")(q, tcp)
	})
	u := newUpstream(t, nil, z.addr)
	impatient, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := u.Lookup(impatient, "e.example", A); first <- err }()
	<-arrived
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if a, err := u.Lookup(t.Context(), "e.example", A); err != nil || len(a.Addrs) != 1 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	cancel()
	if err := <-first; err != context.Canceled {
		t.Errorf("the impatient one: %v", err)
	}
	close(release)
	wg.Wait()
	if got := len(z.queries()); got != 1 {
		t.Errorf("%d queries", got)
	}
	poll.Until(t, 2*time.Minute, func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.active == 0 && len(u.flights) == 0
	})
}

func TestFlightsAreBounded(t *testing.T) {
	u := newUpstream(t, nil, netip.MustParseAddrPort("127.0.0.1:1"))
	u.active = maxGuestFlights
	if _, err := u.Lookup(t.Context(), "e.example", A); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("%v", err)
	}
	// Lookups are reserved for the hosts of the configuration.
	if _, err := u.Addrs(t.Context(), "provider.example"); caisson.KindOf(err) != caisson.Unavailable {
		t.Errorf("%v", err)
	}
	u.mu.Lock()
	u.active = maxFlights
	u.mu.Unlock()
	if _, err := u.Addrs(t.Context(), "e.example"); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("%v", err)
	}
}
