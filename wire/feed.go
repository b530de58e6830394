package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

// The feed is what the wire process tells the engine, and asks of it: packets of JSON over a SOCK_SEQPACKET pair of its own,
// so that neither direction can wait for the other. Questions have a number, which the answer repeats; the engine answers
// in order, but for tools and streams. With the answer to a question for a stream comes a descriptor.
type feedMessage struct {
	N         uint64             `json:"n,omitempty"`       // of a question; 0: nobody waits
	Journal   caisson.ID         `json:"journal,omitempty"` // for Lease, Return and Finished
	Lease     *leaseBody         `json:"lease,omitempty"`
	Return    *returnBody        `json:"return,omitempty"`
	Finished  bool               `json:"finished,omitempty"` // nothing more will be written to the journal
	Rotate    bool               `json:"rotate,omitempty"`   // another journal, please
	Grew      bool               `json:"grew,omitempty"`     // a journal has more rows
	Sandbox   caisson.ID         `json:"sandbox,omitempty"`
	Trace     string             `json:"trace,omitempty"`  // of the run that decisions were made for
	Tool      *toolBody          `json:"tool,omitempty"`   // a question about Sandbox
	Stream    *streamBody        `json:"stream,omitempty"` // a question about Sandbox, too
	Decisions []caisson.Decision `json:"decisions,omitempty"`
	Log       string             `json:"log,omitempty"` // a line for the engine's log
}

type leaseBody struct {
	Account string         `json:"account"`
	Budget  string         `json:"budget"`
	Need    caisson.Amount `json:"need"`
	Want    caisson.Amount `json:"want"`
}

type returnBody struct {
	Budget string         `json:"budget"`
	Amount caisson.Amount `json:"amount"`
}

// A toolBody is a use of what the engine has for agents.
type toolBody struct {
	Name string          `json:"name"`
	In   json.RawMessage `json:"in,omitempty"`
}

type feedAnswer struct {
	N      uint64          `json:"n"`
	Out    json.RawMessage `json:"out,omitempty"` // of a tool
	Lease  caisson.Lease   `json:"lease,omitzero"`
	Stream bool            `json:"stream,omitempty"` // a descriptor comes along
	Kind   caisson.Kind    `json:"kind,omitempty"`   // of an error
	Error  string          `json:"error,omitempty"`

	file *os.File // what came along, the receiver's to close; nil if nothing did
}

const maxFeed = maxBody

// A feed is the wire process's end.
type feed struct {
	conn *net.UnixConn

	mu      sync.Mutex
	n       uint64                     // guarded by mu
	waiting map[uint64]chan feedAnswer // guarded by mu; nil once the engine has gone
}

func newFeed(conn *net.UnixConn) *feed {
	return &feed{conn: conn, waiting: map[uint64]chan feedAnswer{}}
}

// run hands answers to those who wait, until the connection ends.
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
		c <- a // it has room for the one answer that comes
	}
}

// tell sends m and waits for no answer. Packets are whole or not at all, so no lock is needed.
func (f *feed) tell(m feedMessage) error {
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

// ask sends m and waits for its answer.
func (f *feed) ask(ctx context.Context, m feedMessage) (feedAnswer, error) {
	c := make(chan feedAnswer, 1)
	f.mu.Lock()
	if f.waiting == nil {
		f.mu.Unlock()
		return feedAnswer{}, net.ErrClosed
	}
	f.n++
	m.N = f.n
	f.waiting[m.N] = c
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.waiting, m.N)
		f.mu.Unlock()
	}()
	if err := f.tell(m); err != nil {
		return feedAnswer{}, err
	}
	select {
	case a, ok := <-c:
		if !ok {
			return feedAnswer{}, net.ErrClosed
		}
		if m.Stream == nil || a.Error != "" {
			a.close() // nothing of that sort was asked for
		}
		if a.Error != "" {
			return a, caisson.Errorf(a.Kind, "%s", a.Error)
		}
		return a, nil
	case <-ctx.Done():
		return feedAnswer{}, ctx.Err()
	}
}

// A lessor is the engine's, for the holder of a journal, as the wire process sees it.
type lessor struct {
	feed    *feed
	journal caisson.ID
}

// Lease implements [caisson.Lessor]. A lease that arrives when nobody waits any more stays held until the journal is
// finished.
func (l lessor) Lease(ctx context.Context, account, budget string, need, want caisson.Amount) (caisson.Lease, error) {
	a, err := l.feed.ask(ctx, feedMessage{Journal: l.journal, Lease: &leaseBody{account, budget, need, want}})
	return a.Lease, err
}

// Return implements [caisson.Lessor].
func (l lessor) Return(ctx context.Context, budget string, a caisson.Amount) error {
	_, err := l.feed.ask(ctx, feedMessage{Journal: l.journal, Return: &returnBody{budget, a}})
	return err
}

