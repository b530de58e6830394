package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
)

// createCold compares Caisson with gVisor's command line in the time from the request for a sandbox to the end of the first
// process in it. gVisor's command line can do this in two ways: with one process that creates a sandbox, runs the program in it
// and removes it; or, like Caisson, with an idle sandbox and an exec in it.
func (s *suite) createCold(ctx context.Context) error {
	var id, once, idle string
	all, err := compare(ctx, s.N,
		operation{
			do: func(ctx context.Context) (err error) {
				if id, err = s.create(ctx); err != nil {
					return err
				}
				return s.exec(ctx, id)
			},
			after: func(ctx context.Context) error { return s.api.Remove(ctx, id) },
		},
		s.runsOnce(&once),
		operation{
			before: func(ctx context.Context) (err error) { idle, err = s.baseline.bundle(ctx); return err },
			do: func(ctx context.Context) error {
				if err := s.baseline.start(ctx, idle); err != nil {
					return err
				}
				return s.baseline.exec(ctx, idle)
			},
			after: func(ctx context.Context) error { return s.baseline.remove(ctx, idle) },
		},
	)
	if err != nil {
		return err
	}
	s.add(newRow("sandbox.create.cold", "ms", all[0], "runsc run", all[1]).atMostTimes(1.15))
	s.add(newRow("sandbox.create.cold.exec", "ms", all[0], "runsc run -detach, exec", all[2]).atMostTimes(1.15))
	return nil
}

// runsOnce returns the operation "runsc run": one process creates a sandbox, runs the program in it and removes it. Before each
// execution, the bundle of the sandbox is made, and *id is set to the sandbox's id.
func (s *suite) runsOnce(id *string) operation {
	return operation{
		before: func(ctx context.Context) (err error) { *id, err = s.baseline.bundle(ctx, program); return err },
		do:     func(ctx context.Context) error { return s.baseline.run(ctx, *id) },
		after:  func(ctx context.Context) error { return s.baseline.release(ctx, *id) },
	}
}

const (
	poolTemplate = "bench-pool" // Name of the template with a pool.
	poolSize     = 4            // Number of sandboxes in the pool.
)

// claimWarm compares the time until a first process in a sandbox from a full pool has ended with that of one "runsc run".
func (s *suite) claimWarm(ctx context.Context) error {
	_, err := s.api.PutTemplate(ctx, caisson.Template{Name: poolTemplate, Image: "host", Pool: poolSize})
	if err != nil {
		return err
	}
	var id, once string
	all, err := compare(ctx, s.N,
		operation{
			before: s.awaitPool,
			do: func(ctx context.Context) error {
				sb, err := s.api.Create(ctx, caisson.CreateRequest{Template: poolTemplate})
				if err != nil {
					return err
				}
				id = string(sb.ID)
				return s.exec(ctx, id)
			},
			after: func(ctx context.Context) error { return s.api.Remove(ctx, id) },
		},
		s.runsOnce(&once),
	)
	if err != nil {
		return err
	}
	s.add(newRow("sandbox.claim.warm", "ms", all[0], "runsc run", all[1]).under(15))
	if err := s.awaitPool(ctx); err != nil {
		return err
	}
	return s.api.RemoveTemplate(ctx, poolTemplate)
}

// awaitPool waits until the pool of poolTemplate is full.
func (s *suite) awaitPool(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for ready := 0; ready < poolSize; {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the pool has %d of %d sandboxes: %w", ready, poolSize, ctx.Err())
		}
		list, _, err := s.api.List(ctx, caisson.Filter{States: []caisson.State{caisson.Running}, Limit: 1000})
		if err != nil {
			return err
		}
		ready = 0
		for _, sb := range list {
			if sb.Pooled {
				ready++
			}
		}
	}
	return nil
}

// burst is the number of sandboxes that createBurst creates concurrently, and that daemonMemory creates.
const burst = 50

// createBurst compares Caisson with gVisor's command line in the time until 50 sandboxes, created concurrently, are running.
func (s *suite) createBurst(ctx context.Context) error {
	var ours, theirs [burst]string
	all, err := compare(ctx, min(3, s.N),
		operation{
			do: func(ctx context.Context) error {
				return concurrently(ctx, burst, func(ctx context.Context, i int) (err error) {
					ours[i], err = s.create(ctx)
					return err
				})
			},
			after: func(ctx context.Context) error { return s.removeAll(ctx, ours[:]) },
		},
		operation{
			before: func(ctx context.Context) (err error) {
				for i := range theirs {
					if theirs[i], err = s.baseline.bundle(ctx); err != nil {
						return err
					}
				}
				return nil
			},
			do: func(ctx context.Context) error {
				return concurrently(ctx, burst, func(ctx context.Context, i int) error { return s.baseline.start(ctx, theirs[i]) })
			},
			after: func(ctx context.Context) error { return s.baseline.remove(ctx, theirs[:]...) },
		},
	)
	if err != nil {
		return err
	}
	s.add(newRow("sandbox.create.burst50", "ms", all[0], "50 × runsc run -detach", all[1]).atMostTimes(1.15))
	return nil
}

// concurrently calls f n times concurrently, with the arguments 0 to n-1.
func concurrently(ctx context.Context, n int, f func(context.Context, int) error) error {
	var begin sync.WaitGroup
	begin.Add(1)
	g, ctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error {
			begin.Wait()
			return f(ctx, i)
		})
	}
	begin.Done()
	return g.Wait()
}

// removeAll removes the sandboxes with the given ids, at most four at a time.
func (d *daemon) removeAll(ctx context.Context, ids []string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, id := range ids {
		g.Go(func() error { return d.api.Remove(ctx, id) })
	}
	return g.Wait()
}
