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

// Bounds of counting what is in a volume.
const (
	countEvery = time.Minute // a volume is counted at most once in this
	countTime  = time.Second
	countDepth = 128 // of directories, each of which is open meanwhile
	countSame  = 2   // counts at the same time
	usageTime  = 5 * time.Second
)

// errTooMuch ends a count that is not worth its time.
var errTooMuch = errors.New("there is too much to count")

// counts knows when which volumes were looked at.
type counts struct {
	places chan struct{} // a token for each count under way
	bound  time.Duration // of one count

	mu    sync.Mutex
	tried map[caisson.ID]time.Time // when a count was begun, which perhaps did not come to its end; guarded by mu
}

func newCounts() *counts {
	return &counts{places: make(chan struct{}, countSame), bound: countTime, tried: map[caisson.ID]time.Time{}}
}

// begin reports whether a volume is to be counted now, by who asks. If so, call end.
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
		return nil, false // others are at it, and the next who asks gets to know
	}
}

// forget forgets a volume that is gone.
func (c *counts) forget(id caisson.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tried, id)
}

// counted returns v with what is in it, as it is now or was when it was last counted.
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

// Usage returns what all volumes take on the disk, as far as it can be counted in a few seconds: the rest is what it was when it was last
// counted.
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

// count counts what is in a volume, in which guests may be at work meanwhile. errTooMuch if that takes too long.
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
