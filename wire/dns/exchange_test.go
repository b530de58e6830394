package dns

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/miekg/dns"
)

// rawServer answers each UDP query with the datagrams that reply returns.
func rawServer(t *testing.T, reply func(query []byte) [][]byte) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			for _, b := range reply(slices.Clone(buf[:n])) {
				_, _ = conn.WriteToUDPAddrPort(b, from)
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// TestSpoofedAnswers checks that an answer to another question, or with another id, is ignored.
func TestSpoofedAnswers(t *testing.T) {
	pack := func(m *dns.Msg) []byte {
		b, err := m.Pack()
		if err != nil {
			t.Error(err)
		}
		return b
	}
	var ids sync.Map
	stranger, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	addr := rawServer(t, func(query []byte) [][]byte {
		q := new(dns.Msg)
		if err := q.Unpack(query); err != nil {
			t.Error(err)
			return nil
		}
		ids.Store(q.Id, true)
		good, evil := one("192.0.2.1")(q, false), one("192.0.2.66")(q, false)
		spoof := func(change func(*dns.Msg)) []byte {
			m := evil.Copy()
			change(m)
			return pack(m)
		}
		return [][]byte{
			{}, {1, 2}, query,
			binary.BigEndian.AppendUint16(nil, q.Id),
			spoof(func(m *dns.Msg) { m.Id++ }),
			spoof(func(m *dns.Msg) { m.Response = false }),
			spoof(func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }),
			spoof(func(m *dns.Msg) { m.Question = nil }),
			spoof(func(m *dns.Msg) { m.Question[0].Name = "other.example." }),
			spoof(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTXT }),
			spoof(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }),
			spoof(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }),
			spoof(func(m *dns.Msg) {})[:40],
			pack(good),
		}
	})
	for i := range 10 {
		a, err := newUpstream(t, nil, addr).Lookup(t.Context(), "e.example", A)
		if err != nil || len(a.Addrs) != 1 || a.Addrs[0].String() != "192.0.2.1" {
			t.Fatalf("%d: %+v, %v", i, a, err)
		}
	}
	n := 0
	ids.Range(func(any, any) bool { n++; return true })
	if n < 9 {
		t.Errorf("10 queries had %d different ids", n)
	}
}

// TestFloodOfForeignAnswers checks that a server that sends only other messages is skipped after a limited number of them.
func TestFloodOfForeignAnswers(t *testing.T) {
	addr := rawServer(t, func(query []byte) [][]byte {
		query[0]++
		query[2] |= 0x80
		return slices.Repeat([][]byte{query}, 2*maxUnrelated)
	})
	if _, err := newUpstream(t, nil, addr).Lookup(t.Context(), "e.example", A); caisson.KindOf(err) != caisson.Unavailable {
		t.Errorf("%v", err)
	}
}

// TestForeignRecords checks that records that were not requested are not in the answer.
func TestForeignRecords(t *testing.T) {
	for name, row := range map[string]struct {
		lines []string
		want  []string
		err   bool
	}{
		"beside the chain":  {[]string{"e.example. 60 A 192.0.2.1", "bank.example. 60 A 192.0.2.66"}, []string{"192.0.2.1"}, false},
		"in any order":      {[]string{"c.example. 60 A 192.0.2.3", "b.example. 60 CNAME c.example.", "e.example. 60 CNAME B.example."}, []string{"192.0.2.3"}, false},
		"other type":        {[]string{"e.example. 60 AAAA 2001:db8::1"}, nil, false},
		"other class":       {[]string{"e.example. 60 CH A 192.0.2.66"}, nil, false},
		"to itself":         {[]string{"e.example. 60 CNAME e.example."}, nil, true},
		"loop and address":  {[]string{"e.example. 60 CNAME b.example.", "b.example. 60 CNAME e.example.", "b.example. 60 A 192.0.2.66"}, nil, true},
		"alias and address": {[]string{"e.example. 60 CNAME b.example.", "e.example. 60 A 192.0.2.66", "b.example. 60 A 192.0.2.1"}, []string{"192.0.2.1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := new(dns.Msg).SetQuestion("e.example.", dns.TypeA)
			m.Response = true
			for _, l := range row.lines {
				rr, err := dns.NewRR(l)
				if err != nil {
					t.Fatal(err)
				}
				m.Answer = append(m.Answer, rr)
			}
			b, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			a, err := parseReply(b, m.Id, question{"e.example", A})
			var got []string
			for _, x := range a.Addrs {
				got = append(got, x.String())
			}
			if !slices.Equal(got, row.want) || (err != nil) != row.err {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestLongChain(t *testing.T) {
	for _, n := range []int{maxChain - 1, maxChain} {
		m := new(dns.Msg).SetQuestion("n0.example.", dns.TypeA)
		for i := range n {
			m.Answer = append(m.Answer, &dns.CNAME{
				Hdr: dns.RR_Header{Name: fmt.Sprintf("n%d.example.", i), Rrtype: dns.TypeCNAME, Class: 1, Ttl: 9}, Target: fmt.Sprintf("n%d.example.", i+1),
			})
		}
		if _, err := followAliases(m, question{"n0.example", A}); (err != nil) != (n == maxChain) {
			t.Errorf("%d aliases: %v", n, err)
		}
	}
}

func TestHugeTCPAnswer(t *testing.T) {
	z := newZone(t, nil)
	z.answerWith(func(q *dns.Msg, tcp bool) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		if m.Truncated = !tcp; tcp {
			for range 200 {
				m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: 1}, Txt: []string{strings.Repeat("x", 250)}})
			}
		}
		return m
	})
	if a, err := newUpstream(t, nil, z.addr).Lookup(t.Context(), "e.example", A); caisson.KindOf(err) != caisson.Unavailable || len(a.Addrs) > 0 {
		t.Errorf("%+v, %v", a, err)
	}
}
