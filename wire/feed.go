package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

// A feedMessage is an event or a request that the wire process sends to the engine, as a JSON packet. The feed is a
// SOCK_SEQPACKET pair of its own, so that the requests of the engine and of the wire process do not block each other. A request
// has a number, which its answer repeats. The engine answers in the order of the requests, except requests for tools, streams and
// connections. The answer to a request for a stream or a connection carries a descriptor.
type feedMessage struct {
	N         uint64               `json:"n,omitempty"`         // number of a request; 0: no answer is expected
	Journal   caisson.ID           `json:"journal,omitempty"`   // the journal that Lease, Return or Finished is about
	Lease     *leaseBody           `json:"lease,omitempty"`     // requests a lease
	Return    *returnBody          `json:"return,omitempty"`    // returns an unspent amount
	Finished  bool                 `json:"finished,omitempty"`  // nothing more will be written to Journal
	Rotate    bool                 `json:"rotate,omitempty"`    // requests another journal
	Grew      bool                 `json:"grew,omitempty"`      // tells that calls were appended to a journal
	Sandbox   caisson.ID           `json:"sandbox,omitempty"`   // the sandbox that Tool, Stream or Decisions is about
	Trace     string               `json:"trace,omitempty"`     // trace id of the attempt that Sandbox served; "" if none
	Tool      *functionCall        `json:"tool,omitempty"`      // requests a tool call on behalf of Sandbox
	Stream    *streamBody          `json:"stream,omitempty"`    // requests a stream for Sandbox
	Decisions []caisson.Decision   `json:"decisions,omitempty"` // decisions of the wire of Sandbox
	Dial      *caisson.IngressDial `json:"dial,omitempty"`      // requests a connection to a sandbox, for the ingress
	Requests  []routeRequest       `json:"requests,omitempty"`  // log entries of requests to routes
	Uses      []caisson.IngressUse `json:"uses,omitempty"`      // sandboxes to which the ingress passes requests
	Log       string               `json:"log,omitempty"`       // a line for the engine's log
}

// A leaseBody is a request for a lease.
type leaseBody struct {
	Account string         `json:"account"` // account that is charged
	Budget  string         `json:"budget"`  // key of the budget
	Need    caisson.Amount `json:"need"`    // the smallest amount that the lease must have
	Want    caisson.Amount `json:"want"`    // the largest amount that the lease may have
}

// A returnBody is a request to take back the unspent part of a lease.
type returnBody struct {
	Budget string         `json:"budget"` // key of the budget
	Amount caisson.Amount `json:"amount"` // the unspent part of the lease
}

// A functionCall is a call of a function that the engine offers to agents.
type functionCall struct {
	Name string          `json:"name"`         // name of the function
	In   json.RawMessage `json:"in,omitempty"` // arguments of the function
}

// A feedAnswer is the engine's answer to the request with the number N.
type feedAnswer struct {
	N      uint64          `json:"n"`                // number of the request
	Out    json.RawMessage `json:"out,omitempty"`    // result of a tool call
	Lease  caisson.Lease   `json:"lease,omitzero"`   // the lease that was granted
	Stream bool            `json:"stream,omitempty"` // the descriptor of a stream or connection is attached
	Kind   caisson.Kind    `json:"kind,omitempty"`   // kind of the error; "" for success
	Error  string          `json:"error,omitempty"`  // text of the error

	file *os.File // the attached descriptor, which the receiver closes; nil if none
}

// maxFeed bounds a message or an answer on the feed, in bytes.
const maxFeed = maxBody

// A feed is the wire process's end of the feed connection.
type feed struct {
	conn *net.UnixConn

	mu         sync.Mutex
	lastNumber uint64                     // number of the latest request; guarded by mu
	waiting    map[uint64]chan feedAnswer // receivers of answers by request number; guarded by mu; nil once the connection has ended
}

func newFeed(conn *net.UnixConn) *feed {
	return &feed{conn: conn, waiting: map[uint64]chan feedAnswer{}}
}

// run delivers answers to the pending requests until the connection ends.
func (f *feed) run() error {
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, c := range f.waiting {
			close(c)
		}
		f.waiting = nil
	}()
	buf := make([]byte, maxFeed+1)
	for {
		n, file, err := receiveFile(f.conn, buf)
		if err != nil {
			return err
		}
		a := feedAnswer{file: file}
		if err := unmarshal(buf[:n], &a); err != nil {
			a.close()
			return err
		}
		f.mu.Lock()
		c := f.waiting[a.N]
		delete(f.waiting, a.N)
		f.mu.Unlock()
		if c == nil {
			a.close()
			continue
		}
		c <- a // does not block, because the channel has room for one answer, and a request has one
	}
}

