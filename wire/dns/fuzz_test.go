package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/miekg/dns"
)

// FuzzAnswer checks that every answer is well formed, matches its query, and is not larger than the query allows.
func FuzzAnswer(f *testing.F) {
	seed := func(m *dns.Msg) {
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, false)
	}
	for _, name := range []string{"e.example.", "caisson.internal.", "localhost.", ".", `a\.b\000\255.example.`, "x.deep.down.example."} {
		for _, typ := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeANY} {
			seed(new(dns.Msg).SetQuestion(name, typ))
			seed(new(dns.Msg).SetQuestion(name, typ).SetEdns0(512, true))
		}
	}
	cookie := new(dns.Msg).SetQuestion("e.example.", dns.TypeA).SetEdns0(65535, false)
	cookie.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Cookie: "0011223344556677"}}
	seed(cookie)
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"), true) // a pointer to itself
	f.Add([]byte("\x00\x01\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff"), true)

	b := newBench(f, allowing{names: []string{"e.example", "*.deep.down.example"}}, nil, func(c *Config) {
		c.QueryBurst = 1 << 40
		c.Report = func(caisson.Decision) {}
	})
	f.Fuzz(func(t *testing.T, query []byte, tcp bool) {
		sent := bytes.Clone(query)
		got := b.Answer(context.Background(), query, tcp)
		if !bytes.Equal(sent, query) {
			t.Fatal("the query was changed")
		}
		if got == nil {
			if len(query) >= 12 && query[2]&0x80 == 0 {
				t.Fatal("a query without an answer")
			}
			return
		}
		m := new(dns.Msg)
		if err := m.Unpack(got); err != nil {
			t.Fatalf("the answer cannot be read: %v", err)
		}
		if !m.Response || m.Id != binary.BigEndian.Uint16(query) {
			t.Fatalf("not the answer to this query: %v", m)
		}
		if !tcp && len(got) > maxUDP {
			t.Fatalf("%d bytes over UDP", len(got))
		}
		if q := new(dns.Msg); q.Unpack(query) == nil && q.IsEdns0() == nil && (!tcp && len(got) > 512 || m.IsEdns0() != nil) {
			t.Fatalf("%d bytes, EDNS %v, to a query without EDNS", len(got), m.IsEdns0())
		}
	})
}

// FuzzParseReply checks that addresses from a server are of the requested type, limited in number, and expire.
func FuzzParseReply(f *testing.F) {
	q := new(dns.Msg).SetQuestion("e.example.", dns.TypeA)
	q.Id = 7
	for _, lines := range [][]string{
		nil,
		{"e.example. 60 A 192.0.2.1"},
		{"e.example. 60 AAAA ::ffff:1.2.3.4"},
		{"e.example. 60 CNAME b.example.", "b.example. 60 A 192.0.2.1"},
		{"e.example. 60 CNAME e.example."},
	} {
		m := new(dns.Msg).SetReply(q)
		for _, l := range lines {
			rr, err := dns.NewRR(l)
			if err != nil {
				f.Fatal(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		for _, rcode := range []int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeServerFailure} {
			m.Rcode = rcode
			b, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, false)
			f.Add(b, true)
		}
	}
	empty := new(dns.Msg).SetReply(q) // an A record without an address
	empty.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "e.example.", Rrtype: dns.TypeA, Class: 1}, A: net.IP{}}}
	if b, err := empty.Pack(); err == nil {
		f.Add(b, false)
	}
	f.Fuzz(func(t *testing.T, msg []byte, six bool) {
		ask := question{"e.example", A}
		if six {
			ask.typ = AAAA
		}
		a, err := parseReply(msg, 7, ask)
		if err != nil {
			if a.Exists || a.Addrs != nil {
				t.Fatalf("%+v with %v", a, err)
			}
			return
		}
		if binary.BigEndian.Uint16(msg) != 7 || len(a.Addrs) > maxAddrs || a.TTL < minTTL || a.TTL > maxTTL || (!a.Exists && len(a.Addrs) > 0) {
			t.Fatalf("%+v", a)
		}
		for _, addr := range a.Addrs {
			if (addr == netip.Addr{}) || addr.Is4() == six {
				t.Fatalf("%v is no address of the type asked for", addr)
			}
		}
	})
}
