// Package remote lets sandboxes use a model gateway that is not on their own machine.
//
// On the machine of the sandboxes, a [Client] takes the place of the gateway: it identifies the guest by its wire, signs a run
// token for it, and forwards the call. In front of the gateway, a [Server] verifies the token, looks up the run, and sets the
// guest of the call from the gateway's own record of the run; the token only identifies the run. A [Registry] holds these
// records.
package remote

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/runtoken"
)

// Runs looks up the gateway runs that run tokens identify.
type Runs interface {
	// Run returns the guest and the grant of the run with the id in a token, or NotFound. It is called once per request.
	Run(ctx context.Context, id string) (caisson.WireSpec, error)
}

// ServerConfig configures a Server. All fields but Tokens are required.
type ServerConfig struct {
	Tokens  *runtoken.Tokens // verifies run tokens; if nil, requests are refused until SetTokens is called
	Runs    Runs             // looks up the runs that tokens identify
	Gateway http.Handler     // serves the requests with valid tokens; their context has the guest
	Log     *slog.Logger     // receives refusals and failures to look up runs
}

// A Server authenticates the requests to a gateway over TCP. It is safe for concurrent use.
//
// Every request without a valid token receives the same 401. A request with a valid token for an unknown run or attempt receives
// 403. If a source has caused many such failures, further ones receive 429 and are not logged. Requests with valid tokens from
// that source are still served, so that no client can lock out others on its network.
type Server struct {
	cfg      ServerConfig
	tokens   atomic.Pointer[runtoken.Tokens] // verifies tokens; nil: every request is refused
	failures *failureLimiter                 // counts the refused requests of each source
}

// NewServer returns a server. It returns an error if a required field of cfg is missing.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Runs == nil || cfg.Gateway == nil || cfg.Log == nil {
		return nil, errors.New("remote: Runs, Gateway and Log are required")
	}
	s := &Server{cfg: cfg, failures: newFailureLimiter()}
	s.tokens.Store(cfg.Tokens)
	return s, nil
}

// SetTokens replaces what verifies the run tokens of future requests; if t is nil, they are refused.
func (s *Server) SetTokens(t *runtoken.Tokens) { s.tokens.Store(t) }

// ServeHTTP verifies a request and forwards it to the gateway without its token.
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
		s.cfg.Log.ErrorContext(r.Context(), "a run could not be looked up", "err", err)
		writeError(w, http.StatusServiceUnavailable, "the model gateway cannot look up this run now; try again")
		return
	}
	out := r.Clone(caisson.WithGuest(r.Context(), spec.Guest))
	out.Header.Del(runtoken.Header)
	s.cfg.Gateway.ServeHTTP(w, out)
}

// verify verifies the token of a request. A request with several tokens is treated as one without a token, because different
// readers could use different tokens.
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

// refuse counts the failure, logs reason, and sends status and message. If the source has failed too often, it only sends 429.
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
