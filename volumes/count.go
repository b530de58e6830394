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
	countEvery = time.Minute // a volume is counted at most once per interval
	countTime  = time.Second
	countDepth = 128 // nested directories, each of which holds an open file descriptor
	countSame  = 2   // concurrent counts
	usageTime  = 5 * time.Second
)

// errTooMuch is returned when a count exceeds its limits of time or depth.
var errTooMuch = errors.New("there is too much to count")

// counts limits how often and how many volumes are counted.
type counts struct {
	places chan struct{} // semaphore: one token per count in progress
	bound  time.Duration // time limit of one count

	mu    sync.Mutex
	tried map[caisson.ID]time.Time // start of the last count, even if it did not finish; guarded by mu
}

func newCounts() *counts {
	return &counts{places: make(chan struct{}, countSame), bound: countTime, tried: map[caisson.ID]time.Time{}}
}

// begin reports whether the caller is to count the volume now. If so, the caller must call end afterwards.
func (c *counts) begin(v *caisson.Volume) (end func(), ok bool) {
	at := now()
	if at.Sub(v.CountedAt) < countEvery {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.Sub(c.tried[v.ID]) < countEvery {
		return nil, false
	}
	select {
	case c.places <- struct{}{}:
		c.tried[v.ID] = at
		return func() { <-c.places }, true
	default:
		return nil, false // all places are in use; a later call counts the volume
	}
}

// forget deletes the entry of a removed volume.
func (c *counts) forget(id caisson.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tried, id)
}

// counted returns v with its size: counted now, or as it was last counted if a new count is not due or does not finish.
func (c *Core) counted(ctx context.Context, v *caisson.Volume) *caisson.Volume {
	end, ok := c.counts.begin(v)
	if !ok {
		return v
	}
	defer end()
	t, at, err := c.count(ctx, v.ID)
	if errors.Is(err, errTooMuch) || ctx.Err() != nil {
		return v
	}
	if err == nil {
		var now *caisson.Volume
		now, err = c.Store.Volumes().Update(ctx, caisson.Everyone(), string(v.ID), func(v *caisson.Volume) error {
			v.Files, v.Bytes, v.CountedAt = t.Files, caisson.Size(t.Bytes), at
			return nil
		})
		if err == nil {
			return now
		}
	}
	if caisson.KindOf(err) != caisson.NotFound {
		c.Log.WarnContext(ctx, "what is in a volume could not be counted", "volume", v.ID, "err", err)
	}
	return v
}

// Usage returns the disk usage of all volumes. It counts for at most usageTime; the sizes of the remaining volumes are those of
// their last count.
func (c *Core) Usage(ctx context.Context) (caisson.Usage, error) {
	u := caisson.Usage{Kind: topDir}
	soon, cancel := context.WithTimeout(ctx, usageTime)
	defer cancel()
	err := c.each(ctx, func(v *caisson.Volume) error {
		if soon.Err() == nil {
			v = c.counted(soon, v)
		}
		u.Count++
		u.Size += v.Bytes
		return nil
	})
	return u, err
}

// count counts the files in a volume, to which guests may be writing. Returns errTooMuch if the count exceeds its limits.
func (c *Core) count(ctx context.Context, id caisson.ID) (t guesttree.Tally, at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.counts.bound)
	defer cancel()
	data, err := c.openData(id, unix.O_RDONLY)
	if err != nil {
		return t, at, err
	}
	defer data.Close()
	at = now()
	t, err = guesttree.Count(ctx, data, countDepth)
	if errors.Is(err, guesttree.ErrDeep) || ctx.Err() != nil {
		err = errTooMuch
	}
	return t, at, err
}
