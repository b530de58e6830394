package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestPinsExpire(t *testing.T) {
	z := newZone(t, map[string][]string{
		"a.example.":    {"a.example. 60 A 192.0.2.1"},
		"b.example.":    {"b.example. 60 A 192.0.2.1"},
		"long.example.": {"long.example. 1800 A 192.0.2.2"},
	})
	b := newBench(t, allowing{names: []string{"*.example"}}, []netip.AddrPort{z.addr})
	addr := netip.MustParseAddr("192.0.2.1")
	b.ask(t, "a.example", dns.TypeA)
	b.ask(t, "long.example", dns.TypeA)
	b.advance(6 * time.Minute)
	b.ask(t, "b.example", dns.TypeA)
	if got := b.Names(netip.MustParseAddr("::ffff:192.0.2.1")); !slices.Equal(got, []string{"b.example", "a.example"}) {
		t.Errorf("after 6 minutes: %v", got)
	}
	b.advance(5 * time.Minute)
	if got := b.Names(addr); !slices.Equal(got, []string{"b.example"}) {
		t.Errorf("after 11 minutes: %v", got)
	}
	if got := b.Names(netip.MustParseAddr("192.0.2.2")); len(got) != 1 {
		t.Errorf("a record of half an hour is forgotten after 11 minutes: %v", got)
	}
	b.advance(20 * time.Minute)
	if got := append(b.Names(addr), b.Names(netip.MustParseAddr("192.0.2.2"))...); got != nil {
		t.Errorf("after 31 minutes: %v", got)
	}
}

func TestPinsAreBounded(t *testing.T) {
	c := clock{now: time.Unix(1, 0)}
	p := newNameCache(c.Now)
	for i := range 5000 {
		p.add(fmt.Sprintf("n%d.example", i), []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), gateway4}, time.Second)
	}
	if p.addrs.Len() != maxCachedAddrs {
		t.Errorf("%d addresses", p.addrs.Len())
	}
	if got := p.names(gateway4); len(got) != maxNamesPerAddr || got[0] != "n4999.example" {
		t.Errorf("%d names: %v", len(got), got)
	}
}
