package repos

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/receive"
	"github.com/caisson-dev/caisson/job/relay/serve"
	"github.com/caisson-dev/caisson/job/worker"
)

// A streamRequest is a git request of a sandbox, as the wire process passes it on.
type streamRequest struct {
	Repo      string `json:"repo"`      // name of the repository
	Service   string `json:"service"`   // upload-pack or receive-pack
	Advertise bool   `json:"advertise"` // whether this is a request for the list of refs
	Protocol  string `json:"protocol"`  // version=0, version=1, version=2 or empty
}

// maxStreams is the maximum number of git requests of one sandbox that are served at the same time.
const maxStreams = 4

// streams serves the git requests of sandboxes.
type streams struct {
	repos      caisson.Table[caisson.Repo]
	jobs       worker.Starter    // starts worker jobs
	dirs       *directories      // directories of repositories
	grants     *grants           // grants of all repositories
	keeper     *keeper           // removes unused files, and limits space
	background *background.Group // runs the goroutines that serve git requests
	events     caisson.Publisher
	rules      check.Rules // rules that pushed commits are checked by
	log        *slog.Logger

	mu   sync.Mutex
	open map[caisson.ID]int // numbers of git requests that are being served, by sandbox; guarded by mu
}

// connect starts to serve a git request of a sandbox, with the arguments and results of [Core.Stream].
func (s *streams) connect(ctx context.Context, in json.RawMessage) (conn *os.File, ended <-chan struct{}, err error) {
	guest, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	var req streamRequest
	d := json.NewDecoder(bytes.NewReader(in))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		return nil, nil, caisson.Wrap(err, caisson.Invalid, "the request is malformed")
	}
	g := s.grants.get(guest.Sandbox, req.Repo)
	switch {
	case g == nil || g.Account != guest.Account:
		return nil, nil, caisson.Errorf(caisson.NotFound, "this sandbox has no grant for repository %.64q", req.Repo)
	case req.Service != "upload-pack" && req.Service != "receive-pack":
		return nil, nil, caisson.Invalidf("service", "must be upload-pack or receive-pack")
	}
	if req.Service == "receive-pack" {
		if err := s.keeper.roomToPush(ctx, g.Account); err != nil {
			return nil, nil, err
		}
	}
	if !s.enter(g.Sandbox) {
		return nil, nil, caisson.Errorf(caisson.Exhausted, "too many requests at once; wait for one to be answered")
	}
	near, far, err := socketpair.New()
	if err != nil {
		s.leave(g.Sandbox)
		return nil, nil, err
	}
	done := make(chan struct{})
	ok := s.background.Start(func(own context.Context) {
		// The git request is cancelled when the wire process cancels its request, and when the core is closed.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(own, cancel)()
		defer close(done)
		defer s.leave(g.Sandbox)
		defer near.Close()
		if err := s.serve(ctx, g, near, req); err != nil && ctx.Err() == nil {
			s.log.InfoContext(ctx, "a git request of a sandbox failed", "service", req.Service, "repo", g.Repo, "sandbox", g.Sandbox, "err", err)
		}
	})
	if !ok {
		near.Close()
		far.Close()
		s.leave(g.Sandbox)
		return nil, nil, caisson.Errorf(caisson.Unavailable, "the daemon is shutting down; try again")
	}
	return far, done, nil
}

// enter counts a git request of a sandbox, and returns false if maxStreams of them are being served already.
func (s *streams) enter(sandbox caisson.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[sandbox] >= maxStreams {
		return false
	}
	s.open[sandbox]++
	return true
}

// leave stops counting a git request that enter has counted.
func (s *streams) leave(sandbox caisson.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[sandbox]--; s.open[sandbox] <= 0 {
		delete(s.open, sandbox)
	}
}

// serve runs the worker job that answers a git request. After a push, it records the commits that the job has received.
func (s *streams) serve(ctx context.Context, g *grant, conn *os.File, req streamRequest) error {
	store, view, err := s.dirs.openStore(g)
	if err != nil {
		return err
	}
	defer store.Close()
	defer view.Close()
	if req.Service == "upload-pack" {
		return serve.Run(ctx, s.jobs, store, view, conn, serve.Request{Advertise: req.Advertise, Protocol: req.Protocol})
	}
	release, err := s.grants.lockPushes(ctx, g) // a push must be recorded before the next one is received
	if err != nil {
		return err
	}
	defer release()
	r, err := s.repos.Get(ctx, caisson.In(g.Account), g.Repo)
	if err != nil {
		return err
	}
	got, err := receive.Run(ctx, s.jobs, store, view, conn, receive.Request{
		Advertise: req.Advertise, Protocol: req.Protocol, Granted: g.Refs, Branch: g.Branch, Rules: rulesFor(r, s.rules),
	})
	if err != nil || req.Advertise {
		return err
	}
	return s.received(ctx, g, got)
}

// received records a push in its grant, and publishes events about it. It does nothing if the grant has been removed.
func (s *streams) received(ctx context.Context, g *grant, got *receive.Result) error {
	next, err := s.grants.change(g, func(g *grant) {
		for _, u := range got.Updates {
			g.Pushed = slices.DeleteFunc(g.Pushed, func(p pushed) bool { return p.Name == u.Name })
			if strings.Trim(u.New, "0") != "" {
				g.Pushed = append(g.Pushed, pushed{Name: u.Name, Commit: u.New})
			}
		}
	})
	if err != nil || next == nil {
		return err
	}
	for _, u := range got.Updates {
		s.events.Publish(asAccount(ctx, g.Account), g.Account, "repo.pushed", g.Repo, map[string]string{
			"sandbox": string(g.Sandbox), "run": string(next.Run), "ref": u.Name, "commit": u.New, "findings": strconv.Itoa(len(u.Findings)),
		})
	}
	if len(got.Denied) > 0 {
		s.events.Publish(asAccount(ctx, g.Account), g.Account, "repo.refused", g.Repo, map[string]string{
			"sandbox": string(g.Sandbox), "run": string(next.Run), "findings": strconv.Itoa(len(got.Denied)), "first": got.Denied[0].Message,
		})
	}
	return nil
}
