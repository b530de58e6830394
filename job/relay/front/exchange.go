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
	copyBufferSize = 32 << 10 // bytes that are copied at once
	emptyRequest   = 4        // bytes of the push by which git tests whether it may push: a flush packet, with an empty answer
)

// A stream is the connection over which a job answers a request; the engine opens it. Closing it for writing marks the end of the
// request.
type stream interface {
	net.Conn
	CloseWrite() error
}

// An exchange copies a request to a job and the job's answer back, both at the same time: a job may answer before it has read the
// whole request, and then need not read the rest.
type exchange struct {
	h         *handler // the handler of the request
	w         http.ResponseWriter
	rc        *http.ResponseController // sets the deadlines of w and r
	r         *http.Request
	req       *Request    // the request to the engine for the stream
	conn      stream      // connection to the job
	idleTimer *time.Timer // fires when no data has moved for the idle time
	started   bool        // whether the status of the answer was written
	sentBytes int64       // bytes of the body; only send may access it until send has returned
	timedOut  atomic.Bool // whether idleTimer has fired
}

// newExchange returns an exchange over conn for the request r, which was parsed as req, and the answer w.
func newExchange(h *handler, w http.ResponseWriter, r *http.Request, req *Request, conn stream) *exchange {
	return &exchange{h: h, w: w, rc: http.NewResponseController(w), r: r, req: req, conn: conn}
}

// run performs the exchange. When it returns, the stream is closed and no goroutine reads the body.
func (x *exchange) run() error {
	if err := x.rc.EnableFullDuplex(); err != nil {
		return err
	}
	x.idleTimer = time.AfterFunc(x.h.idle, x.interrupt)
	defer x.idleTimer.Stop()
	sent := make(chan error, 1)
	go func() {
		err := x.send()
		sent <- err
		if err != nil {
			x.conn.Close() // not CloseWrite, so that the job sees an aborted request and receive returns
		}
	}()
	err := x.receive()
	x.conn.Close() // the rest of the request is not needed
	if err != nil && x.req.Advertise {
		// A request for the list of refs has no body to wait for, and a deadline would close the connection before the error is
		// reported.
		return errors.Join(<-sent, err)
	}
	if err != nil {
		select {
		case fault := <-sent:
			return errors.Join(fault, err)
		default:
		}
		// The answer cannot be completed. The deadline ends the connection and with it the read of the body.
		x.rc.SetReadDeadline(time.Now())
		return errors.Join(<-sent, err)
	}
	if err := x.rc.SetReadDeadline(time.Now().Add(x.h.drain)); err != nil {
		return errors.Join(<-sent, err)
	}
	x.idleTimer.Stop()
	if err := <-sent; err != nil {
		return err
	}
	if !x.started && x.sentBytes > emptyRequest {
		return errEnded // otherwise a push with an unknown result would look like one without output
	}
	if err := x.writeHeader(); err != nil {
		return err
	}
	x.rc.SetWriteDeadline(time.Time{})
	return x.rc.SetReadDeadline(time.Time{}) // so that the connection can be used for the next request
}

// interrupt ends all reads and writes of the exchange, because no data has moved for the idle time.
func (x *exchange) interrupt() {
	x.timedOut.Store(true)
	x.conn.Close()
	x.rc.SetReadDeadline(time.Now())
	x.rc.SetWriteDeadline(time.Now())
}

// send copies the request's body into the stream. If the job stops reading, the rest of the body is still read, because a client
// may not read the answer before it has sent everything.
func (x *exchange) send() error {
	if x.req.Advertise {
		x.conn.CloseWrite() // the error is ignored: a job that has answered may have exited
		return nil
	}
	body, err := x.h.decodedBody(x.r, x.req.Service)
	if err != nil {
		return err
	}
	return x.copyBody(body)
}

// copyBody copies body into the stream. If the job stops reading, it reads the rest of body without copying it.
func (x *exchange) copyBody(body io.Reader) error {
	buf := make([]byte, copyBufferSize)
	wanted := true
	for {
		n, err := body.Read(buf)
		x.sentBytes += int64(n)
		if n > 0 && wanted {
			x.idleTimer.Reset(x.h.idle)
			if _, err := x.conn.Write(buf[:n]); err != nil {
				wanted = false
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if wanted {
				x.conn.CloseWrite() // the error is ignored: the job may have exited
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// receive copies the answer from the stream and flushes each piece, because users watch the progress.
func (x *exchange) receive() error {
	buf := make([]byte, copyBufferSize)
	for {
		n, err := x.conn.Read(buf)
		if n > 0 {
			x.idleTimer.Reset(x.h.idle)
			if err := x.writeHeader(); err != nil {
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
			// The stream is reset if the job has exited without reading the whole request.
			if x.req.Advertise && !x.started {
				return errEnded
			}
			return nil
		default:
			return err
		}
	}
}

// writeHeader writes the header of the answer on its first call.
func (x *exchange) writeHeader() error {
	if x.started {
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
	x.started = true
	x.w.WriteHeader(http.StatusOK)
	return nil
}
