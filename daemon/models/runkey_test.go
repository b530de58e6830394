package models

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestCheckRunKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		account, name string
		size          int
		want          caisson.Kind
	}{
		{caisson.LocalAccount, "RUN_KEY", 16, caisson.Invalid},
		{caisson.LocalAccount, "RUN_KEY", 32, ""},
		{caisson.LocalAccount, "OTHER", 16, ""},
		{"team-a", "RUN_KEY", 16, ""},
	} {
		err := CheckRunKey([]string{"RUN_KEY"}, c.account, c.name, caisson.NewSecret(strings.Repeat("k", c.size)))
		if (err == nil) != (c.want == "") || err != nil && caisson.KindOf(err) != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
