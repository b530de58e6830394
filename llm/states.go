package llm

import (
	"sync"

	"github.com/caisson-dev/caisson/internal/lru"
)

const (
	maxOwners = 1024 // accounts, times providers
	maxStates = 4096 // ids of each
)

// states remembers who made what providers keep. It forgets when it is full or the process ends; then a guest has to send
// the input again.
type states struct {
	mu     *sync.Mutex
	owners *lru.Map[string, *lru.Map[string, struct{}]]
}

func newStates() states {
	return states{mu: new(sync.Mutex), owners: lru.New[string, *lru.Map[string, struct{}]](maxOwners)}
}

func (s states) add(account, provider string, ids []string) {
	if len(ids) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := account + "\x00" + provider
	known, ok := s.owners.Get(owner)
	if !ok {
		known = lru.New[string, struct{}](maxStates)
		s.owners.Put(owner, known)
	}
	for _, id := range ids {
		if id != "" && len(id) <= 256 {
			known.Put(id, struct{}{})
		}
	}
}

func (s states) has(account, provider, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.owners.Get(account + "\x00" + provider)
	if !ok {
		return false
	}
	_, ok = known.Get(id)
	return ok
}
