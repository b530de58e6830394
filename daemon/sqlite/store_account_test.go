package sqlite_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testAccounts(t *testing.T, open Opener) {
	t.Run("Local", func(t *testing.T) {
		acc := get[*caisson.Account](t)(open(t).Accounts().Get(t.Context(), caisson.LocalAccount))
		if acc.Name != caisson.LocalAccount || acc.UIDBase == 0 || acc.CreatedAt.IsZero() {
			t.Errorf("the local account is %+v", acc)
		}
	})
	t.Run("Ensure", func(t *testing.T) {
		s := open(t).Accounts()
		first := get[*caisson.Account](t)(s.Ensure(t.Context(), "team-1"))
		again := get[*caisson.Account](t)(s.Ensure(t.Context(), "team-1"))
		got := get[*caisson.Account](t)(s.Get(t.Context(), "team-1"))
		if !cmp.Equal(first, again) || !cmp.Equal(first, got) {
			t.Errorf("one account, three answers: %+v, %+v, %+v", first, again, got)
		}
		_, err := s.Get(t.Context(), "team-2")
		wantKind(t, err, caisson.NotFound)
	})
	t.Run("Ranges", func(t *testing.T) {
		s := open(t).Accounts()
		var wg sync.WaitGroup
		for i := range 16 { // Two goroutines create each name.
			wg.Go(func() {
				if _, err := s.Ensure(t.Context(), fmt.Sprintf("a%d", i/2)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		all := get[[]*caisson.Account](t)(s.List(t.Context()))
		if len(all) != 9 {
			t.Errorf("%d accounts, want 8 and the local one", len(all))
		}
		seen := map[uint32]string{}
		for _, acc := range all {
			if acc.UIDBase < 0x50000000 || acc.UIDBase > caisson.LayerUIDBase-caisson.UIDRange || acc.UIDBase%caisson.UIDRange != 0 {
				t.Errorf("%s has the uids from %#x", acc.Name, acc.UIDBase)
			}
			if other, ok := seen[acc.UIDBase]; ok {
				t.Errorf("%s and %s have the same uids", acc.Name, other)
			}
			seen[acc.UIDBase] = acc.Name
		}
	})
	t.Run("Names", func(t *testing.T) {
		s := open(t).Accounts()
		for _, name := range []string{"a", "a1", "a-b", strings.Repeat("x", 32)} {
			get[*caisson.Account](t)(s.Ensure(t.Context(), name))
		}
		for _, name := range []string{"", "A", "1a", "-a", "a/b", "a b", "a.b", "../x", "ä", "a\n", "a\x00", strings.Repeat("x", 33)} {
			_, err := s.Ensure(t.Context(), name)
			wantKind(t, err, caisson.Invalid)
		}
	})
}
