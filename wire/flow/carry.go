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

// carry carries an established connection to its end.
func (c *flow) carry(g *guest, up *net.TCPConn) {
	r, err := newRelay(c, g, up)
	if err != nil {
		c.end("")
		return
	}
	c.mu.Lock()
	name := c.verdict.Name
	c.mu.Unlock()
	if name == "" { // the address was allowed, whatever is said
		r.startIn(nil)
		r.startOut(nil)
		r.wait()
		return
	}
	c.carryNamed(r)
}

// Who speaks first, on a connection where that may be either.
const (
	nobody int32 = iota
	world
	sandbox
)

// carryNamed carries what the sandbox says if it is meant for a name that it may speak to.
func (c *flow) carryNamed(r *relay) {
	port := c.what.Dst.Port()
	anything := port != portHTTP && port != portTLS
	var first atomic.Int32
	if anything { // the world may speak first, and is heard at once
		r.startIn(func() bool { return first.CompareAndSwap(nobody, world) })
	}
	var e ear
	lang, err := c.hear(r.g, &e)
	switch {
	case err != nil:
		c.end("")
	case lang == unclear: // the sandbox has ended its side before that
		lang = langOther
		if !anything && len(e.heard) > 0 {
			lang = e.bad("the connection ended within its first words")
		}
	case lang == langOther && port == portHTTP, lang == langTLS && port == portHTTP:
		lang = e.bad("a rule allows the name, so only plain HTTP can be spoken on port 80")
	case lang != langTLS && lang != langBad && port == portTLS:
		lang = e.bad("a rule allows the name, so only TLS can be spoken on port 443")
	}
	if lang == langTLS {
		lang = c.checkTLS(&e)
	}
	if lang == langHTTP && !first.CompareAndSwap(nobody, sandbox) {
		lang = e.bad("HTTP was spoken after the other side had begun")
	}
	switch {
	case err != nil:
	case lang == langHTTP:
		if anything { // nothing has come from the world; stop waiting for it
			r.up.SetReadDeadline(time.Unix(1, 0))
			<-r.in
			r.up.SetReadDeadline(time.Time{})
		}
		r.g.unread(e.heard)
		c.serveHTTP(r.g, r.up)
		return
	case lang == langBad:
		c.refuse(e.name, caisson.Verdict{Rule: -1, Reason: e.reason})
		c.end("")
	default:
		if !anything {
			r.startIn(nil)
		}
		r.startOut(e.heard)
		r.wait()
		return
	}
	r.ends.Wait()
}

// checkTLS compares the server name with what is allowed. What it refuses it has not yet reported.
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

// hear reads until it is clear what the sandbox speaks, or it ends its side, which leaves it unclear. From its first byte on
// it has only so much time.
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
