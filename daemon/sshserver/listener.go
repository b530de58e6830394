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

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

// Limits on connections whose client has not logged in.
const (
	maxStrangers = 100
	loginTime    = 40 * time.Second // the job's own limit is shorter
)

// A front is the listener's state: the connections of clients that have not logged in, and those of tokens.
type front struct {
	address string

	mu        sync.Mutex
	strangers *list.List                           // of *visitor, the oldest first; guarded by mu
	sources   map[netip.Prefix]int                 // number of strangers; guarded by mu
	tokens    map[caisson.ID]map[*visitor]struct{} // guarded by mu
}

// A visitor is a connection of the listener.
type visitor struct {
	source netip.Prefix
	end    context.CancelFunc
	elem   *list.Element // in front.strangers; nil once logged in; guarded by front.mu
	user   *user         // nil before the login; guarded by front.mu
}

func newFront(address string) *front {
	return &front{address: address, strangers: list.New(), sources: map[netip.Prefix]int{}, tokens: map[caisson.ID]map[*visitor]struct{}{}}
}

// Listening reports whether there is a listener, for which the daemon must keep running.
func (s *Server) Listening() bool { return s.front.address != "" }

// Listen returns the listener for [Server.Serve], or nil if none is configured.
func (s *Server) Listen() (net.Listener, error) {
	if !s.Listening() {
		return nil, nil
	}
	l, err := net.Listen("tcp", s.front.address)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot listen on %s for SSH: %v", s.front.address, err)
	}
	return l, nil
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
		ctx, cancel := context.WithCancel(s.ctx)
		v := &visitor{source: reach.Source(conn.RemoteAddr().String()), end: cancel}
		s.front.enter(v) // here, so that the order is that of the connections
		s.conns.Go(func() { s.visit(ctx, v, conn) })
	}
}

// acceptPause is the pause after a failed accept.
const acceptPause = 100 * time.Millisecond

// visit serves a connection of the listener.
func (s *Server) visit(ctx context.Context, v *visitor, conn net.Conn) {
	defer v.end()
	defer s.leave(v)
	f, err := conn.(*net.TCPConn).File()
	conn.Close()
	if err != nil {
		s.log.Warn("ssh: accept", "err", err)
		return
	}
	defer f.Close()
	late := time.AfterFunc(loginTime, func() { s.front.expire(v) })
	defer late.Stop()
	s.serve(ctx, f, nil, func(ctx context.Context, name string, key []byte, signed bool) (*user, error) {
		return s.login(ctx, v, name, key, signed)
	})
}

// login implements [loginFunc]. The connection ends with its token.
func (s *Server) login(ctx context.Context, v *visitor, name string, key []byte, signed bool) (*user, error) {
	token, err := s.findKey(ctx, key)
	if err != nil || !signed {
		return nil, err
	}
	if err := s.count.add(token.Account); err != nil {
		return nil, err
	}
	u := &user{caller: caisson.Caller{Account: token.Account, Token: token.ID}, ref: strings.TrimSuffix(name, ".caisson")}
	s.front.admit(v, u)
	// The token may have been revoked before admit, which Revoke does not see.
	if _, err := s.findKey(ctx, key); err != nil {
		return nil, err // leave takes the connection out of the count
	}
	if token.ExpiresAt != nil {
		time.AfterFunc(time.Until(*token.ExpiresAt), v.end)
	}
	return u, nil
}

// leave removes a connection that has ended.
func (s *Server) leave(v *visitor) {
	if u := s.front.remove(v); u != nil {
		s.count.remove(u.caller.Account)
	}
}

// Revoke ends the connections that have logged in with a token.
func (s *Server) Revoke(token caisson.ID) {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	for v := range s.front.tokens[token] {
		v.end()
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

// admit records that a connection has logged in.
func (f *front) admit(v *visitor, u *user) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(v)
	v.user = u
	if f.tokens[u.caller.Token] == nil {
		f.tokens[u.caller.Token] = map[*visitor]struct{}{}
	}
	f.tokens[u.caller.Token][v] = struct{}{}
}

// expire ends a connection whose client has not logged in.
func (f *front) expire(v *visitor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.user == nil {
		v.end()
	}
}

// remove removes a connection that has ended, and returns its user.
func (f *front) remove(v *visitor) *user {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(v)
	if v.user != nil {
		list := f.tokens[v.user.caller.Token]
		if delete(list, v); len(list) == 0 {
			delete(f.tokens, v.user.caller.Token)
		}
	}
	return v.user
}
