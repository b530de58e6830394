package dns

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/miekg/dns"
)

const (
	maxRounds    = 2        // how often each server is queried
	udpSize      = 1232     // bytes of an answer over UDP; passes every network without fragmentation
	maxReply     = 16 << 10 // bytes of an answer over TCP; no host needs more addresses
	maxUnrelated = 64       // datagrams that do not answer the query, after which the server is skipped
)

// queryServers queries the servers in turn until one returns addresses of the name, or answers that there are none.
func queryServers(ctx context.Context, servers []netip.AddrPort, q question) (Answer, error) {
	if len(servers) == 0 {
		return Answer{}, caisson.Errorf(caisson.Unavailable, "this host has no name servers")
	}
	var errs error
	for round := range maxRounds {
		for _, s := range servers {
			// In the second round servers are queried without EDNS, which some do not support.
			a, err := queryServer(ctx, s, q, round == 0)
			if err == nil {
				return a, nil
			}
			if ctx.Err() == nil || errs == nil {
				errs = errors.Join(errs, fmt.Errorf("%s: %w", s, err))
			}
			if ctx.Err() != nil {
				break
			}
		}
	}
	return Answer{}, caisson.Wrap(errs, caisson.Unavailable, "no name server answers for %s", q.name)
}

// queryServer queries one server over UDP, and over TCP if the answer is truncated. Error codes except NXDOMAIN are errors.
func queryServer(ctx context.Context, server netip.AddrPort, q question, edns bool) (Answer, error) {
	query, id, err := newQuery(q, edns)
	if err != nil {
		return Answer{}, err
	}
	for _, exchange := range []func(net.Conn, []byte, uint16, question) (Answer, error){exchangeUDP, exchangeTCP} {
		network := "udp"
		if err != nil { // the answer over UDP was truncated
			network = "tcp"
		}
		var a Answer
		if a, err = withConn(ctx, network, server, func(c net.Conn) (Answer, error) { return exchange(c, query, id, q) }); !errors.Is(err, errTruncated) {
			return a, err
		}
	}
	return Answer{}, err
}

// withConn calls do with a new connection to server, whose operations fail after tryTimeout or at the deadline of ctx. UDP
// sockets are connected, so that the kernel drops datagrams of other hosts, and each query uses a separate port.
func withConn(ctx context.Context, network string, server netip.AddrPort, do func(net.Conn) (Answer, error)) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, network, server.String())
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return Answer{}, err
		}
	}
	return do(conn)
}

// exchangeUDP sends a query and returns the first answer to it. It ignores at most maxUnrelated datagrams that do not answer it.
func exchangeUDP(conn net.Conn, query []byte, id uint16, q question) (Answer, error) {
	if _, err := conn.Write(query); err != nil {
		return Answer{}, err
	}
	buf := make([]byte, udpSize+1)
	for range maxUnrelated {
		n, err := conn.Read(buf)
		if err != nil {
			return Answer{}, err
		}
		a, err := parseReply(buf[:n], id, q)
		if !errors.Is(err, errUnrelated) {
			return a, err
		}
	}
	return Answer{}, errUnrelated
}

// exchangeTCP sends a query and returns the answer.
func exchangeTCP(conn net.Conn, query []byte, id uint16, q question) (Answer, error) {
	framed := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(query)), uint16(len(query)))
	if _, err := conn.Write(append(framed, query...)); err != nil {
		return Answer{}, err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return Answer{}, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > maxReply {
		return Answer{}, fmt.Errorf("an answer of %d bytes", n)
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(conn, buf); err != nil {
		return Answer{}, err
	}
	a, err := parseReply(buf, id, q)
	if errors.Is(err, errTruncated) {
		err = errors.New("truncated over tcp")
	}
	return a, err
}

// newQuery returns a query with an unpredictable id and no records except the question and, if edns is true, that of EDNS.
func newQuery(q question, edns bool) (query []byte, id uint16, err error) {
	var random [2]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, 0, err
	}
	m := new(dns.Msg).SetQuestion(q.name+".", uint16(q.typ))
	m.Id = binary.BigEndian.Uint16(random[:])
	if edns {
		m.SetEdns0(udpSize, false)
	}
	query, err = m.Pack()
	return query, m.Id, err
}

var (
	errUnrelated = errors.New("not an answer to this query") // datagrams that cause it are ignored: any host can forge datagrams
	errTruncated = errors.New("truncated")                   // after this error the query is repeated over TCP
)