// send sends m and expects no answer. Packets are written atomically, so no lock is needed.
func (f *feed) send(m feedMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxFeed {
		return fmt.Errorf("%w: of %d bytes", errMessage, len(b))
	}
	_, err = f.conn.Write(b)
	return err
}

// call sends m and waits for its answer. It returns net.ErrClosed if the connection has ended.
func (f *feed) call(ctx context.Context, m feedMessage) (feedAnswer, error) {
	c := make(chan feedAnswer, 1)
	f.mu.Lock()
	if f.waiting == nil {
		f.mu.Unlock()
		return feedAnswer{}, net.ErrClosed
	}
	f.lastNumber++
	m.N = f.lastNumber
	f.waiting[m.N] = c
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.waiting, m.N)
		f.mu.Unlock()
	}()
	if err := f.send(m); err != nil {
		return feedAnswer{}, err
	}
	select {
	case a, ok := <-c:
		if !ok {
			return feedAnswer{}, net.ErrClosed
		}
		if m.Stream == nil && m.Dial == nil || a.Error != "" {
			a.close() // closes a descriptor that was not requested
		}
		if a.Error != "" {
			return a, caisson.Errorf(a.Kind, "%s", a.Error)
		}
		return a, nil
	case <-ctx.Done():
		return feedAnswer{}, ctx.Err()
	}
}

// countedCall sends the request m and waits for its answer. The request counts in slots under key; if slots permits no more
// requests, countedCall returns an Exhausted error with the text full. If ctx ends first, the request still counts until the
// engine has answered it. If countedCall succeeds, the caller must release the count.
func (f *feed) countedCall(ctx context.Context, slots *limiter, key caisson.ID, m feedMessage, full string) (feedAnswer, error) {
	if !slots.acquire(key) {
		return feedAnswer{}, caisson.Errorf(caisson.Exhausted, "%s", full)
	}
	type answer struct {
		feedAnswer
		err error
	}
	answered := make(chan answer)
	go func() {
		a, err := f.call(context.WithoutCancel(ctx), m)
		if err != nil {
			slots.release(key) // before the answer is passed on: its recipient may send the next request at once
			if _, ok := errors.AsType[*caisson.Error](err); !ok {
				err = noAnswer(err)
			}
		}
		select {
		case answered <- answer{a, err}:
		case <-ctx.Done():
			if err == nil {
				a.close()
				slots.release(key)
			}
		}
	}()
	select {
	case a := <-answered:
		return a.feedAnswer, a.err
	case <-ctx.Done():
		return feedAnswer{}, ctx.Err()
	}
}

// noAnswer returns the error for a request to which the engine gave no valid answer.
func noAnswer(cause error) error {
	return caisson.Wrap(cause, caisson.Unavailable, "the engine does not answer; try again in a moment")
}

// A lessor implements [caisson.Lessor] in the wire process, for one journal: it passes calls to the engine and awaits answers.
type lessor struct {
	feed    *feed
	journal caisson.ID
}

// Lease implements [caisson.Lessor]. A lease that arrives after ctx has ended stays reserved until the journal is finished.
func (l lessor) Lease(ctx context.Context, account, budget string, need, want caisson.Amount) (caisson.Lease, error) {
	a, err := l.feed.call(ctx, feedMessage{Journal: l.journal, Lease: &leaseBody{account, budget, need, want}})
	return a.Lease, err
}

// Return makes the engine take back a, the unspent part of a lease of budget.
func (l lessor) Return(ctx context.Context, budget string, a caisson.Amount) error {
	_, err := l.feed.call(ctx, feedMessage{Journal: l.journal, Return: &returnBody{budget, a}})
	return err
}

// Limits on the lines that the wire process can write to the engine's log: the process may be compromised, and disks are finite.
const (
	maxLine          = 2000             // bytes of a line
	linesPerInterval = 100              // lines in an interval; further lines are discarded
	logInterval      = 10 * time.Second // length of the interval
)

// Limits on the decisions that the wire process may report. A wire reports fewer than a hundred at once, and about two per second
// in the long run; see package report.
const (
	maxDecisions    = 256              // decisions in a message
	decisionsRate   = 1000             // decisions per second, of all wires
	decisionsBurst  = 8000             // decisions that are accepted at once
	droppedInterval = 10 * time.Second // time between two warnings about dropped decisions
)

