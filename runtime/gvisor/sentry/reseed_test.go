package sentry

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestWantedRevival(t *testing.T) {
	for _, c := range []struct {
		name, spec string
		want       restoreConfig
		ok         bool
	}{
		{"new names", `{"annotations":{"dev.caisson.reseed":"openssl"}}`, restoreConfig{rename: true, reseed: true}, true},
		{"new names, still clock", `{"annotations":{"dev.caisson.reseed":"openssl","dev.caisson.clock":"still"}}`, restoreConfig{true, true, true}, true},
		{"old names", `{"annotations":{"dev.caisson.reseed":"keep"}}`, restoreConfig{rename: true}, true},
		{"no annotations", `{}`, restoreConfig{}, true},
		{"another", `{"annotations":{"x":"openssl"}}`, restoreConfig{}, true},
		{"unknown", `{"annotations":{"dev.caisson.reseed":"dice"}}`, restoreConfig{}, false},
		{"unknown clock", `{"annotations":{"dev.caisson.clock":"back"}}`, restoreConfig{}, false},
		{"empty", ``, restoreConfig{}, false},
		{"cut off", `{"annotations":{"dev.caisson.reseed":"openssl"`, restoreConfig{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "spec"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(c.spec); err != nil {
				t.Fatal(err)
			}
			for range 2 { // twice, because boot reads the same file afterwards
				got, err := readRestoreConfig([]string{"--platform=systrap", "boot", "--bundle=/x", fmt.Sprintf("--spec-fd=%d", f.Fd()), "id"})
				if got != c.want || (err == nil) != c.ok {
					t.Errorf("%+v, %v", got, err)
				}
			}
		})
	}
}

func TestSpecFD(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
		ok   bool
	}{
		{[]string{"boot", "--spec-fd=7"}, 7, true},
		{[]string{"boot", "-spec-fd=7"}, 7, true},
		{[]string{"boot", "--other-spec-fd=7"}, 0, false},
		{[]string{"boot", "--spec-fd=x"}, 0, false},
		{[]string{"boot", "--spec-fd=-1"}, 0, false},
		{[]string{"boot", "--spec-fd=1"}, 0, false},
		{[]string{"boot"}, 0, false},
		{nil, 0, false},
	} {
		if got, err := specFD(c.args); got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %d, %v", c.args, got, err)
		}
	}
}