const (
	maxChain = 16 // aliases followed at most
	maxAddrs = 32 // addresses of an answer at most
)

// parseReply parses msg as the answer to q. It returns errUnrelated for a message that must be ignored.
func parseReply(msg []byte, id uint16, q question) (Answer, error) {
	const header = 12
	if len(msg) < header || binary.BigEndian.Uint16(msg) != id || msg[2]&0x80 == 0 {
		return Answer{}, errUnrelated
	}
	var m dns.Msg
	truncated := msg[2]&0x02 != 0
	// A truncated message may end anywhere, so parsing it may fail.
	if err := m.Unpack(msg); err != nil && !truncated {
		return Answer{}, errUnrelated
	}
	ours := len(m.Question) == 1 && lower(m.Question[0].Name) == q.name && m.Question[0].Qtype == uint16(q.typ) &&
		m.Question[0].Qclass == dns.ClassINET && m.Opcode == dns.OpcodeQuery
	definite := m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError
	switch {
	case !definite && (ours || len(m.Question) == 0): // servers that refuse a query may omit the question
		return Answer{}, fmt.Errorf("the server answers %s", dns.RcodeToString[m.Rcode])
	case !ours:
		return Answer{}, errUnrelated
	case truncated:
		return Answer{}, errTruncated
	}
	return followAliases(&m, q)
}

// followAliases collects the addresses at the end of the chain of aliases that begins at the requested name. It ignores all other
// records, which were not requested.
func followAliases(m *dns.Msg, q question) (Answer, error) {
	aliases := map[string]*dns.CNAME{}
	addrs := map[string][]dns.RR{}
	for _, rr := range m.Answer {
		owner := lower(rr.Header().Name)
		if rr.Header().Class != dns.ClassINET {
			continue
		}
		switch rr := rr.(type) {
		case *dns.CNAME:
			if aliases[owner] == nil {
				aliases[owner] = rr
			}
		case *dns.A, *dns.AAAA:
			if rr.Header().Rrtype == uint16(q.typ) && len(addrs[owner]) < maxAddrs {
				addrs[owner] = append(addrs[owner], rr)
			}
		}
	}
	end, ttl := q.name, maxTTL
	for range maxChain {
		alias := aliases[end]
		if alias == nil {
			return answerFrom(m, addrs[end], ttl), nil
		}
		ttl = min(ttl, ttlDuration(alias.Hdr.Ttl))
		end = lower(alias.Target)
	}
	return Answer{}, fmt.Errorf("more than %d aliases in a row", maxChain)
}

// answerFrom returns the result of the lookup that the message m answers: the addresses in the records rrs. ttl is the lowest
// time to live in the chain of aliases that leads to rrs.
func answerFrom(m *dns.Msg, rrs []dns.RR, ttl time.Duration) Answer {
	a := Answer{Exists: m.Rcode == dns.RcodeSuccess}
	if a.Exists {
		for _, rr := range rrs {
			if addr, ok := recordAddress(rr); ok {
				a.Addrs = append(a.Addrs, addr)
				ttl = min(ttl, ttlDuration(rr.Header().Ttl))
			}
		}
	}
	if len(a.Addrs) == 0 {
		ttl = min(ttl, negativeTTL(m))
	}
	a.TTL = max(ttl, minTTL)
	return a
}

// recordAddress returns the address in an A or AAAA record.
func recordAddress(rr dns.RR) (netip.Addr, bool) {
	switch rr := rr.(type) {
	case *dns.A:
		a, ok := netip.AddrFromSlice(rr.A.To4())
		return a, ok
	case *dns.AAAA:
		return netip.AddrFromSlice(rr.AAAA) // an IPv4-mapped address in an AAAA record is not unmapped: it is treated as IPv6
	}
	return netip.Addr{}, false
}

// negativeTTL returns how long a negative answer may be cached (RFC 2308).
func negativeTTL(m *dns.Msg) time.Duration {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return min(ttlDuration(soa.Hdr.Ttl), ttlDuration(soa.Minttl), maxNegative)
		}
	}
	return minTTL
}

// ttlDuration converts a time to live; it treats values above 2³¹-1 as zero (RFC 2181).
func ttlDuration(ttl uint32) time.Duration {
	if ttl > 1<<31-1 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}
