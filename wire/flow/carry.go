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
		r.startOut(nil, nil)
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

// carryNamed carries what the sandbox says if it is meant for a name that it may speak to. The world may speak first, and is
// heard at once.
func (c *flow) carryNamed(r *relay) {
	var first atomic.Int32
	r.startIn(func() bool { return first.CompareAndSwap(nobody, world) })
	var e ear
	lang := c.judge(r, &e)
	if lang == langHTTP && !first.CompareAndSwap(nobody, sandbox) {
		select {
		case <-r.in: // it said nothing, but has ended
			lang = unclear
		default:
			lang = e.bad("HTTP was spoken after the other side had begun")
		}
	}
	switch lang {
	case langHTTP:
		r.up.SetReadDeadline(time.Unix(1, 0)) // stop waiting for the world; nothing has come
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
		e = ear{} // may be large, and the flow may be long
		r.wait()
	case langBad:
		c.refuse(e.name, caisson.Verdict{Rule: -1, Reason: e.reason})
		fallthrough
	default:
		c.end("")
		r.ends.Wait()
	}
}

// judge listens to the sandbox, and says what it speaks: langBad if that may not be carried, unclear if the connection broke
// before that could be known.
func (c *flow) judge(r *relay, e *ear) language {
	lang, err := c.hear(r.g, e)
	if err != nil {
		return unclear
	}
	port := c.what.Dst.Port()
	only := port == portHTTP || port == portTLS
	switch {
	case lang == unclear && only && len(e.heard) > 0: // it has ended its side
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
		case isTimeout(err) && len(e.heard) == 0: // the world has ended its side long ago
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
