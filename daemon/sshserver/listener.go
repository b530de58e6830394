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

// Limits on connections whose client has not logged in.
const (
	maxStrangers = 100              // connections, and jobs
	loginTime    = 40 * time.Second // the job's own limit is shorter
	sourceRate   = 10               // connections of a source per second
	sourceBurst  = 64               // connections of a source at once
	maxRates     = 4096             // sources whose rate is known
)

// A front is the listener's state: the connections of clients that have not logged in, and those of tokens.
type front struct {
	address string
	jobs    chan struct{} // has an element for each job of a stranger, also while the job is killed

	mu        sync.Mutex
	strangers *list.List                            // of *visitor, the oldest first; guarded by mu
	sources   map[netip.Prefix]int                  // number of strangers; guarded by mu
	rates     *lru.Map[netip.Prefix, *rate.Limiter] // guarded by mu
	tokens    map[caisson.ID]map[*visitor]struct{}  // "" for callers without; guarded by mu
}

// A visitor is a connection of the listener, or of a caller of the API, who is no stranger.
type visitor struct {
	source netip.Prefix
	end    context.CancelFunc
	elem   *list.Element // in front.strangers; nil for others; guarded by front.mu
	job    bool          // has an element in front.jobs; guarded by front.mu
	user   *user         // nil for strangers; guarded by front.mu
	expiry *time.Timer   // calls end when the token expires, or nil; guarded by front.mu
}

func newFront(address string) *front {
	return &front{
		address: address, jobs: make(chan struct{}, maxStrangers), strangers: list.New(), sources: map[netip.Prefix]int{},
		rates: lru.New[netip.Prefix, *rate.Limiter](maxRates), tokens: map[caisson.ID]map[*visitor]struct{}{},
	}
}

// Listening reports whether there is a listener, for which the daemon must keep running.
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
		case err != nil: // such as too many open files
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
		s.front.enter(v) // here, so that the order is that of the connections
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

// login implements [loginFunc]. The connection ends with its token.
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

// allow reports whether a source may have another connection now.
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

// claimJob waits until there are few enough jobs of strangers for another one. It returns false if the connection has ended
// before.
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

// releaseJob makes room for the job of another stranger. The caller must hold mu.
func (f *front) releaseJob(v *visitor) {
	if v.job {
		v.job = false
		<-f.jobs
	}
}

// enter adds a connection. If there are too many strangers, the oldest one of the source with the most of them is ended, so that a new
// one never waits, and sources with many lose theirs before sources with few.
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

// forget removes a stranger. The caller must hold mu.
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

// admit records the user of a connection.
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

// endAt ends a connection at a time, nil for never.
func (f *front) endAt(v *visitor, at *time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at != nil && v.user != nil {
		v.expiry = time.AfterFunc(time.Until(*at), v.end)
	}
}

// expire ends a connection whose client has not logged in.
func (f *front) expire(v *visitor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.user == nil {
		v.end()
	}
}

// remove removes a connection that has ended, and returns its user; nil if it had none, or was removed before.
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
