package sshserver

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
	"github.com/caisson-dev/caisson/internal/reach"
)

// Limits on strangers: connections whose client has not logged in. A source is an IP address prefix, see [reach.Source].
const (
	maxStrangers = 100              // connections of strangers, and their jobs
	loginTime    = 40 * time.Second // time in which a client must log in; the job itself ends after less
	sourceRate   = 10               // connections of a source per second
	sourceBurst  = 64               // connections that a source may open at once
	maxRates     = 4096             // sources whose rate is stored; the least recently used one is evicted
)

// A front is the state of the listener. It has the connections of strangers, and the connections that Revoke must end, by token.
type front struct {
	address string
	jobs    chan struct{} // has one element for each job of a stranger, until the job has ended or the client has logged in

	mu        sync.Mutex
	strangers *list.List                            // of *visitor, the oldest first; guarded by mu
	sources   map[netip.Prefix]int                  // number of strangers of each source; guarded by mu
	rates     *lru.Map[netip.Prefix, *rate.Limiter] // guarded by mu
	tokens    map[caisson.ID]map[*visitor]struct{}  // connections by token; "" for callers without a token; guarded by mu
}

// A visitor is an SSH connection. It comes from the listener, or from a caller of the API, who is authenticated and never a
// stranger.
type visitor struct {
	source netip.Prefix
	end    context.CancelFunc
	elem   *list.Element // element of front.strangers; nil if the visitor is no stranger; guarded by front.mu
	job    bool          // whether front.jobs has an element for the visitor; guarded by front.mu
	user   *user         // nil for strangers; guarded by front.mu
	expiry *time.Timer   // calls end when the token expires; nil if it does not; guarded by front.mu
}

func newFront(address string) *front {
	return &front{
		address: address, jobs: make(chan struct{}, maxStrangers), strangers: list.New(), sources: map[netip.Prefix]int{},
		rates: lru.New[netip.Prefix, *rate.Limiter](maxRates), tokens: map[caisson.ID]map[*visitor]struct{}{},
	}
}

// Listening reports whether a listener is configured. If so, the daemon must not exit when it is idle.
func (s *Server) Listening() bool { return s.front.address != "" }

// Listen returns the listener for [Server.Serve], or nil if none is configured.
func (s *Server) Listen() (net.Listener, error) {
	if !s.Listening() {
		return nil, nil
	}
	return reach.Listen("ssh.listen", s.front.address)
}

// Serve serves the clients of a listener until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // a temporary error, such as too many open files
			s.log.WarnContext(ctx, "ssh: accept", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		source := reach.Source(conn.RemoteAddr().String())
		if !s.front.allow(source, time.Now()) {
			conn.Close()
			continue
		}
		ctx, cancel := context.WithCancel(s.ctx)
		v := &visitor{source: source, end: cancel}
		s.front.enter(v) // called here and not in the goroutine, so that front.strangers is in the order of arrival
		s.conns.Go(func() { s.visit(ctx, v, conn) })
	}
}

// acceptPause is the pause after a failed accept.
const acceptPause = 100 * time.Millisecond

// visit serves a connection of the listener.
func (s *Server) visit(ctx context.Context, v *visitor, conn net.Conn) {
	defer s.leave(v)
	defer conn.Close()
	late := time.AfterFunc(loginTime, func() { s.front.expire(v) })
	defer late.Stop()
	if !s.front.claimJob(ctx, v) {
		return
	}
	f, err := conn.(*net.TCPConn).File()
	conn.Close()
	if err != nil {
		s.log.Warn("ssh: accept", "err", err)
		return
	}
	s.serve(ctx, f, nil, func(ctx context.Context, name string, key []byte, signed bool) (*user, error) {
		return s.login(ctx, v, name, key, signed)
	})
}

// login implements [loginFunc] for the visitor v. After a login the connection ends when the token is removed or expires.
func (s *Server) login(ctx context.Context, v *visitor, name string, key []byte, signed bool) (*user, error) {
	token, err := s.tokens.FindSSHKey(ctx, key, signed)
	if err != nil || !signed {
		return nil, err
	}
	u := &user{caller: caisson.Caller{Account: token.Account, Token: token.ID}, ref: strings.TrimSuffix(name, ".caisson")}
	if err := s.admit(ctx, v, u); err != nil {
		return nil, err
	}
	return u, nil
}

// Revoke ends the connections that were opened with a token.
func (s *Server) Revoke(token caisson.ID) {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	for v := range s.front.tokens[token] {
		v.end()
	}
}

// allow reports whether the rate of new connections permits another one of source now, and counts it.
func (f *front) allow(source netip.Prefix, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := f.rates.Get(source)
	if !ok {
		l = rate.NewLimiter(sourceRate, sourceBurst)
		f.rates.Put(source, l)
	}
	return l.AllowN(now, 1)
}

// claimJob waits until fewer than maxStrangers jobs of strangers run, and counts the job of v as another one. It returns false if
// ctx, the context of the connection, ends first.
func (f *front) claimJob(ctx context.Context, v *visitor) bool {
	select {
	case f.jobs <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v.job = true
	return ctx.Err() == nil
}

// releaseJob stops counting the job of v as one of a stranger. It has no effect if claimJob has not counted it. The caller must
// hold mu.
func (f *front) releaseJob(v *visitor) {
	if v.job {
		v.job = false
		<-f.jobs
	}
}

// enter adds a connection as a stranger. If there are now too many strangers, it ends the oldest connection of the source that
// has the most strangers. So a new connection never waits, and sources with many connections lose theirs before sources with few.
func (f *front) enter(v *visitor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v.elem = f.strangers.PushBack(v)
	f.sources[v.source]++
	if f.strangers.Len() <= maxStrangers {
		return
	}
	most := 0
	for _, n := range f.sources {
		most = max(most, n)
	}
	for e := f.strangers.Front(); e != nil; e = e.Next() {
		if x := e.Value.(*visitor); f.sources[x.source] == most {
			f.forget(x)
			x.end()
			return
		}
	}
}

// forget removes v from the strangers, if it is one. The caller must hold mu.
func (f *front) forget(v *visitor) {
	if v.elem == nil {
		return
	}
	f.strangers.Remove(v.elem)
	v.elem = nil
	if f.sources[v.source]--; f.sources[v.source] == 0 {
		delete(f.sources, v.source)
	}
}

// admit records that u has logged in on the connection v, which is then no stranger any more and is ended by Revoke.
func (f *front) admit(v *visitor, u *user) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(v)
	f.releaseJob(v)
	v.user = u
	if f.tokens[u.caller.Token] == nil {
		f.tokens[u.caller.Token] = map[*visitor]struct{}{}
	}
	f.tokens[u.caller.Token][v] = struct{}{}
}

// endAt ends a connection at the given time; nil means never. It does nothing if the connection has been removed.
func (f *front) endAt(v *visitor, at *time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at != nil && v.user != nil {
		v.expiry = time.AfterFunc(time.Until(*at), v.end)
	}
}

// expire ends a connection unless its client has logged in.
func (f *front) expire(v *visitor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.user == nil {
		v.end()
	}
}

// remove removes a connection that has ended and returns its user. It returns nil if the client had not logged in, or if the
// connection was removed before.
func (f *front) remove(v *visitor) *user {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(v)
	f.releaseJob(v)
	u := v.user
	v.user = nil
	if u != nil {
		list := f.tokens[u.caller.Token]
		if delete(list, v); len(list) == 0 {
			delete(f.tokens, u.caller.Token)
		}
	}
	if v.expiry != nil {
		v.expiry.Stop()
	}
	return u
}
