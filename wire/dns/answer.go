package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/miekg/dns"
)

const (
	maxQuery = 1232 // bytes of a query: a question, and options that are ignored
	maxUDP   = 4096 // bytes of an answer over UDP, even if the guest accepts more

	virtualTTL  = time.Minute     // time to live of answers that need no upstream lookup
	maxGuestTTL = 5 * time.Minute // highest TTL in answers; guests look names up again after it, so a policy change takes effect
)

// A reply is the content of an answer. The zero reply means that the name exists and has no such records.
type reply struct {
	rcode int           // response code, such as NXDOMAIN
	addrs []netip.Addr  // addresses of the requested type
	ttl   time.Duration // time to live of addrs
	// code and text are an extended error for guests whose query accepts one; there is none if code is noExtendedError.
	code int
	text string // the text of the extended error
}

const noExtendedError = -1 // value of reply.code for an answer without an extended error

// Answer answers one query, which was received over TCP or UDP. It returns nil if no answer must be sent: for malformed messages
// that are not queries, and for some of the queries that exceed the limits. It takes as long as the lookup, at most 5 seconds.
func (r *Resolver) Answer(ctx context.Context, query []byte, tcp bool) []byte {
	const header = 12
	if len(query) < header || query[2]&0x80 != 0 {
		return nil
	}
	admitted, tell := r.admit()
	if !admitted {
		v := refusal("more than %d queries a second", r.c.QueriesPerSecond)
		r.report("", netip.Addr{}, v)
		if !tell {
			return nil
		}
		q, rcode := parseQuery(query)
		if rcode == dns.RcodeSuccess {
			return pack(q, reply{rcode: dns.RcodeServerFailure, code: int(dns.ExtendedErrorCodeOther), text: v.Reason}, tcp)
		}
		return pack(q, reply{rcode: rcode, code: noExtendedError}, tcp)
	}
	q, rcode := parseQuery(query)
	if rcode != dns.RcodeSuccess {
		return pack(q, reply{rcode: rcode, code: noExtendedError}, tcp)
	}
	return pack(q, r.answer(ctx, q.Question[0]), tcp)
}

// parseQuery parses a query. If the query cannot be answered, rcode is the error code of the answer, and q has the part of the
// query that the answer repeats.
func parseQuery(b []byte) (q *dns.Msg, rcode int) {
	id, flags := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	counts := [4]uint16{}
	for i := range counts {
		counts[i] = binary.BigEndian.Uint16(b[4+2*i:])
	}
	head := &dns.Msg{MsgHdr: dns.MsgHdr{Id: id, Opcode: int(flags >> 11 & 0xf), RecursionDesired: flags&0x100 != 0}}
	const truncated = 0x200
	switch {
	case head.Opcode != dns.OpcodeQuery:
		return head, dns.RcodeNotImplemented
	// A query has one question and at most two additional records: an OPT record and a signature. All other records are invalid
	// in a query, and parsing them costs more than refusing them.
	case len(b) > maxQuery, counts[0] != 1, counts[1] != 0, counts[2] != 0, counts[3] > 2, flags&truncated != 0:
		return head, dns.RcodeFormatError
	}
	q = new(dns.Msg)
	if err := q.Unpack(b); err != nil || len(q.Question) != 1 {
		return head, dns.RcodeFormatError
	}
	opts := 0
	for _, rr := range q.Extra {
		if opt, ok := rr.(*dns.OPT); ok {
			if opts++; opt.Version() != 0 {
				return q, dns.RcodeBadVers
			}
		}
	}
	switch question := q.Question[0]; {
	case opts > 1:
		return head, dns.RcodeFormatError
	case question.Qclass != dns.ClassINET:
		return q, dns.RcodeRefused
	case question.Qtype == dns.TypeAXFR, question.Qtype == dns.TypeIXFR, question.Qtype == dns.TypeMAILA, question.Qtype == dns.TypeMAILB:
		return q, dns.RcodeRefused
	}
	return q, dns.RcodeSuccess
}