// A decisionQuota limits the rate of decisions accepted from one wire process. The zero value has counted none.
type decisionQuota struct {
	used    float64   // decisions counted against decisionsBurst; decreases by decisionsRate per second
	last    time.Time // time of the last call of take
	dropped int64     // decisions dropped since take returned their number
	warned  time.Time // when take last returned a number of dropped decisions
}

// take reports whether n decisions may pass now. At most once per droppedInterval it also returns the number of decisions dropped
// since it last returned one, otherwise 0.
func (q *decisionQuota) take(now time.Time, n int64) (ok bool, dropped int64) {
	q.used = max(0, q.used-now.Sub(q.last).Seconds()*decisionsRate)
	q.last = now
	if ok = q.used+float64(n) <= decisionsBurst; ok {
		q.used += float64(n)
	} else {
		q.dropped += n
	}
	if q.dropped == 0 || now.Sub(q.warned) < droppedInterval {
		return ok, 0
	}
	dropped, q.dropped, q.warned = q.dropped, 0, now
	return ok, dropped
}

// A processState is the engine's state for one wire process, from its start to its exit.
type processState struct {
	m              *Manager      // the manager of all wires, which has started the process
	link           *link         // the engine's end of the control connection to the process
	decisions      decisionQuota // rate of decisions; used by listen only
	tools          *limiter      // tool calls in progress
	pendingStreams *limiter      // requests for streams that are not answered yet
	pendingDials   *limiter      // requests for connections to sandboxes that are not answered yet
}

// listen serves the engine's end of the feed of one wire process. It returns when the connection ends, or with an error on a
// malformed message.
func (s *processState) listen(ctx context.Context, conn *net.UnixConn) error {
	var background sync.WaitGroup
	defer background.Wait()
	rotate, done := make(chan struct{}, 1), make(chan struct{})
	background.Go(func() { s.rotate(ctx, rotate, done) })
	defer close(done)
	lines, since := 0, time.Now()
	buf := make([]byte, maxFeed+1)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		if n == 0 { // an empty packet: the end of a SOCK_SEQPACKET connection looks like one
			return nil
		}
		var msg feedMessage
		if err := unmarshal(buf[:n], &msg); err != nil {
			return err
		}
		if time.Since(since) > logInterval {
			lines, since = 0, time.Now()
		}
		switch {
		case msg.Lease != nil || msg.Return != nil:
			if err := s.answerLease(ctx, conn, msg); err != nil {
				return err
			}
		case msg.Tool != nil:
			if !s.startTool(ctx, conn, msg, background.Go) {
				return fmt.Errorf("%w: too many uses of tools", errMessage)
			}
		case msg.Stream != nil:
			if !s.openStream(ctx, conn, msg, background.Go) {
				return fmt.Errorf("%w: too many questions for streams", errMessage)
			}
		case msg.Dial != nil:
			if !s.startDial(ctx, conn, msg, background.Go) {
				return fmt.Errorf("%w: too many requests for connections", errMessage)
			}
		case len(msg.Requests) > maxRequestBatch:
			return fmt.Errorf("%w: %d requests of routes", errMessage, len(msg.Requests))
		case msg.Requests != nil:
			s.passRequests(msg.Requests)
		case len(msg.Uses) > maxUses:
			return fmt.Errorf("%w: %d uses of sandboxes", errMessage, len(msg.Uses))
		case msg.Uses != nil:
			if s.m.handlers.Used != nil {
				s.m.handlers.Used(msg.Uses)
			}
		case s.m.cfg.Ledger == nil && (msg.Rotate || msg.Finished):
			return fmt.Errorf("%w: there is no ledger", errMessage)
		case msg.Rotate:
			// The wire process sends one request for a journal and waits for it; it never needs more than a few journals at once.
			if s.link.journals.count() > maxJournals {
				return fmt.Errorf("%w: too many journals", errMessage)
			}
			select {
			case rotate <- struct{}{}:
			default: // another journal has been requested already
			}
		case msg.Finished:
			if s.link.journals.remove(msg.Journal) {
				background.Go(func() { s.finishJournal(ctx, msg.Journal) })
			}
		case msg.Grew:
			if s.m.cfg.Ledger != nil {
				s.m.cfg.Ledger.JournalGrew()
			}
		case len(msg.Decisions) > maxDecisions:
			return fmt.Errorf("%w: %d decisions", errMessage, len(msg.Decisions))
		case msg.Decisions != nil:
			n := int64(len(msg.Decisions))
			ok, dropped := s.decisions.take(time.Now(), max(n, 1))
			if dropped > 0 {
				s.m.log.WarnContext(ctx, "decisions of wires are not recorded: there are too many", "dropped", dropped)
			}
			if ok {
				s.passDecisions(msg.Sandbox, msg.Trace, msg.Decisions)
			}
		case msg.Log != "":
			if lines++; lines <= linesPerInterval {
				s.m.log.WarnContext(ctx, "log of the wire process", "line", msg.Log[:min(len(msg.Log), maxLine)])
			}
		}
	}
}