// How much of what the wire process says goes into the engine's log: it may be taken over, and disks are finite.
const (
	maxLine       = 2000
	linesPerBurst = 100
	burst         = 10 * time.Second
)

// How many decisions the wire process may tell of. A wire tells of fewer than a hundred at once, and of some two in a second
// while it goes on; see package report.
const (
	maxDecisions    = 256  // in a message
	decisionsRate   = 1000 // in a second, of all wires
	decisionsBurst  = 8000
	droppedInterval = 10 * time.Second // between warnings
)

// A quota bounds the decisions that are taken from one wire process. The zero value is a full one.
type quota struct {
	used    float64 // of decisionsBurst
	last    time.Time
	dropped int64
	warned  time.Time
}

// take reports whether n decisions may pass now, and now and then, how many did not since it last said so.
func (q *quota) take(now time.Time, n int64) (ok bool, dropped int64) {
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

// A session is the life of one wire process as the engine's end of it sees it.
type session struct {
	m     *Manager
	link  *link
	said  quota // decisions; touched by listen only
	tools *uses
	asked *uses // questions for streams that are not answered yet
}

// listen is the engine's end of the feed of one wire process: it serves until the connection ends or a message makes no
// sense, which is returned.
func (s *session) listen(ctx context.Context, conn *net.UnixConn) error {
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
		if n == 0 { // the end of a SOCK_SEQPACKET connection looks like an empty packet
			return nil
		}
		var msg feedMessage
		if err := unmarshal(buf[:n], &msg); err != nil {
			return err
		}
		if time.Since(since) > burst {
			lines, since = 0, time.Now()
		}
		switch {
		case msg.Lease != nil || msg.Return != nil:
			if err := s.answer(ctx, conn, msg); err != nil {
				return err
			}
		case msg.Tool != nil:
			if !s.useTool(ctx, conn, msg, background.Go) {
				return fmt.Errorf("%w: too many uses of tools", errMessage)
			}
		case msg.Stream != nil:
			if !s.openStream(ctx, conn, msg, background.Go) {
				return fmt.Errorf("%w: too many questions for streams", errMessage)
			}
		case s.m.cfg.Ledger == nil && (msg.Rotate || msg.Finished):
			return fmt.Errorf("%w: there is no ledger", errMessage)
		case msg.Rotate:
			// It asks once and waits; more than a few journals at once it has no use for.
			if s.link.journals.count() > maxJournals {
				return fmt.Errorf("%w: too many journals", errMessage)
			}
			select {
			case rotate <- struct{}{}:
			default: // it was heard
			}
		case msg.Finished:
			if s.link.journals.remove(msg.Journal) {
				background.Go(func() { s.finish(ctx, msg.Journal) })
			}
		case msg.Grew:
			if s.m.cfg.Ledger != nil {
				s.m.cfg.Ledger.Grew()
			}
		case len(msg.Decisions) > maxDecisions:
			return fmt.Errorf("%w: %d decisions", errMessage, len(msg.Decisions))
		case msg.Decisions != nil:
			n := int64(len(msg.Decisions))
			ok, dropped := s.said.take(time.Now(), max(n, 1))
			if dropped > 0 {
				s.m.log.WarnContext(ctx, "decisions of wires are not recorded: there are too many", "dropped", dropped)
			}
			if ok {
				s.decided(msg.Sandbox, msg.Trace, msg.Decisions)
			}
		case msg.Log != "":
			if lines++; lines <= linesPerBurst {
				s.m.log.WarnContext(ctx, "wire process says", "line", msg.Log[:min(len(msg.Log), maxLine)])
			}
		}
	}
}

func (s *session) answer(ctx context.Context, conn *net.UnixConn, msg feedMessage) error {
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
			s.m.log.ErrorContext(ctx, "a budget could not be asked for", "err", err)
		}
	}
	return s.send(conn, a)
}

// send answers a question. It may be called by several goroutines: packets are whole.
func (s *session) send(conn *net.UnixConn, a feedAnswer) error { return s.sendRights(conn, a, nil) }

// sendRights is send with a control message.
func (s *session) sendRights(conn *net.UnixConn, a feedAnswer, rights []byte) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	// The wire process reads all the time; one that does not must not hold the engine.
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	return err
}

// decided passes decisions on if they are about a wire that exists, or did until lately: what it decided last is heard after
// it has gone.
func (s *session) decided(id caisson.ID, trace string, list []caisson.Decision) {
	guest, known := s.guest(id, trace)
	if known && s.m.handlers.Decided != nil {
		s.m.handlers.Decided(guest, list)
	}
}

// feedLog sends log records of warnings and errors over the feed: the wire process has no other way to be heard.
type feedLog struct{ feed *feed }

func (w feedLog) Write(p []byte) (int, error) {
	w.feed.tell(feedMessage{Log: string(p[:min(len(p), maxLine)])}) // if nobody hears it, that is all
	return len(p), nil
}

func (f *feed) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(feedLog{f}, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
