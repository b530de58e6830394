package flow

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

// A flow is one connection or exchange of datagrams, from the sandbox's first packet until all its state is removed.
type flow struct {
	f         *Forwarder
	attrs     caisson.Flow       // protocol, destination, and its names when the flow began; decide sets the names, with mu held
	start     time.Time          // when the flow began
	toGateway bool               // the destination is a service at an address of the wire's gateway
	wide      bool               // the flow has large buffers
	ctx       context.Context    // ends with the flow
	cancel    context.CancelFunc // cancels ctx

	out, in atomic.Int64 // bytes from (out) and to (in) the sandbox

	mu        sync.Mutex
	hostOwned bool            // the destination is an address of the host; guarded by mu
	verdict   caisson.Verdict // the result of the latest decide or redecide; guarded by mu
	accepted  bool            // the flow was reported as allowed; guarded by mu
	lastName  string          // last host name that the sandbox sent, in TLS or HTTP; "" if none; guarded by mu
	ended     bool            // end was called; guarded by mu
	closers   []func()        // functions that close both sides of the flow; guarded by mu
}

// decide makes the first decision about the flow. An error means that the policy allows it but the host has no route.
func (c *flow) decide() (caisson.Verdict, error) {
	names := slices.Clone(c.f.cfg.Names(c.attrs.Dst.Addr()))
	c.mu.Lock()
	c.attrs.Names = names // set under the lock, because a concurrent recheck reads the names
	c.mu.Unlock()
	v := c.f.cfg.Decide(c.attrs)
	if !v.Allowed {
		return c.setVerdict(v, false), nil // no route lookup for denied addresses
	}
	own, err := c.f.cfg.Dialer.Own(c.attrs.Dst.Addr())
	return c.setVerdict(requireExact(v, own), own), err
}

// redecide makes the decision once more, because the policy may have changed.
func (c *flow) redecide() caisson.Verdict {
	c.mu.Lock()
	own := c.hostOwned
	c.mu.Unlock()
	return c.setVerdict(requireExact(c.f.cfg.Decide(c.attrs), own), own)
}

// setVerdict stores the verdict v on the flow and returns it; own reports whether the destination is an address of the host.
// Datagrams to the ports of QUIC that a rule allows by name are denied, because the name in QUIC cannot be checked.
func (c *flow) setVerdict(v caisson.Verdict, own bool) caisson.Verdict {
	if v.Allowed && v.Name != "" && c.attrs.Protocol == "udp" && (c.attrs.Dst.Port() == 443 || c.attrs.Dst.Port() == 80) {
		v.Allowed = false
		v.Reason = "a rule allows the name, but the name in QUIC cannot be compared with it; that of TCP can"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verdict, c.hostOwned = v, own
	return v
}

// accept reports the flow as allowed. It returns false if the flow has ended already.
func (c *flow) accept() bool {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return false
	}
	c.accepted = true
	v := c.verdict
	c.mu.Unlock()
	c.f.allowed.Add(1)
	c.f.report("flow", c.attrs, v, "")
	return true
}

// onEnd registers fn, which closes connections of the flow, to be called when the flow ends, normally or by a reset. If it has
// ended already, onEnd calls fn at once.
func (c *flow) onEnd(fn func()) {
	c.mu.Lock()
	ended := c.ended
	if !ended {
		c.closers = append(c.closers, fn)
	}
	c.mu.Unlock()
	if ended {
		fn()
	}
}

// end ends the flow: it resets those of its connections that are still open. A reason other than "" is reported as a denial.
func (c *flow) end(reason string) {
	c.mu.Lock()
	first := !c.ended
	c.ended = true
	closers := c.closers
	c.closers = nil
	v, attrs := c.verdict, c.attrs
	c.mu.Unlock()
	if !first {
		return
	}
	c.cancel()
	for _, fn := range closers {
		fn()
	}
	if reason != "" {
		v.Allowed = false
		c.f.denied.Add(1)
		c.f.report("flow", attrs, v, reason)
	}
}

