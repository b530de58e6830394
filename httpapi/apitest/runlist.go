package apitest

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// find needs mu.
func (c runCore) find(ctx context.Context, id caisson.ID) (*task, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if t := c.m.run(id); t != nil && t.Account == caller.Account {
		return t, nil
	}
	return nil, caisson.Errorf(caisson.NotFound, "there is no run %.40q", id)
}

// with does something with a run and returns a copy of it.
func (c runCore) with(ctx context.Context, id caisson.ID, do func(*task) error) (*caisson.Run, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	t, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := do(t); err != nil {
		return nil, err
	}
	return t.copy(), nil
}

func (c runCore) GetRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	return c.with(ctx, id, func(*task) error { return nil })
}

func (c runCore) ListRuns(ctx context.Context, f caisson.RunFilter) (page []*caisson.Run, more bool, err error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, false, err
	}
	limit := f.Limit
	if limit == 0 {
		limit = 100
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	seen := f.Before == ""
	for _, t := range slices.Backward(c.m.runs) {
		if !seen {
			seen = t.ID == f.Before
			continue
		}
		if t.Account != caller.Account || len(f.States) > 0 && !slices.Contains(f.States, t.State) || f.Agent != "" && t.Agent != f.Agent ||
			f.Session != "" && t.Session != f.Session || f.Parent != "" && t.Parent != f.Parent ||
			f.Under != "" && t.ID != f.Under && !slices.Contains(t.Lineage, f.Under) {
			continue
		}
		if len(page) == limit {
			return page, true, nil
		}
		page = append(page, t.copy())
	}
	return page, false, nil
}

func (c runCore) WatchRun(ctx context.Context, id caisson.ID, after int64) (<-chan caisson.RunEvent, error) {
	c.m.mu.Lock()
	_, err := c.find(ctx, id)
	c.m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	out := make(chan caisson.RunEvent)
	go func() {
		defer close(out)
		for {
			c.m.mu.Lock()
			changed := c.m.changed
			t := c.m.run(id)
			if t == nil {
				c.m.mu.Unlock()
				return
			}
			events, ended := slices.Clone(t.events), t.State.Ended()
			c.m.mu.Unlock()
			for _, e := range events {
				if e.Seq <= after {
					continue
				}
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			}
			after = max(after, int64(len(events)))
			if ended {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (c runCore) CancelRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	return c.with(ctx, id, func(t *task) error {
		for _, r := range c.m.runs {
			if !r.State.Ended() && (r == t || slices.Contains(r.Lineage, id)) {
				c.m.end(r, &caisson.RunError{Code: caisson.RunAborted, Message: "it was cancelled"})
			}
		}
		return nil
	})
}

func (c runCore) RetryRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	return c.with(ctx, id, func(t *task) error {
		if t.State != caisson.RunFailed {
			return caisson.Errorf(caisson.Conflict, "the run %s has not failed; it is %s", id, t.State)
		}
		if err := volumeCore(c).take(t); err != nil {
			return err
		}
		t.Previous = append(t.Previous, *t.Result)
		t.begin()
		c.m.advance(t)
		return nil
	})
}

func (c runCore) RemoveRun(ctx context.Context, id caisson.ID) error {
	_, err := c.with(ctx, id, func(t *task) error {
		if !t.State.Ended() {
			return caisson.Errorf(caisson.Conflict, "the run %s is under way; cancel it first", id)
		}
		c.m.runs = slices.DeleteFunc(c.m.runs, func(r *task) bool { return r == t })
		return nil
	})
	return err
}

func (c runCore) RunLog(ctx context.Context, id caisson.ID, stream string) (io.ReadCloser, error) {
	var log string
	_, err := c.with(ctx, id, func(t *task) error {
		log = t.logs[stream]
		return nil
	})
	if err != nil {
		return nil, err
	}
	return io.NopCloser(strings.NewReader(log)), nil
}

func (c runCore) ListSessions(ctx context.Context, f caisson.SessionFilter) ([]*caisson.Session, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var out []*caisson.Session
	for _, s := range c.m.sessions {
		if s.Account == caller.Account && (f.Agent == "" || s.Agent == f.Agent) && (f.User == "" || s.User == f.User) && (f.Key == "" || s.Key == f.Key) {
			session := *s
			out = append(out, &session)
		}
	}
	return out, nil
}

func (c runCore) RemoveSession(ctx context.Context, id caisson.ID) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for i, s := range c.m.sessions {
		if s.ID != id || s.Account != caller.Account {
			continue
		}
		if s.Run != "" {
			return caisson.Errorf(caisson.Conflict, "the session has the run %s under way", s.Run)
		}
		c.m.sessions = slices.Delete(c.m.sessions, i, i+1)
		return nil
	}
	return caisson.Errorf(caisson.NotFound, "there is no session %s", id)
}
