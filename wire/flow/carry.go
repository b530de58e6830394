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

// carry relays an established connection until it ends.
func (c *flow) carry(g *guest, up *net.TCPConn) {
	r, err := newRelay(c, g, up)
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
	c.carryNamed(r)
}

// Which side sent the first byte, on a connection where either may.
const (
	nobody int32 = iota
	world
	sandbox
)

// carryNamed relays what the sandbox sends if it is addressed to a name that is allowed. The destination may send first, and its
// bytes are relayed at once.
func (c *flow) carryNamed(r *relay) {
	var first atomic.Int32
	r.startIn(func() bool { return first.CompareAndSwap(nobody, world) })
	var e ear
	lang := c.judge(r, &e)
	if lang == langHTTP && !first.CompareAndSwap(nobody, sandbox) {
		select {
		case <-r.in: // the destination sent nothing, but its side has ended
			lang = unclear
		default:
			lang = e.bad("HTTP was spoken after the other side had begun")
		}
	}
	switch lang {
	case langHTTP:
		r.up.SetReadDeadline(time.Unix(1, 0)) // interrupt the read from the destination; it has sent nothing
		r.ends.Wait()
		r.up.SetReadDeadline(time.Time{})
		r.g.unread(e.heard)
		c.serveHTTP(r.g, r.up)
	case langTLS, langOther:
		var line *firstLine
		if lang == langOther {
			line = &firstLine{}
		}
		r.startOut(e.heard, line)
		e = ear{} // release the buffer, which may be large, because the flow may be long
		r.wait()
	case langBad:
		c.refuse(e.name, caisson.Verdict{Rule: -1, Reason: e.reason})
		fallthrough
	default:
		c.end("")
		r.ends.Wait()
	}
}

// judge reads the first bytes from the sandbox and returns their protocol: langBad if it is not allowed, unclear if the
// connection broke before the protocol was known.
func (c *flow) judge(r *relay, e *ear) language {
	lang, err := c.hear(r.g, e)
	if err != nil {
		return unclear
	}
	port := c.what.Dst.Port()
	only := port == portHTTP || port == portTLS
	switch {
	case lang == unclear && only && len(e.heard) > 0: // the sandbox has closed its side
		return e.bad("the connection ended within its first words")
	case lang == unclear:
		return langOther
	case lang == langBad:
	case port == portHTTP && lang != langHTTP:
		return e.bad("a rule allows the name, so only plain HTTP can be spoken on port 80")
	case port == portTLS && lang != langTLS:
		return e.bad("a rule allows the name, so only TLS can be spoken on port 443")
	case lang == langTLS:
		return c.checkTLS(e)
	}
	return lang
}

// checkTLS checks whether the server name is allowed. The caller must report a refusal.
func (c *flow) checkTLS(e *ear) language {
	if e.name == "" {
		return e.bad("a rule allows the name, so TLS must say it (no server name in the ClientHello)")
	}
	v := c.say(e.name)
	if !v.Allowed {
		if !plausibleName(e.name) {
			e.name = ""
		}
		return e.bad(v.Reason)
	}
	return langTLS
}

// hear reads until the protocol of the sandbox is known, or the sandbox closes its side, which leaves it unclear. The time is
// limited from the first byte on.
func (c *flow) hear(g *guest, e *ear) (language, error) {
	buf := make([]byte, 2<<10)
	for {
		n, err := g.Read(buf)
		if len(e.heard) == 0 && n > 0 {
			g.SetReadDeadline(time.Now().Add(c.f.times.speech))
		}
		e.heard = append(e.heard, buf[:n]...)
		lang := e.listen()
		switch {
		case lang != unclear:
			return lang, g.SetReadDeadline(time.Time{})
		case isTimeout(err) && len(e.heard) == 0: // the destination closed its side long ago
			return unclear, err
		case isTimeout(err):
			return e.bad("too little was said to tell for whom"), nil
		case err != nil && g.failed():
			return unclear, err
		case err != nil:
			return unclear, nil
		}
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}
