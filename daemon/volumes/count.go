package volumes

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/guesttree"
)

// Limits of counting the files in a volume.
const (
	countInterval       = time.Minute     // minimum time between two counts of one volume
	countTimeout        = time.Second     // time limit of one count
	maxCountDepth       = 128             // maximum depth of nested directories; each level needs an open file descriptor
	maxConcurrentCounts = 2               // maximum number of counts at the same time
	usageTimeout        = 5 * time.Second // time limit of all counts of one call of Usage
)

// errCountLimit is returned when a count exceeds its limits of time or depth.
var errCountLimit = errors.New("there is too much to count")

// countLimiter limits how often the files of a volume are counted, and of how many volumes at the same time.
type countLimiter struct {
	slots   chan struct{} // semaphore: one element for each count in progress
	timeout time.Duration // time limit of counting the files of one volume

	mu      sync.Mutex
	started map[caisson.ID]time.Time // time when a count of a volume's files was last begun, by volume; guarded by mu
}

// newCountLimiter returns a countLimiter with the limits maxConcurrentCounts and countTimeout.
func newCountLimiter() *countLimiter {
	return &countLimiter{slots: make(chan struct{}, maxConcurrentCounts), timeout: countTimeout, started: map[caisson.ID]time.Time{}}
}

// begin reports whether the caller is to count the files of the volume now. If so, the caller must call end afterwards.
func (c *countLimiter) begin(v *caisson.Volume) (end func(), ok bool) {
	at := now()
	if at.Sub(v.CountedAt) < countInterval {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.Sub(c.started[v.ID]) < countInterval {
		return nil, false
	}
	select {
	case c.slots <- struct{}{}:
		c.started[v.ID] = at
		return func() { <-c.slots }, true
	default:
		return nil, false // maxConcurrentCounts counts are in progress; a later call counts the volume
	}
}

// forget deletes the time at which the files of a removed volume were last counted.
func (c *countLimiter) forget(id caisson.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.started, id)
}

// recount returns v with its size: counted now, or as it was last counted if a new count is not due or does not finish.
func (c *Core) recount(ctx context.Context, v *caisson.Volume) *caisson.Volume {
	end, ok := c.counts.begin(v)
	if !ok {
		return v
	}
	defer end()
	t, at, err := c.count(ctx, v.ID)
	if errors.Is(err, errCountLimit) || ctx.Err() != nil {
		return v
	}
	if err == nil {
		var now *caisson.Volume
		now, err = c.Store.Volumes().Update(ctx, caisson.AllAccounts(), string(v.ID), func(v *caisson.Volume) error {
			v.Files, v.Bytes, v.CountedAt = t.Files, caisson.Size(t.Bytes), at
			return nil
		})
		if err == nil {
			return now
		}
	}
	if caisson.KindOf(err) != caisson.NotFound {
		c.Log.WarnContext(ctx, "the files of a volume could not be counted", "volume", v.ID, "err", err)
	}
	return v
}

// Usage returns the disk usage of all volumes. It counts for at most usageTimeout; the sizes of the remaining volumes are those
// of their last count.
func (c *Core) Usage(ctx context.Context) (caisson.Usage, error) {
	u := caisson.Usage{Kind: topDir}
	soon, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	list, err := c.all(ctx)
	for _, v := range list {
		if soon.Err() == nil {
			v = c.recount(soon, v)
		}
		u.Count++
		u.Size += v.Bytes
	}
	return u, err
}

// count counts the files in a volume, to which guests may be writing. Returns errCountLimit if the count exceeds its limits.
func (c *Core) count(ctx context.Context, id caisson.ID) (t guesttree.Tally, at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.counts.timeout)
	defer cancel()
	data, err := c.openData(id, unix.O_RDONLY)
	if err != nil {
		return t, at, err
	}
	defer data.Close()
	at = now()
	t, err = guesttree.Count(ctx, data, maxCountDepth)
	if errors.Is(err, guesttree.ErrDeep) || ctx.Err() != nil {
		err = errCountLimit
	}
	return t, at, err
}
