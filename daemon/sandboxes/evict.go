package sandboxes

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/caisson-dev/caisson"
)

// evictor removes sandboxes from pools when the host has no room for other sandboxes.
type evictor struct {
	states  states   // stored records of sandboxes
	remover *remover // removes sandboxes
	dirs    dirs     // paths and files in the data directory
	log     *slog.Logger
}

// list returns the running sandboxes of all pools.
func (s *evictor) list(ctx context.Context) ([]*caisson.Sandbox, error) {
	list, err := s.states.list(ctx, caisson.AllAccounts())
	return slices.DeleteFunc(list, func(sb *caisson.Sandbox) bool { return !sb.Pooled || sb.State != caisson.Running }), err
}

// forkMemory returns the memory in bytes of the forks in a list of pooled sandboxes. Each fork counts as much as the checkpoint
// from which it was restored.
func (s *evictor) forkMemory(list []*caisson.Sandbox) (sum caisson.Size) {
	size := map[caisson.ID]caisson.Size{} // memory in bytes by snapshot
	for _, sb := range list {
		if sb.Parent == "" {
			continue
		}
		if _, ok := size[sb.Parent]; !ok {
			size[sb.Parent] = checkpointMemory(s.dirs.snapshotDir(sb.Parent))
		}
		sum += size[sb.Parent]
	}
	return sum
}

// evict removes one sandbox from a pool, and reports whether it has removed one. Forks are removed before other sandboxes,
// because they use the most memory.
func (s *evictor) evict(ctx context.Context) bool {
	list, err := s.list(ctx)
	if err != nil || len(list) == 0 {
		return false
	}
	sb := slices.MaxFunc(list, func(a, b *caisson.Sandbox) int {
		return cmp.Or(cmp.Compare(len(a.Parent), len(b.Parent)), a.CreatedAt.Compare(b.CreatedAt))
	})
	if err := s.remover.discard(ctx, sb.ID, "evicted from the pool because the host has no room", isPooled); err != nil {
		s.log.WarnContext(ctx, "a sandbox of a pool could not be evicted", "sandbox", sb.ID, "err", err)
		return false
	}
	return true
}