// answerLease answers a request for a lease, or to return the unspent part of one. It waits for the ledger.
func (s *processState) answerLease(ctx context.Context, conn *net.UnixConn, msg feedMessage) error {
	a := feedAnswer{N: msg.N}
	err := error(caisson.Errorf(caisson.Unavailable, "there is no such journal"))
	var lessor caisson.Lessor
	if s.link.journals.has(msg.Journal) {
		lessor = s.m.cfg.Ledger.Lessor(msg.Journal)
	}
	switch {
	case lessor == nil:
	case msg.Lease != nil:
		a.Lease, err = lessor.Lease(ctx, msg.Lease.Account, msg.Lease.Budget, msg.Lease.Need, msg.Lease.Want)
	default:
		err = lessor.Return(ctx, msg.Return.Budget, msg.Return.Amount)
	}
	if err != nil {
		a = feedAnswer{N: msg.N, Kind: caisson.KindOf(err), Error: caisson.MessageOf(err)}
		if a.Kind == caisson.Internal {
			s.m.log.ErrorContext(ctx, "a lease could not be granted or returned", "err", err)
		}
	}
	return s.send(conn, a, nil)
}

// respond answers a request in the background with the result of execute, and with the descriptor of file unless file is nil. The
// request counts in slots under key until it is answered. respond returns false if more requests are unanswered than the wire
// process may send: the wire process enforces the same limits, so exceeding one is a violation, for which the caller kills the
// process. abort, unless nil, is called if the answer cannot be sent.
func (s *processState) respond(
	conn *net.UnixConn, slots *limiter, key caisson.ID, background func(func()),
	execute func() (a feedAnswer, file *os.File, abort func(), err error),
) bool {
	if !slots.acquire(key) {
		return false
	}
	background(func() {
		a, file, abort, err := execute()
		var rights []byte
		if err == nil && file != nil {
			defer file.Close()
			if rights, err = descriptorMessage(file); err != nil {
				s.m.log.Error("a descriptor could not be passed to the wire process", "err", err)
			}
		}
		if err != nil {
			a = feedAnswer{N: a.N, Kind: caisson.KindOf(err), Error: caisson.MessageOf(err)}
		}
		// The request stops counting before its answer is sent: the wire process may at once send another one, which counts too.
		slots.release(key)
		if err := s.send(conn, a, rights); err != nil {
			if abort != nil {
				abort()
			}
			conn.Close() // the wire process does not read; without the connection it is killed and restarted
		}
	})
	return true
}

// send sends the answer to a request, together with rights, a control message with a descriptor, unless it is nil. Safe for
// concurrent use: packets are written atomically.
func (s *processState) send(conn *net.UnixConn, a feedAnswer, rights []byte) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	// The deadline keeps a wire process that does not read from blocking the engine; a sound one reads continuously.
	if err := conn.SetWriteDeadline(time.Now().Add(replyTimeout)); err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	return err
}

// passDecisions passes decisions to Handlers.Decided if their wire exists or existed recently: the last decisions of a wire
// arrive after it was detached.
func (s *processState) passDecisions(id caisson.ID, trace string, list []caisson.Decision) {
	guest, known := s.guest(id, trace)
	if known && s.m.handlers.Decided != nil {
		s.m.handlers.Decided(guest, list)
	}
}

// feedLog is the writer for the wire process's log of warnings and errors, which the engine writes to its own log.
type feedLog struct{ feed *feed }

// Write sends p, a line of the wire process's log, over the feed to the engine.
func (w feedLog) Write(p []byte) (int, error) {
	w.feed.send(feedMessage{Log: string(p[:min(len(p), maxLine)])}) // an error is ignored: it could be logged nowhere else
	return len(p), nil
}

func (f *feed) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(feedLog{f}, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
