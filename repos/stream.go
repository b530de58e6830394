package repos

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/relay/receive"
	"github.com/caisson-dev/caisson/relay/serve"
)

// A streamRequest is what the wire process asks for a sandbox.
type streamRequest struct {
	Repo      string `json:"repo"`
	Service   string `json:"service"` // upload-pack or receive-pack
	Advertise bool   `json:"advertise"`
	Protocol  string `json:"protocol"`
}

// maxStreams bounds the jobs that one sandbox has git do at the same time.
const maxStreams = 4

// Stream connects the sandbox of the guest in ctx with git: what is read from the file, up to its end, is the request's body, and what
// is written to it the answer's. ended is closed when the job behind it has.
func (c *Core) Stream(ctx context.Context, in json.RawMessage) (conn *os.File, ended <-chan struct{}, err error) {
	guest, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	var req streamRequest
	d := json.NewDecoder(bytes.NewReader(in))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		return nil, nil, caisson.Wrap(err, caisson.Invalid, "the request makes no sense")
	}
	g := c.grants.granted(guest.Sandbox, req.Repo)
	switch {
	case g == nil || g.Account != guest.Account:
		return nil, nil, caisson.Errorf(caisson.NotFound, "this sandbox was given no repository %.64q", req.Repo)
	case req.Service != "upload-pack" && req.Service != "receive-pack":
		return nil, nil, caisson.Invalidf("service", "is upload-pack or receive-pack")
	}
	if req.Service == "receive-pack" {
		if err := c.keeper.roomToPush(ctx, g.Account); err != nil {
			return nil, nil, err
		}
	}
	if !c.streams.enter(g.Sandbox) {
		return nil, nil, caisson.Errorf(caisson.Exhausted, "too many requests at once; wait for one to be answered")
	}
	near, far, err := socketpair.New()
	if err != nil {
		c.streams.leave(g.Sandbox)
		return nil, nil, err
	}
	done := make(chan struct{})
	ok := c.do(func(own context.Context) {
		// What the wire asks for ends with the wire, and with the daemon.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(own, cancel)()
		defer close(done)
		defer c.streams.leave(g.Sandbox)
		defer near.Close()
		if err := c.streams.serve(ctx, g, near, req); err != nil && ctx.Err() == nil {
			c.Log.InfoContext(ctx, "git for a sandbox ended early", "service", req.Service, "repo", g.Repo, "sandbox", g.Sandbox, "err", err)
		}
	})
	if !ok {
		near.Close()
		far.Close()
		c.streams.leave(g.Sandbox)
		return nil, nil, caisson.Errorf(caisson.Unavailable, "the daemon is ending; try again")
	}
	return far, done, nil
}

func (c streams) enter(sandbox caisson.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs[sandbox] >= maxStreams {
		return false
	}
	c.jobs[sandbox]++
	return true
}

func (c streams) leave(sandbox caisson.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs[sandbox]--; c.jobs[sandbox] <= 0 {
		delete(c.jobs, sandbox)
	}
}

// serve runs the job behind a stream.
func (c streams) serve(ctx context.Context, g *grant, conn *os.File, req streamRequest) error {
	store, view, err := c.stores(g)
	if err != nil {
		return err
	}
	defer store.Close()
	defer view.Close()
	if req.Service == "upload-pack" {
		return c.Git.Serve(ctx, store, view, conn, serve.Request{Advertise: req.Advertise, Protocol: req.Protocol})
	}
	// One push at a time: each sees what the one before has left.
	release, err := c.pushing(ctx, g)
	if err != nil {
		return err
	}
	defer release()
	r, err := c.Store.Repos().Get(ctx, caisson.In(g.Account), g.Repo)
	if err != nil {
		return err
	}
	got, err := c.Git.Receive(ctx, store, view, conn, receive.Request{
		Advertise: req.Advertise, Protocol: req.Protocol, Granted: g.Refs, Branch: g.Branch, Rules: c.rules(r), Limits: c.Limits.Push,
	})
	if err != nil || req.Advertise {
		return err
	}
	return c.received(ctx, g, got)
}

// pushing is held by whoever takes what a sandbox pushes, until it is recorded; git there has been answered a moment before.
func (c streams) pushing(ctx context.Context, g *grant) (release func(), err error) {
	return c.locks.Acquire(ctx, "push/"+string(g.Sandbox)+"/"+g.Repo)
}

// stores opens what a sandbox's grant is about.
func (c streams) stores(g *grant) (store, view *os.File, err error) {
	if store, err = c.open(g.Account, g.Repo, storesDir, string(g.Sandbox)); err != nil {
		return nil, nil, err
	}
	if view, err = c.open(g.Account, g.Repo, viewsDir, g.View); err != nil {
		store.Close()
		return nil, nil, err
	}
	return store, view, nil
}

// received records what a sandbox has pushed.
func (c streams) received(ctx context.Context, g *grant, got *receive.Result) error {
	next, err := c.grants.change(g, func(g *grant) {
		for _, u := range got.Updates {
			g.Pushed = slices.DeleteFunc(g.Pushed, func(p pushed) bool { return p.Name == u.Name })
			if strings.Trim(u.New, "0") != "" {
				g.Pushed = append(g.Pushed, pushed{Name: u.Name, Commit: u.New})
			}
		}
	})
	if err != nil || next == nil {
		return err // or it has gone meanwhile
	}
	for _, u := range got.Updates {
		c.Events.Publish(as(ctx, g.Account), g.Account, "repo.pushed", g.Repo, map[string]string{
			"sandbox": string(g.Sandbox), "run": string(next.Run), "ref": u.Name, "commit": u.New, "findings": strconv.Itoa(len(u.Findings)),
		})
	}
	if len(got.Denied) > 0 {
		c.Events.Publish(as(ctx, g.Account), g.Account, "repo.refused", g.Repo, map[string]string{
			"sandbox": string(g.Sandbox), "run": string(next.Run), "findings": strconv.Itoa(len(got.Denied)), "first": got.Denied[0].Message,
		})
	}
	return nil
}
