package dns

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/internal/lru"
)

const (
	maxCachedAddrs  = 1024             // addresses per wire
	maxNamesPerAddr = 16               // names per address; addresses of large content networks have many names
	minNameLifetime = 10 * time.Minute // minimum lifetime of a nameEntry
)

// nameCache records for which names a guest received each address. Safe for concurrent use.
type nameCache struct {
	now func() time.Time

	mu    sync.Mutex
	addrs *lru.Map[netip.Addr, []nameEntry] // names by address, latest first; the slices are never modified; guarded by mu
}

// A nameEntry is a name for which an address was returned.
type nameEntry struct {
	name    string
	expires time.Time // when the entry is no longer used
}

func newNameCache(now func() time.Time) *nameCache {
	return &nameCache{now: now, addrs: lru.New[netip.Addr, []nameEntry](maxCachedAddrs)}
}

// add records that name was answered with addrs for ttl. Programs use addresses for longer than their time to live, so the record
// is kept for at least 10 minutes.
func (p *nameCache) add(name string, addrs []netip.Addr, ttl time.Duration) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, addr := range addrs {
		addr = addr.Unmap()
		old, _ := p.addrs.Get(addr)
		all := make([]nameEntry, 1, min(len(old)+1, maxNamesPerAddr))
		all[0] = nameEntry{name, now.Add(max(ttl, minNameLifetime))}
		for _, o := range old {
			if len(all) < maxNamesPerAddr && o.name != name && now.Before(o.expires) {
				all = append(all, o)
			}
		}
		p.addrs.Put(addr, all)
	}
}

// names returns the names that were recorded for addr and have not expired.
func (p *nameCache) names(addr netip.Addr) (names []string) {
	now := p.now()
	p.mu.Lock()
	all, _ := p.addrs.Get(addr.Unmap())
	p.mu.Unlock()
	for _, pin := range all {
		if now.Before(pin.expires) {
			names = append(names, pin.name)
		}
	}
	return slices.Clip(names)
}
