package name

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/internal/lru"
)

const (
	pinAddrs    = 1024 // per wire
	pinNames    = 16   // per address; addresses of large content networks have many names
	pinLifetime = 10 * time.Minute
)

// pins records for which names a guest received each address. Safe for concurrent use.
type pins struct {
	now func() time.Time

	mu    sync.Mutex
	addrs *lru.Map[netip.Addr, []pin] // the slices are replaced, never modified; guarded by mu
}

type pin struct {
	name    string
	expires time.Time
}

func newPins(now func() time.Time) *pins {
	return &pins{now: now, addrs: lru.New[netip.Addr, []pin](pinAddrs)}
}

// add records that name was answered with addrs for ttl. Programs use addresses for longer than their time to live, so the record
// is kept for at least 10 minutes.
func (p *pins) add(name string, addrs []netip.Addr, ttl time.Duration) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, addr := range addrs {
		addr = addr.Unmap()
		old, _ := p.addrs.Get(addr)
		all := make([]pin, 1, min(len(old)+1, pinNames))
		all[0] = pin{name, now.Add(max(ttl, pinLifetime))}
		for _, o := range old {
			if len(all) < pinNames && o.name != name && now.Before(o.expires) {
				all = append(all, o)
			}
		}
		p.addrs.Put(addr, all)
	}
}

func (p *pins) names(addr netip.Addr) (names []string) {
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