// pack encodes a as the answer to q. If not all records fit into a message, it omits some and sets the truncation bit.
func pack(q *dns.Msg, a reply, tcp bool) []byte {
	m := &dns.Msg{Question: q.Question, Compress: true}
	m.MsgHdr = dns.MsgHdr{
		Id: q.Id, Response: true, Opcode: q.Opcode, RecursionDesired: q.RecursionDesired, RecursionAvailable: true,
		CheckingDisabled: q.CheckingDisabled, Rcode: a.rcode,
	}
	for _, addr := range a.addrs {
		h := dns.RR_Header{Name: q.Question[0].Name, Class: dns.ClassINET, Ttl: uint32(a.ttl / time.Second)}
		if addr.Is4() {
			h.Rrtype = dns.TypeA
			m.Answer = append(m.Answer, &dns.A{Hdr: h, A: addr.AsSlice()})
		} else {
			h.Rrtype = dns.TypeAAAA
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: h, AAAA: addr.AsSlice()})
		}
	}
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = min(int(opt.UDPSize()), maxUDP)
		m.SetEdns0(maxQuery, opt.Do())
		if a.code != noExtendedError {
			own := m.IsEdns0()
			own.Option = append(own.Option, &dns.EDNS0_EDE{InfoCode: uint16(a.code), ExtraText: a.text})
		}
	}
	if tcp {
		size = dns.MaxMsgSize
	}
	m.Truncate(size)
	b, err := m.Pack()
	if err != nil { // the question cannot be encoded again, so the answer is an error without it
		m = &dns.Msg{MsgHdr: dns.MsgHdr{Id: q.Id, Response: true, Opcode: q.Opcode, Rcode: dns.RcodeFormatError}}
		b, _ = m.Pack() // encoding a header alone cannot fail
	}
	return b
}

// answer decides whether the policy allows the question q, and if so looks up its name.
func (r *Resolver) answer(ctx context.Context, q dns.Question) reply {
	name := lower(q.Name)
	if name == "" {
		return r.blocked(dns.RcodeRefused, refusal("the root has nothing for sandboxes"), "")
	}
	if !validName(name) {
		v := refusal("not the name of a host: it may have only letters, digits, hyphens and underscores")
		r.report("", netip.Addr{}, v)
		return r.blocked(dns.RcodeNameError, v, "")
	}
	if l, ok := r.specialAnswer(name); ok {
		return r.answerLocal(name, q.Qtype, l)
	}
	v, wildcard := r.c.Decider().DecideName(name)
	if v.Allowed && wildcard != "" && wildcard != "*" {
		if refused, ok := r.wildcards.check(name, wildcard); !ok {
			v = refused
		}
	}
	if !v.Allowed {
		r.report(name, netip.Addr{}, v)
		return r.blocked(dns.RcodeNameError, v, name)
	}
	if q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
		v := refusal("only addresses are looked up, not records of type %s", dns.Type(q.Qtype))
		// Queries of type HTTPS and SVCB are not reported: every browser sends them, and works without an answer.
		if q.Qtype != dns.TypeHTTPS && q.Qtype != dns.TypeSVCB {
			r.report(name, netip.Addr{}, v)
		}
		return reply{code: int(dns.ExtendedErrorCodeNotSupported), text: v.Reason}
	}
	return r.lookup(ctx, name, Type(q.Qtype), v)
}

// answerLocal returns the reply for a name that is answered without an upstream lookup.
func (r *Resolver) answerLocal(name string, qtype uint16, l localAnswer) reply {
	if !l.quiet {
		r.report(name, netip.Addr{}, l.verdict)
	}
	if !l.exists {
		return r.blocked(dns.RcodeNameError, l.verdict, "")
	}
	a := reply{ttl: virtualTTL, code: noExtendedError}
	for _, addr := range l.addrs {
		if isType(addr, Type(qtype)) {
			a.addrs = append(a.addrs, addr)
		}
	}
	return a
}

// tooManyLookups returns the reply to a query for name that is refused because the limit of concurrent lookups, most, is reached.
func (r *Resolver) tooManyLookups(name string, most int) reply {
	v := refusal("more than %d names are being looked up for this sandbox; try again", most)
	r.report(name, netip.Addr{}, v)
	return reply{rcode: dns.RcodeServerFailure, code: int(dns.ExtendedErrorCodeOther), text: v.Reason}
}

