package lru_test

import (
	"slices"
	"testing"

	"github.com/caisson-dev/caisson/internal/lru"
)

func keys(m *lru.Map[string, int]) (all []string) {
	for k := range m.All {
		all = append(all, k)
	}
	return all
}

func TestMap(t *testing.T) {
	m := lru.New[string, int](3)
	for i, k := range []string{"a", "b", "c"} {
		m.Put(k, i)
	}
	if v, ok := m.Get("a"); !ok || v != 0 {
		t.Errorf("Get(a) = %d, %v", v, ok)
	}
	m.Put("d", 3) // b is the least recently used.
	if got := keys(m); !slices.Equal(got, []string{"d", "a", "c"}) {
		t.Errorf("after four: %v", got)
	}
	if _, ok := m.Get("b"); ok {
		t.Error("b is still there")
	}
	m.Put("c", 7)
	if v, _ := m.Get("c"); v != 7 || m.Len() != 3 {
		t.Errorf("c = %d of %d values", v, m.Len())
	}
	m.Delete("a")
	m.Delete("nobody")
	if got := keys(m); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("after delete: %v", got)
	}
}

func TestMapOfOne(t *testing.T) {
	m := lru.New[int, int](1)
	for i := range 10 {
		m.Put(i, i)
	}
	if v, ok := m.Get(9); !ok || v != 9 || m.Len() != 1 {
		t.Errorf("Get(9) = %d, %v; %d values", v, ok, m.Len())
	}
}
