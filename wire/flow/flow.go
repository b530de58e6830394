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

// A flow is one connection or exchange of datagrams, from when the sandbox asks for it until nothing of it is left.
type flow struct {
	f      *Forwarder
	what   caisson.Flow // with the names as they were at the start
	start  time.Time
	local  bool // to a service of the wire's own
	wide   bool // has large buffers
	ctx    context.Context
	cancel context.CancelFunc

	out, in atomic.Int64 // bytes from and to the sandbox

	mu       sync.Mutex
	own      bool            // guarded by mu; the destination is the host's
	verdict  caisson.Verdict // guarded by mu
	accepted bool            // guarded by mu; reported as allowed
	said     string          // guarded by mu; the last name said on it, "" if none was
	ended    bool            // guarded by mu
	closers  []func()        // guarded by mu; end the flow abruptly
}

// begin decides on the flow for the first time. An error means that the policy allows it but the host has no way there.
func (c *flow) begin() (caisson.Verdict, error) {
	c.what.Names = slices.Clone(c.f.cfg.Names(c.what.Dst.Addr()))
	v := c.f.cfg.Decide(c.what)
	if !v.Allowed {
		return c.set(v, false), nil // without asking the kernel about every address that a sandbox tries
	}
	own, err := c.f.cfg.Dialer.Own(c.what.Dst.Addr())
	return c.set(exactly(v, own), own), err
}

// again decides on it once more, after a while in which the policy may have changed.
func (c *flow) again() caisson.Verdict {
	c.mu.Lock()
	own := c.own
	c.mu.Unlock()
	return c.set(exactly(c.f.cfg.Decide(c.what), own), own)
}

func (c *flow) set(v caisson.Verdict, own bool) caisson.Verdict {
	if v.Allowed && v.Name != "" && c.what.Protocol == "udp" && (c.what.Dst.Port() == 443 || c.what.Dst.Port() == 80) {
		v.Allowed = false
		v.Reason = "a rule allows the name, but what QUIC says cannot be compared with it; tcp can"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verdict, c.own = v, own
	return v
}

// accept reports that the flow is allowed. It returns false if it has ended meanwhile.
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
	c.f.report("flow", c.what, v, "")
	return true
}

// onEnd has fn called when the flow is ended before its time; at once if it has been. fn may be called more than once.
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

// end resets the flow on both sides. A reason other than "" is reported, as a denial.
func (c *flow) end(reason string) {
	c.mu.Lock()
	first := !c.ended
	c.ended = true
	closers := c.closers
	c.closers = nil
	v := c.verdict
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
		c.f.report("flow", c.what, v, reason)
	}
}

// done gives the flow's place back, and reports how much it has carried.
func (c *flow) done() {
	c.end("")
	out, in := c.out.Load(), c.in.Load()
	f := c.f
	f.mu.Lock()
	delete(f.flows, c)
	if c.what.Protocol == "udp" {
		f.udp--
	} else {
		f.tcp--
	}
	if c.wide {
		f.wide--
	}
	if port := c.what.Dst.Port(); c.local {
		if f.local[port]--; f.local[port] == 0 {
			delete(f.local, port)
		}
	}
	f.cfg.Budget.give(c.wide)
	f.bytesOut.Add(out)
	f.bytesIn.Add(in)
	f.mu.Unlock()
	c.mu.Lock()
	accepted, v := c.accepted, c.verdict
	c.mu.Unlock()
	if accepted {
		f.cfg.Report(caisson.Decision{
			At: c.start, Kind: "flow", Allowed: true, Rule: v.Rule, Reason: v.Reason, Name: v.Name,
			Address: c.what.Dst.String(), Protocol: c.what.Protocol, BytesOut: out, BytesIn: in,
		})
	}
	f.work.Done()
}

// recheck ends the flow if the policy, asked now, does not allow it.
func (c *flow) recheck() {
	c.mu.Lock()
	before, own, said := c.verdict, c.own, c.said
	c.mu.Unlock()
	v := exactly(c.f.cfg.Decide(c.what), own)
	switch {
	case !v.Allowed:
		c.end("ended by a change of policy: " + v.Reason)
	case v.Name != "" && before.Name == "" && before.Allowed:
		c.end("ended by a change of policy: a rule allows the name now, and what this connection said was not compared with it")
	case v.Name != "" && said != "":
		if v := c.decideName(said, own); !v.Allowed {
			c.end("ended by a change of policy: " + v.Reason)
		}
	}
}

// say decides whether the sandbox may speak to name on this flow. A change of policy during the call is not missed:
// the name is known to recheck first.
func (c *flow) say(name string) caisson.Verdict {
	c.mu.Lock()
	c.said = name
	own := c.own
	c.mu.Unlock()
	if !plausibleName(name) {
		return caisson.Verdict{Rule: -1, Reason: "what was said is not a name"}
	}
	addr := c.what.Dst.Addr()
	if !slices.Contains(c.what.Names, name) && !slices.Contains(c.f.cfg.Names(addr), name) {
		return caisson.Verdict{Rule: -1, Reason: fmt.Sprintf("%s was said, but the resolver has not answered that name with this address", name)}
	}
	return c.decideName(name, own)
}

func (c *flow) decideName(name string, own bool) caisson.Verdict {
	what := c.what
	what.Names = []string{name}
	return exactly(c.f.cfg.Decide(what), own)
}

// refuse reports that what was said on the flow is not allowed.
func (c *flow) refuse(name string, v caisson.Verdict) {
	v.Allowed = false
	v.Name = name
	c.f.requests.Add(1)
	c.f.report("request", c.what, v, "")
}

// plausibleName keeps what could not be a name on the internet out of reports and decisions. It wants lower case.
func plausibleName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	})
}

func limitReason(what string, most int) string {
	return fmt.Sprintf("the sandbox has reached its limit of %d %s", most, what)
}

// exactly adds to a verdict what no rule can say: own means that the destination is the host's.
func exactly(v caisson.Verdict, own bool) caisson.Verdict {
	if v.Allowed && own && !v.Exact {
		v.Allowed = false
		v.Reason = "the address is the host's own; only a rule whose host is exactly this address can allow it"
	}
	return v
}
