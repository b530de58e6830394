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

// Limits on anonymous connections: connections to the listener whose client has not logged in. A source is an IPv4
// address or a /64 prefix of IPv6.
const (
	maxAnonymous = 100              // anonymous connections, and their jobs
	loginTime    = 40 * time.Second // time in which a client must log in; the limit of the job itself is shorter
	sourceRate   = 10               // new connections of one source per second
	sourceBurst  = 64               // new connections that one source may open at once
	maxRates     = 4096             // sources whose rate is stored; the least recently used one is evicted
)

// A listenerState has the anonymous connections, which it limits, and the connections that Revoke must end, by token.
type listenerState struct {
	address string        // address of the listener; "" if none is configured
	jobs    chan struct{} // has one element for each job of an anonymous connection that has not ended

	mu        sync.Mutex
	anonymous *list.List                              // the anonymous connections (*clientConn), the oldest first; guarded by mu
	sources   map[netip.Prefix]int                    // number of anonymous connections of each source; guarded by mu
	rates     *lru.Map[netip.Prefix, *rate.Limiter]   // limiters of new connections, by source; guarded by mu
	tokens    map[caisson.ID]map[*clientConn]struct{} // connections by token; "" for callers without a token; guarded by mu
}

// A clientConn is an SSH connection. It comes from the listener, and is anonymous until the client has logged in, or from a
// caller of the API, who is authenticated.
type clientConn struct {
	source netip.Prefix       // address prefix of the client; zero for a caller of the API
	end    context.CancelFunc // ends the connection
	elem   *list.Element      // element of listenerState.anonymous, nil if not anonymous; guarded by listenerState.mu
	job    bool               // whether listenerState.jobs has an element for the connection; guarded by listenerState.mu
	user   *user              // nil while the client has not logged in; guarded by listenerState.mu
	expiry *time.Timer        // ends the connection when the token expires; nil if it never does; guarded by listenerState.mu
}

func newListenerState(address string) *listenerState {
	return &listenerState{
		address: address, jobs: make(chan struct{}, maxAnonymous), anonymous: list.New(), sources: map[netip.Prefix]int{},
		rates: lru.New[netip.Prefix, *rate.Limiter](maxRates), tokens: map[caisson.ID]map[*clientConn]struct{}{},
	}
}

// Listening reports whether a listener is configured. If so, the daemon must not exit when it is idle.
func (s *Server) Listening() bool { return s.listener.address != "" }

// Listen returns the listener for [Server.Serve], or nil if none is configured.
func (s *Server) Listen() (net.Listener, error) {
	if !s.Listening() {
		return nil, nil
	}
	return reach.Listen("ssh.listen", s.listener.address)
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
		if !s.listener.allow(source, time.Now()) {
			conn.Close()
			continue
		}
		ctx, cancel := context.WithCancel(s.ctx)
		v := &clientConn{source: source, end: cancel}
		s.listener.addAnonymous(v) // called before the goroutine starts, to keep the anonymous connections in order of arrival
		s.conns.Go(func() { s.serveAnonymous(ctx, v, conn) })
	}
}

// acceptPause is the pause after a failed accept.
const acceptPause = 100 * time.Millisecond

// serveAnonymous serves a connection of the listener. The client must log in within loginTime.
func (s *Server) serveAnonymous(ctx context.Context, v *clientConn, conn net.Conn) {
	defer s.leave(v)
	defer conn.Close()
	late := time.AfterFunc(loginTime, func() { s.listener.endAnonymous(v) })
	defer late.Stop()
	if !s.listener.acquireJob(ctx, v) {
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

// login implements [loginFunc] for the connection v. After a login, the connection ends when the token is removed or expires.
func (s *Server) login(ctx context.Context, v *clientConn, name string, key []byte, signed bool) (*user, error) {
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
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	for v := range s.listener.tokens[token] {
		v.end()
	}
}

// allow reports whether the rate limit of source permits another new connection now, and counts that connection.
func (f *listenerState) allow(source netip.Prefix, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := f.rates.Get(source)
	if !ok {
		l = rate.NewLimiter(sourceRate, sourceBurst)
		f.rates.Put(source, l)
	}
	return l.AllowN(now, 1)
}

// acquireJob waits until fewer than maxAnonymous jobs of anonymous connections run, and counts the job of v as another one. It
// returns false if ctx, the context of the connection, ends first.
func (f *listenerState) acquireJob(ctx context.Context, v *clientConn) bool {
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

// releaseJob stops counting the job of v as one of an anonymous connection. It has no effect if acquireJob has not counted the
// job. The caller must hold mu.
func (f *listenerState) releaseJob(v *clientConn) {
	if v.job {
		v.job = false
		<-f.jobs
	}
}

// addAnonymous adds a connection as anonymous. If there are now more than maxAnonymous, it ends the oldest connection of the
// source that has the most anonymous connections. So a new connection never waits, and sources with many connections lose theirs
// before sources with few.
func (f *listenerState) addAnonymous(v *clientConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v.elem = f.anonymous.PushBack(v)
	f.sources[v.source]++
	if f.anonymous.Len() <= maxAnonymous {
		return
	}
	most := 0
	for _, n := range f.sources {
		most = max(most, n)
	}
	for e := f.anonymous.Front(); e != nil; e = e.Next() {
		if x := e.Value.(*clientConn); f.sources[x.source] == most {
			f.removeAnonymous(x)
			x.end()
			return
		}
	}
}

// removeAnonymous removes v from the anonymous connections, if it is one. The caller must hold mu.
func (f *listenerState) removeAnonymous(v *clientConn) {
	if v.elem == nil {
		return
	}
	f.anonymous.Remove(v.elem)
	v.elem = nil
	if f.sources[v.source]--; f.sources[v.source] == 0 {
		delete(f.sources, v.source)
	}
}

// admit records that u has logged in on the connection v. From then on, v is not anonymous, and is ended by Revoke.
func (f *listenerState) admit(v *clientConn, u *user) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeAnonymous(v)
	f.releaseJob(v)
	v.user = u
	if f.tokens[u.caller.Token] == nil {
		f.tokens[u.caller.Token] = map[*clientConn]struct{}{}
	}
	f.tokens[u.caller.Token][v] = struct{}{}
}

// endAt ends a connection at the given time; nil means never. It does nothing if the connection has been removed.
func (f *listenerState) endAt(v *clientConn, at *time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at != nil && v.user != nil {
		v.expiry = time.AfterFunc(time.Until(*at), v.end)
	}
}

// endAnonymous ends a connection unless its client has logged in.
func (f *listenerState) endAnonymous(v *clientConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.user == nil {
		v.end()
	}
}

// remove removes a connection that has ended and returns its user. It returns nil if the client had not logged in, or if the
// connection was removed before.
func (f *listenerState) remove(v *clientConn) *user {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeAnonymous(v)
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
