// Package lru is a map that forgets what was used longest ago when it is full.
package lru

import "container/list"

// A Map holds at most a fixed number of values. It is used by one goroutine at a time. Make it with [New].
type Map[K comparable, V any] struct {
	max   int
	order *list.List // of *pair[K, V], the last used first
	items map[K]*list.Element
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

// New returns a Map that holds at most max values, at least one.
func New[K comparable, V any](max int) *Map[K, V] {
	return &Map[K, V]{max: max, order: list.New(), items: map[K]*list.Element{}}
}

// Get returns the value of key and makes it the last used.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	e, ok := m.items[key]
	if !ok {
		return value, false
	}
	m.order.MoveToFront(e)
	return e.Value.(*pair[K, V]).value, true
}

// Put sets the value of key, makes it the last used, and forgets the one used longest ago if there are too many.
func (m *Map[K, V]) Put(key K, value V) {
	if e, ok := m.items[key]; ok {
		e.Value.(*pair[K, V]).value = value
		m.order.MoveToFront(e)
		return
	}
	if len(m.items) >= m.max && len(m.items) > 0 {
		oldest := m.order.Back()
		delete(m.items, oldest.Value.(*pair[K, V]).key)
		m.order.Remove(oldest)
	}
	m.items[key] = m.order.PushFront(&pair[K, V]{key, value})
}

// Delete forgets key.
func (m *Map[K, V]) Delete(key K) {
	if e, ok := m.items[key]; ok {
		delete(m.items, key)
		m.order.Remove(e)
	}
}

// Len returns how many values m holds.
func (m *Map[K, V]) Len() int { return len(m.items) }

// All calls yield for each key and value, the last used first, until it returns false. yield must not change m.
func (m *Map[K, V]) All(yield func(K, V) bool) {
	for e := m.order.Front(); e != nil; e = e.Next() {
		p := e.Value.(*pair[K, V])
		if !yield(p.key, p.value) {
			return
		}
	}
}
