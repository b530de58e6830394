package front

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	chunk        = 32 << 10 // bytes that are copied at once
	emptyRequest = 4        // bytes of the request, a flush, with which git tries whether it may push; only to that the answer may be empty
)

// A stream is what the engine opens. Its end is told by closing it for writing.
type stream interface {
	net.Conn
	CloseWrite() error
}

// An exchange is a request on its way to a job, and the job's answer on its way back. Both are copied at the same time: a job may answer before it
// has read everything, and then need not read the rest.
type exchange struct {
	h     *handler
	w     http.ResponseWriter
	rc    *http.ResponseController
	r     *http.Request
	req   *Request
	conn  stream
	alive *time.Timer // fires when nothing has moved for too long
	begun bool        // whether the answer has a status
	given int64       // bytes of the body; touched by send only, until that has ended
	stuck atomic.Bool // whether alive has fired
}

func newExchange(h *handler, w http.ResponseWriter, r *http.Request, req *Request, conn stream) *exchange {
	return &exchange{h: h, w: w, rc: http.NewResponseController(w), r: r, req: req, conn: conn}
}

// run does it all. The stream is closed when it returns, and nobody reads the body any more.
func (x *exchange) run() error {
	if err := x.rc.EnableFullDuplex(); err != nil {
		return err
	}
	x.alive = time.AfterFunc(x.h.idle, x.stop)
	defer x.alive.Stop()
	sent := make(chan error, 1)
	go func() {
		err := x.send()
		sent <- err
		if err != nil {
			x.conn.Close() // without the mark of an end; and receive, which fails now, finds the reason
		}
	}()
	err := x.receive()
	x.conn.Close() // what is not sent now is not wanted
	if err != nil && x.req.Advertise {
		// There is no body to be waited for; and a deadline would end the connection before it is told what is wrong.
		return errors.Join(<-sent, err)
	}
	if err != nil {
		select {
		case fault := <-sent:
			return errors.Join(fault, err)
		default:
		}
		// The answer cannot go on, so that the connection ends with it and the body with that.
		x.rc.SetReadDeadline(time.Now())
		return errors.Join(<-sent, err)
	}
	if err := x.rc.SetReadDeadline(time.Now().Add(x.h.drain)); err != nil {
		return errors.Join(<-sent, err)
	}
	x.alive.Stop()
	if err := <-sent; err != nil {
		return err
	}
	if !x.begun && x.given > emptyRequest {
		return errEnded // or a push of which nothing is known would look like one that said nothing
	}
	if err := x.begin(); err != nil {
		return err
	}
	x.rc.SetWriteDeadline(time.Time{})
	return x.rc.SetReadDeadline(time.Time{}) // for what comes next on the connection
}

// stop ends everything that somebody may be waiting for.
func (x *exchange) stop() {
	x.stuck.Store(true)
	x.conn.Close()
	x.rc.SetReadDeadline(time.Now())
	x.rc.SetWriteDeadline(time.Now())
}

// send copies the request's body into the stream. If the job does not
// want it all, the rest is read all the same, because a client may not listen before it has sent everything.
func (x *exchange) send() error {
	if x.req.Advertise {
		x.conn.CloseWrite() // a job that has answered already may be gone
		return nil
	}
	body, err := x.h.decoded(x.r, x.req.Service)
	if err != nil {
		return err
	}
	return x.copyBody(body)
}

func (x *exchange) copyBody(body io.Reader) error {
	buf := make([]byte, chunk)
	wanted := true
	for {
		n, err := body.Read(buf)
		x.given += int64(n)
		if n > 0 && wanted {
			x.alive.Reset(x.h.idle)
			if _, err := x.conn.Write(buf[:n]); err != nil {
				wanted = false
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if wanted {
				x.conn.CloseWrite() // a job that has ended needs no end
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// receive copies the answer out of the stream, each piece at once: people watch it.
func (x *exchange) receive() error {
	buf := make([]byte, chunk)
	for {
		n, err := x.conn.Read(buf)
		if n > 0 {
			x.alive.Reset(x.h.idle)
			if err := x.begin(); err != nil {
				return err
			}
			if _, err := x.w.Write(buf[:n]); err != nil {
				return err
			}
			if err := x.rc.Flush(); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			// Reset is what the end is called when the job has not read everything.
			if x.req.Advertise && !x.begun {
				return errEnded
			}
			return nil
		default:
			return err
		}
	}
}

// begin writes the answer's header, once.
func (x *exchange) begin() error {
	if x.begun {
		return nil
	}
	if err := x.r.Context().Err(); err != nil {
		return err
	}
	kind := "result"
	if x.req.Advertise {
		kind = "advertisement"
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/x-git-"+x.req.Service+"-"+kind)
	noCache(h)
	x.begun = true
	x.w.WriteHeader(http.StatusOK)
	return nil
}
