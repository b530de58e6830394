// Package lru provides a map of limited size that evicts the least recently used value.
package lru

import "container/list"

// A Map contains at most a fixed number of values. It is not safe for concurrent use. Create it with [New].
type Map[K comparable, V any] struct {
	max   int                 // maximum number of values
	order *list.List          // Elements are *pair[K, V], most recently used first.
	items map[K]*list.Element // the elements of order by key
}

// pair is an element of Map.order: a key with its value.
type pair[K comparable, V any] struct {
	key   K
	value V
}

// New returns a Map with at most max values, but at least one.
func New[K comparable, V any](max int) *Map[K, V] {
	return &Map[K, V]{max: max, order: list.New(), items: map[K]*list.Element{}}
}

// Get returns the value of key and marks it as the most recently used.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	e, ok := m.items[key]
	if !ok {
		return value, false
	}
	m.order.MoveToFront(e)
	return e.Value.(*pair[K, V]).value, true
}

// Put sets the value of key, marks it as the most recently used, and evicts the least recently used one if there are too many.
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

// Delete removes key.
func (m *Map[K, V]) Delete(key K) {
	if e, ok := m.items[key]; ok {
		delete(m.items, key)
		m.order.Remove(e)
	}
}

// Len returns the number of values in m.
func (m *Map[K, V]) Len() int { return len(m.items) }

// All calls yield for each key and value, most recently used first, until it returns false. yield must not change m.
func (m *Map[K, V]) All(yield func(K, V) bool) {
	for e := m.order.Front(); e != nil; e = e.Next() {
		p := e.Value.(*pair[K, V])
		if !yield(p.key, p.value) {
			return
		}
	}
}
