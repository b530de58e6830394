// Package remote lets sandboxes use a model gateway that is not on their own machine.
//
// On the machine of the sandboxes, a [Client] answers in the gateway's place: it knows from the wire who calls, signs that
// as a run token, and passes the call on. Before the gateway, a [Server] checks the token, looks the run up, and makes
// the guest of the call from what the gateway itself knows of the run: the token says which run it is and nothing
// else. A [Registry] is what it knows.
package remote

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/llm/runtoken"
)

// Runs is where a server looks runs up.
type Runs interface {
	// Run returns what a run may use and who it is, or NotFound. It is called once per request.
	Run(ctx context.Context, id string) (caisson.WireSpec, error)
}

// ServerConfig is what a Server needs. All fields but Tokens are required.
type ServerConfig struct {
	// Tokens verifies; nil refuses every request until SetTokens is called.
	Tokens *runtoken.Tokens
	Runs   Runs
	// Gateway serves requests, with the guest in the context.
	Gateway http.Handler
	Log     *slog.Logger
}

// A Server stands before a gateway that is reached over TCP. It is safe for concurrent use.
//
// Every request without a valid token gets the same 401; one with a valid token for a run or an attempt that is not known
// gets 403. A source with many failures gets 429 for further ones, and they are not logged; valid tokens from there pass, so that
// nobody can lock out a neighbour.
type Server struct {
	cfg      ServerConfig
	tokens   atomic.Pointer[runtoken.Tokens]
	failures *failures
}

// NewServer returns a server.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Runs == nil || cfg.Gateway == nil || cfg.Log == nil {
		return nil, errors.New("remote: Runs, Gateway and Log are required")
	}
	s := &Server{cfg: cfg, failures: newFailures()}
	s.tokens.Store(cfg.Tokens)
	return s, nil
}

// SetTokens replaces what verifies, for requests that begin afterwards; nil refuses them all.
func (s *Server) SetTokens(t *runtoken.Tokens) { s.tokens.Store(t) }

// ServeHTTP checks a request and passes it to the gateway without its token.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	claims, err := s.verify(r.Header)
	if err != nil {
		s.refuse(w, r, http.StatusUnauthorized, runtoken.Reason(err), caisson.MessageOf(err))
		return
	}
	spec, err := s.cfg.Runs.Run(r.Context(), claims.Run)
	switch {
	case caisson.KindOf(err) == caisson.NotFound, err == nil && spec.Guest.Attempt != claims.Attempt, err == nil && spec.Models == nil:
		s.refuse(w, r, http.StatusForbidden, "unknown run", "this run is not known to the model gateway, or it has ended")
		return
	case err != nil:
		s.cfg.Log.ErrorContext(r.Context(), "look up a run", "err", err)
		writeError(w, http.StatusServiceUnavailable, "the model gateway cannot look up this run now; try again")
		return
	}
	out := r.Clone(caisson.WithGuest(r.Context(), spec.Guest))
	out.Header.Del(runtoken.Header)
	s.cfg.Gateway.ServeHTTP(w, out)
}

// verify checks the token of a request. Two tokens are none: which of them counted would depend on who reads them.
func (s *Server) verify(h http.Header) (runtoken.Claims, error) {
	token := ""
	if all := h.Values(runtoken.Header); len(all) == 1 {
		token = all[0]
	}
	t := s.tokens.Load()
	if t == nil {
		return runtoken.Claims{}, caisson.Errorf(caisson.Unauthed, "this gateway has no keys for run tokens yet")
	}
	return t.Verify(token)
}

// refuse answers a request that shows no right to be here.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, reason, message string) {
	if wait := s.failures.add(r.RemoteAddr); wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(wait))
		w.Header().Set("Connection", "close")
		writeError(w, http.StatusTooManyRequests, "too many requests without a valid run token")
		return
	}
	s.cfg.Log.WarnContext(r.Context(), "call of the model gateway refused", "source", r.RemoteAddr, "reason", reason)
	writeError(w, status, message)
}
