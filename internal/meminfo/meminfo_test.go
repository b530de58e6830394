package meminfo

import "testing"

func TestParse(t *testing.T) {
	if n, err := parse("MemTotal: 1 kB\nMemAvailable:    2048 kB\n"); err != nil || n != 2<<20 {
		t.Errorf("memory %v, %v", n, err)
	}
	for _, s := range []string{"", "MemTotal: 1 kB\n", "MemAvailable: many kB\n"} {
		if n, err := parse(s); err == nil {
			t.Errorf("%q is %v", s, n)
		}
	}
	if n, err := Available(); err != nil || n < 1<<20 {
		t.Errorf("this host has %v, %v", n, err)
	}
}
