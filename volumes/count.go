package volumes

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
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
	t, err := c.count(ctx, v.ID)
	if errors.Is(err, errTooMuch) || ctx.Err() != nil {
		return v
	}
	if err == nil {
		var now *caisson.Volume
		now, err = c.Store.Volumes().Update(ctx, caisson.Everyone(), string(v.ID), func(v *caisson.Volume) error {
			v.Files, v.Bytes, v.CountedAt = t.files, caisson.Size(t.blocks*512), t.at
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
func (c *Core) count(ctx context.Context, id caisson.ID) (*tally, error) {
	ctx, cancel := context.WithTimeout(ctx, c.counts.bound)
	defer cancel()
	data, err := c.openData(id, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer data.Close()
	t := &tally{at: now(), linked: map[uint64]bool{}}
	var st unix.Stat_t
	if err := unix.Fstat(int(data.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	t.device = st.Dev
	return t, t.add(ctx, data, countDepth)
}

// tally is a count.
type tally struct {
	at            time.Time
	device        uint64
	files, blocks int64
	linked        map[uint64]bool // files with more than one name, by inode
}

// add counts what is in a directory and below. What goes away meanwhile is not counted.
func (t *tally) add(ctx context.Context, dir *os.File, depth int) error {
	if depth == 0 {
		return errTooMuch
	}
	for {
		names, err := dir.Readdirnames(batch)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if ctx.Err() != nil {
				return errTooMuch
			}
			if err := t.addEntry(ctx, dir, name, depth); err != nil {
				return err
			}
		}
	}
}

func (t *tally) addEntry(ctx context.Context, dir *os.File, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if st.Dev != t.device || !isDir && t.linked[st.Ino] {
		return nil
	}
	if !isDir && st.Nlink > 1 {
		t.linked[st.Ino] = true
	}
	t.files++
	t.blocks += st.Blocks
	if !isDir {
		return nil
	}
	sub, err := openAt(dir, name, unix.O_RDONLY)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil // it is something else by now
	case err != nil:
		return err
	}
	defer sub.Close()
	return t.add(ctx, sub, depth-1)
}
