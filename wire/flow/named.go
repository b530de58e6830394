package flow

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

const (
	portHTTP = 80
	portTLS  = 443
)

// relay relays an established connection until it ends.
func (c *flow) relay(g *guestConn, up *net.TCPConn) {
	r, err := newStreamRelay(c, g, up)
	if err != nil {
		c.end("")
		return
	}
	c.mu.Lock()
	name := c.verdict.Name
	c.mu.Unlock()
	if name == "" { // the address itself is allowed, so the content is not checked
		r.startIn(nil)
		r.startOut(nil, nil)
		r.wait()
		return
	}
	c.relayNamed(r)
}

// Values that tell which side sent the first byte, on a connection where either side may send first.
const (
	sideNone int32 = iota
	sideDestination
	sideSandbox
)

// relayNamed relays what the sandbox sends if it is addressed to a name that is allowed. The destination may send first, and its
// bytes are relayed at once.
func (c *flow) relayNamed(r *streamRelay) {
	var first atomic.Int32
	r.startIn(func() bool { return first.CompareAndSwap(sideNone, sideDestination) })
	var e sniffer
	lang := c.classify(r, &e)
	if lang == protoHTTP && !first.CompareAndSwap(sideNone, sideSandbox) {
		select {
		case <-r.in: // the destination sent nothing, but its side has ended
			lang = protoUndecided
		default:
			lang = e.deny("HTTP was sent after the server had begun")
		}
	}
	switch lang {
	case protoHTTP:
		r.up.SetReadDeadline(time.Unix(1, 0)) // interrupt the read from the destination; it has sent nothing
		r.workers.Wait()
		r.up.SetReadDeadline(time.Time{})
		r.g.unread(e.data)
		c.serveHTTP(r.g, r.up)
	case protoTLS, protoOther:
		var line *firstLine
		if lang == protoOther {
			line = &firstLine{}
		}
		r.startOut(e.data, line)
		e = sniffer{} // releases the buffer, which may be large, because the flow may last long
		r.wait()
	case protoDenied:
		c.refuse(e.name, caisson.Verdict{Rule: -1, Reason: e.reason})
		fallthrough
	default:
		c.end("")
		r.workers.Wait()
	}
}

// classify reads the first bytes from the sandbox and returns their protocol: protoDenied if it is not allowed, protoUndecided
// if the connection broke before the protocol was known.
func (c *flow) classify(r *streamRelay, e *sniffer) appProtocol {
	lang, err := c.sniff(r.g, e)
	if err != nil {
		return protoUndecided
	}
	port := c.attrs.Dst.Port()
	only := port == portHTTP || port == portTLS
	switch {
	case lang == protoUndecided && only && len(e.data) > 0: // the sandbox has closed its side too early
		return e.deny("the connection ended within its first words")
	case lang == protoUndecided:
		return protoOther
	case lang == protoDenied:
	case port == portHTTP && lang != protoHTTP:
		return e.deny("a rule allows the name, so only plain HTTP can be spoken on port 80")
	case port == portTLS && lang != protoTLS:
		return e.deny("a rule allows the name, so only TLS can be spoken on port 443")
	case lang == protoTLS:
		return c.checkTLS(e)
	}
	return lang
}

// checkTLS checks whether the server name is allowed. The caller must report a refusal.
func (c *flow) checkTLS(e *sniffer) appProtocol {
	if e.name == "" {
		return e.deny("a rule allows the name, so TLS must have it (no server name in the ClientHello)")
	}
	v := c.checkName(e.name)
	if !v.Allowed {
		if !plausibleName(e.name) {
			e.name = ""
		}
		return e.deny(v.Reason)
	}
	return protoTLS
}

// sniff reads until the protocol of the sandbox is known, or the sandbox closes its side, which leaves it protoUndecided. The
// time is limited from the first byte on.
func (c *flow) sniff(g *guestConn, e *sniffer) (appProtocol, error) {
	buf := make([]byte, 2<<10)
	for {
		n, err := g.Read(buf)
		if len(e.data) == 0 && n > 0 {
			g.SetReadDeadline(time.Now().Add(c.f.times.sniff))
		}
		e.data = append(e.data, buf[:n]...)
		lang := e.detect()
		switch {
		case lang != protoUndecided:
			return lang, g.SetReadDeadline(time.Time{})
		case isTimeout(err) && len(e.data) == 0: // nothing came within the time that startIn has set
			return protoUndecided, err
		case isTimeout(err):
			return e.deny("too little data came to find the name of the host"), nil
		case err != nil && g.failed():
			return protoUndecided, err
		case err != nil:
			return protoUndecided, nil
		}
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}
