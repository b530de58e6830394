package reach

import (
	"net/netip"
	"testing"
)

func TestCheck(t *testing.T) {
	tests := []struct {
		addr                    string
		plain, local, here, all bool // allowed with nothing, local, loopback, both
	}{
		{"140.82.121.4", true, true, true, true},
		{"2606:50c0:8000::153", true, true, true, true},
		{"10.1.2.3", false, true, false, true},
		{"192.168.1.1", false, true, false, true},
		{"::ffff:10.1.2.3", false, true, false, true},
		{"fd12::1", false, true, false, true},
		{"64:ff9b::a01:203", false, true, false, true},
		{"2002:0a01:0203::1", false, true, false, true},
		{"127.0.0.1", false, false, false, true},
		{"::1", false, false, false, true},
		{"::ffff:127.0.0.1", false, false, false, true},
		{"169.254.169.254", false, false, false, false},
		{"fe80::1%eth0", false, false, false, false},
		{"fd00:ec2::254", false, false, false, false},
		{"100.100.100.200", false, false, false, false},
		{"0.0.0.0", false, false, false, false},
		{"224.0.0.1", false, false, false, false},
	}
	for _, tt := range tests {
		a := netip.MustParseAddr(tt.addr)
		got := [4]bool{Check(a, false, false) == nil, Check(a, false, true) == nil, Check(a, true, false) == nil, Check(a, true, true) == nil}
		if want := [4]bool{tt.plain, tt.local, tt.here, tt.all}; got != want {
			t.Errorf("%s: %v, want %v", tt.addr, got, want)
		}
	}
}
