package runs

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/caisson-dev/caisson"
)

// keeper frees the resources of idle sessions, and removes old runs and sessions.
type keeper struct {
	runs     caisson.RunStore
	sessions *sessions
	dirs     *directories
	limits   Limits
	log      *slog.Logger
}

// run does the periodic work until ctx ends.
func (k *keeper) run(ctx context.Context) error {
	tick := time.NewTicker(min(time.Minute, max(time.Duration(k.limits.SessionIdle)/4, 50*time.Millisecond)))
	defer tick.Stop()
	for trim := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := k.sessions.pauseIdle(ctx, time.Now()); err != nil && ctx.Err() == nil {
			k.log.ErrorContext(ctx, "idle sessions could not be paused", "err", err)
		}
		if time.Since(trim) < time.Hour {
			continue
		}
		trim = time.Now()
		if err := k.trim(ctx, trim.Add(-time.Duration(k.limits.Keep))); err != nil && ctx.Err() == nil {
			k.log.ErrorContext(ctx, "old runs could not be removed", "err", err)
		}
	}
}

// trim removes the runs that ended, and the sessions that were last used, before the given time.
func (k *keeper) trim(ctx context.Context, before time.Time) error {
	if err := errors.Join(k.sessions.expire(ctx, before), k.dirs.trimArchives(ctx, time.Now())); err != nil {
		return err
	}
	for {
		gone, err := k.runs.Trim(ctx, before, 100)
		for _, id := range gone {
			err = errors.Join(err, k.dirs.removeDir(id))
		}
		if err != nil || len(gone) == 0 {
			return err
		}
	}
}