// release removes the flow from the forwarder's table and its limits, and reports how many bytes were relayed.
func (c *flow) release() {
	c.end("")
	out, in := c.out.Load(), c.in.Load()
	f := c.f
	f.mu.Lock()
	delete(f.flows, c)
	if c.attrs.Protocol == "udp" {
		f.udp--
	} else {
		f.tcp--
	}
	if c.wide {
		f.wide--
	}
	if port := c.attrs.Dst.Port(); c.toGateway {
		if f.local[port]--; f.local[port] == 0 {
			delete(f.local, port)
		}
	}
	f.cfg.ProcessLimits.release(c.wide)
	f.bytesOut.Add(out)
	f.bytesIn.Add(in)
	f.mu.Unlock()
	c.mu.Lock()
	accepted, v := c.accepted, c.verdict
	c.mu.Unlock()
	if accepted {
		f.cfg.Report(caisson.Decision{
			At: c.start, Kind: "flow", Allowed: true, Rule: v.Rule, Reason: v.Reason, Name: v.Name,
			Address: c.attrs.Dst.String(), Protocol: c.attrs.Protocol, BytesOut: out, BytesIn: in,
		})
	}
	f.work.Done()
}

// recheck resets the flow if the current policy does not allow it.
func (c *flow) recheck() {
	c.mu.Lock()
	attrs, before, own, said := c.attrs, c.verdict, c.hostOwned, c.lastName
	c.mu.Unlock()
	v := requireExact(c.f.cfg.Decide(attrs), own)
	switch {
	case !v.Allowed:
		c.end("ended by a change of policy: " + v.Reason)
	case v.Name != "" && before.Name == "" && before.Allowed:
		c.end("ended by a change of policy: a rule allows the name now, and the name in this connection was not compared with it")
	case v.Name != "" && said != "":
		if v := c.decideName(said, own); !v.Allowed {
			c.end("ended by a change of policy: " + v.Reason)
		}
	}
}

// checkName decides whether the sandbox may send name, the host name of a TLS ClientHello or an HTTP request, on this flow. It
// stores the name first, so that a concurrent recheck of a changed policy includes it.
func (c *flow) checkName(name string) caisson.Verdict {
	c.mu.Lock()
	c.lastName = name
	own := c.hostOwned
	c.mu.Unlock()
	if !plausibleName(name) {
		return caisson.Verdict{Rule: -1, Reason: "the host in the connection is not a name"}
	}
	addr := c.attrs.Dst.Addr()
	if !slices.Contains(c.attrs.Names, name) && !slices.Contains(c.f.cfg.Names(addr), name) {
		return caisson.Verdict{Rule: -1, Reason: fmt.Sprintf("%s is the name in the connection, but the resolver has not answered that name with this address", name)}
	}
	return c.decideName(name, own)
}

// decideName evaluates the policy for the flow as if name were the destination's only name. own: the address is one of the host.
func (c *flow) decideName(name string, own bool) caisson.Verdict {
	what := c.attrs
	what.Names = []string{name}
	return requireExact(c.f.cfg.Decide(what), own)
}

// refuse reports that what the sandbox has sent on the flow is not allowed; name is the host name in it, or "".
func (c *flow) refuse(name string, v caisson.Verdict) {
	v.Allowed = false
	v.Name = name
	c.f.requests.Add(1)
	c.f.report("request", c.attrs, v, "")
}

// plausibleName reports whether s, in lower case, could be a host name. Other strings are kept out of reports and decisions.
func plausibleName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	})
}

// limitReason returns the reason of a refusal because of a limit of the sandbox.
func limitReason(what string, most int) string {
	return fmt.Sprintf("the sandbox has reached its limit of %d %s", most, what)
}

// requireExact denies an allowed flow to an address of the host (own) unless the rule names exactly that address.
func requireExact(v caisson.Verdict, own bool) caisson.Verdict {
	if v.Allowed && own && !v.Exact {
		v.Allowed = false
		v.Reason = "the address is the host's own; only a rule whose host is exactly this address can allow it"
	}
	return v
}