// lookup answers with the addresses of name that the policy allows; allowed is the verdict on the name.
func (r *Resolver) lookup(ctx context.Context, name string, t Type, allowed caisson.Verdict) reply {
	select {
	case r.lookups <- struct{}{}:
		defer func() { <-r.lookups }()
	default:
		return r.tooManyLookups(name, r.c.Lookups)
	}
	if len(r.lookups) > r.c.BusyLookups && r.c.Upstream.Busy() {
		return r.tooManyLookups(name, r.c.BusyLookups)
	}
	r.report(name, netip.Addr{}, allowed)
	found, err := r.c.Upstream.Lookup(ctx, name, t)
	switch {
	case err != nil:
		return reply{rcode: dns.RcodeServerFailure, code: int(dns.ExtendedErrorCodeNetworkError), text: failureText(err)}
	case !found.Exists:
		return reply{rcode: dns.RcodeNameError, code: noExtendedError}
	}
	a := reply{ttl: min(found.TTL, maxGuestTTL), code: noExtendedError}
	decider := r.c.Decider() // read after the lookup, during which the policy may have changed
	var refused caisson.Verdict
	for _, addr := range found.Addrs {
		v := r.decideAddress(decider, name, addr, t)
		switch {
		case !v.Allowed:
			refused = v
			r.report(name, addr, v)
		case r.c.Usable(addr):
			a.addrs = append(a.addrs, addr)
		}
	}
	if refused.Reason != "" && len(a.addrs) == 0 {
		a.code, a.text = int(dns.ExtendedErrorCodeFiltered), r.explain(refused, name)
	}
	r.names.add(name, a.addrs, found.TTL)
	return a
}

// decideAddress returns the verdict on an address that the upstream returned for name.
func (r *Resolver) decideAddress(d caisson.Decider, name string, addr netip.Addr, t Type) caisson.Verdict {
	switch {
	case !isType(addr, t): // an IPv4-mapped address, which no legitimate AAAA record has
		return refusal("%s is not an address that a name may have", addr)
	case addr == r.c.Gateway4 || addr == r.c.Gateway6:
		return refusal("%s is this wire's own address", addr)
	}
	return d.DecideAddress(name, addr)
}

// isType reports whether a record of type t may contain the address a. IPv4-mapped addresses are of no type.
func isType(a netip.Addr, t Type) bool {
	return a.Is4() && t == A || a.Is6() && !a.Is4In6() && t == AAAA
}

// failureText returns the text with which a guest learns that a lookup failed with err.
func failureText(err error) string {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return "the lookup took too long"
	}
	return truncate(caisson.MessageOf(err), maxText)
}

// blocked returns a reply with the extended error "blocked", whose text is what explain returns for v and name; name may be "".
func (r *Resolver) blocked(rcode int, v caisson.Verdict, name string) reply {
	return reply{rcode: rcode, code: int(dns.ExtendedErrorCodeBlocked), text: r.explain(v, name)}
}

const (
	// maxText bounds the text of an extended DNS error, in bytes. It leaves room for the longest name in an answer of 512
	// bytes: header 12, question 259, OPT record 17.
	maxText    = 512 - 12 - 259 - 17
	maxReason  = 120 // bytes of the reason of a refusal in the text of an extended DNS error
	maxSandbox = 40  // bytes of the sandbox's id in the text of an extended DNS error
)

// explain returns the text of an extended error: v's reason, and a command that shows the operator more, with name as its
// argument if name is not "" and there is room.
func (r *Resolver) explain(v caisson.Verdict, name string) string {
	why := truncate(v.Reason, maxReason) + "; the operator can see more with: caisson policy explain " + r.c.Sandbox
	if name != "" && len(why)+1+len(name) <= maxText {
		why += " " + name
	}
	return why
}

// truncate returns s, escaped, as one line of at most max bytes.
func truncate(s string, max int) string {
	const dots = "..."
	if s = safetext.Escape(s); len(s) <= max {
		return s
	}
	cut := max - len(dots)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + dots
}
