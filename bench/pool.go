package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
)

// poolTimeout is the maximum time until a pool is full.
const poolTimeout = 2 * time.Minute

// waitPool waits until the pool of OpenClaw's warm snapshot has exactly n forks.
func (t *agentSetup) waitPool(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	for {
		list, _, err := t.api.List(ctx, caisson.Filter{Limit: 1000})
		if err != nil {
			return fmt.Errorf("wait for a pool of %d: %w", n, err)
		}
		ready := 0
		for _, sb := range list {
			if sb.Pooled && sb.State == caisson.Running {
				ready++
			}
		}
		if ready == n {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// withPool calls f while a pool of n forks of OpenClaw's warm snapshot exists, and then removes the pool.
func (t *agentSetup) withPool(ctx context.Context, n int, f func() error) error {
	if _, err := t.api.SetAgentPool(ctx, openclawAgent, n); err != nil {
		return err
	}
	err := f()
	_, perr := t.api.SetAgentPool(ctx, openclawAgent, 0)
	return errors.Join(err, perr, t.waitPool(ctx, 0))
}

// openclawPool compares runs of OpenClaw that claim a fork from a pool with OpenClaw's own command line on the host. It also
// measures the time until the pool has the next fork.
func (s agents) openclawPool(ctx context.Context, t *agentSetup) error {
	var ours measuredRuns
	var refill samples
	run := t.measureTalk(&ours, openclawAgent, true)
	return t.withPool(ctx, 1, func() error {
		all, err := interleave(ctx, max(s.N/2, 1), func(ctx context.Context) (samples, error) {
			if err := t.waitPool(ctx, 1); err != nil {
				return nil, err
			}
			ms, err := run(ctx)
			if err != nil {
				return nil, err
			}
			start := time.Now()
			err = t.waitPool(ctx, 1)
			refill = append(refill, milliseconds(time.Since(start)))
			return ms, err
		}, operation{do: t.openclaw.turn}.measure())
		if err != nil {
			return err
		}
		s.addRun(newRow("agent.openclaw.pool", "ms", all[0], openclawOnHost, all[1]).atMostTimes(0.13), ours)
		s.add(newRow("agent.openclaw.pool.refill", "ms", refill[1:], "", nil))
		return nil
	})
}

// poolDemand is the number of runs that openclawPoolShort starts concurrently, more than the pool has forks.
const poolDemand = 3

// openclawPoolShort measures the fastest and the slowest of several concurrent runs of OpenClaw when the pool has only one fork.
func (s agents) openclawPoolShort(ctx context.Context, t *agentSetup) error {
	var slowest samples
	return t.withPool(ctx, 1, func() error {
		all, err := interleave(ctx, max(s.N/4, 1), func(ctx context.Context) (samples, error) {
			if err := t.waitPool(ctx, 1); err != nil {
				return nil, err
			}
			var runs [poolDemand]*measuredRun
			err := concurrently(ctx, poolDemand, func(ctx context.Context, i int) (err error) {
				runs[i], err = t.run(ctx, caisson.RunRequest{Agent: openclawAgent, Model: talkModel, Prompt: talkPrompt})
				return err
			})
			if err != nil {
				return nil, err
			}
			best, worst := runs[0].ms, runs[0].ms
			for _, r := range runs {
				best, worst = min(best, r.ms), max(worst, r.ms)
			}
			slowest = append(slowest, worst)
			return samples{best}, t.waitRemoved(ctx, runs[:]...)
		})
		if err != nil {
			return err
		}
		s.add(newRow("agent.openclaw.pool.short", "ms", all[0], "", nil))
		s.add(newRow("agent.openclaw.pool.short.slowest", "ms", slowest[1:], "", nil))
		return nil
	})
}

// openclawDirectory compares runs of OpenClaw that have a directory of the host as workspace with OpenClaw's own command line on
// the host. A fork gets the directory when it is created, so no fork of a pool can be used.
func (s agents) openclawDirectory(ctx context.Context, t *agentSetup) error {
	dir := filepath.Join(s.Dir, "claw-directory")
	if err := sample.Write(dir); err != nil {
		return err
	}
	var ours measuredRuns
	run := ours.record(func(ctx context.Context) (*measuredRun, error) {
		f, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		return t.runAndRemove(ctx, caisson.RunRequest{
			Agent: openclawAgent, Model: talkModel, Prompt: talkPrompt, Source: dir, Directory: f,
		})
	}, checkTalk(true))
	all, err := interleave(ctx, max(s.N/4, 1), run, operation{do: t.openclaw.turn}.measure())
	if err != nil {
		return err
	}
	s.addRun(newRow("agent.openclaw.directory", "ms", all[0], openclawOnHost, all[1]), ours)
	return nil
}
