package llm

import (
	"sync"

	"github.com/caisson-dev/caisson/internal/lru"
)

const (
	maxOwners = 1024 // maximum number of pairs of account and provider for which ids of objects are recorded
	maxStates = 4096 // maximum number of ids that are recorded for one pair of account and provider
)

// serverStates records which account has created which objects at a provider (stored responses, files, containers), by their ids.
// Entries are evicted when the cache is full, and lost when the process ends; a guest then has to send the whole input again.
type serverStates struct {
	mu      *sync.Mutex
	byOwner *lru.Map[string, *lru.Map[string, struct{}]] // ids of objects by account and provider; guarded by mu
}

// newServerStates returns an empty record of the objects that accounts have created and providers store.
func newServerStates() serverStates {
	return serverStates{mu: new(sync.Mutex), byOwner: lru.New[string, *lru.Map[string, struct{}]](maxOwners)}
}

// add records that account has created the objects with these ids, such as responses and files, which provider stores.
func (s serverStates) add(account, provider string, ids []string) {
	if len(ids) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := account + "\x00" + provider
	known, ok := s.byOwner.Get(owner)
	if !ok {
		known = lru.New[string, struct{}](maxStates)
		s.byOwner.Put(owner, known)
	}
	for _, id := range ids {
		if id != "" && len(id) <= 256 {
			known.Put(id, struct{}{})
		}
	}
}

// has reports whether account is recorded as the creator of the object with this id, which provider stores.
func (s serverStates) has(account, provider, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.byOwner.Get(account + "\x00" + provider)
	if !ok {
		return false
	}
	_, ok = known.Get(id)
	return ok
}
