package reach

import (
	"net/netip"
	"testing"
)

func TestCheck(t *testing.T) {
	tests := []struct {
		addr                    string
		plain, local, here, all bool // Allowed with no flag, local, loopback, both.
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
		{"fd00:ec2::254%eth0", false, false, false, false},
		{"fd20:ce::254", false, false, false, false},
		{"192.0.0.192", false, false, false, false},
		{"100.100.100.200", false, false, false, false},
		{"0.0.0.0", false, false, false, false},
		{"64:ff9b::7f00:1", false, false, false, false},
		{"64:ff9b::a9fe:a9fe", false, false, false, false},
		{"224.0.0.1", false, false, false, false},
	}
	var h Host
	for _, tt := range tests {
		a := netip.MustParseAddr(tt.addr)
		got := [4]bool{h.Check(a, false, false) == nil, h.Check(a, false, true) == nil, h.Check(a, true, false) == nil, h.Check(a, true, true) == nil}
		if want := [4]bool{tt.plain, tt.local, tt.here, tt.all}; got != want {
			t.Errorf("%s: %v, want %v", tt.addr, got, want)
		}
	}
}

func TestPublic(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.216.34": true, "203.0.113.7": true, "192.0.2.1": true, "172.32.0.1": true, "2606:4700::1": true,
		"64:ff9b::5db8:d822": true, "::ffff:93.184.216.34": true,
		"127.0.0.1": false, "127.8.9.10": false, "0.0.0.0": false, "10.1.2.3": false, "172.16.0.1": false, "172.31.255.255": false,
		"192.168.1.1": false, "169.254.169.254": false, "100.64.0.1": false, "100.100.100.200": false, "168.63.129.16": false,
		"198.18.0.1": false, "192.0.0.170": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "::ffff:127.0.0.1": false, "::127.0.0.1": false, "fe80::1": false, "fe80::1%lo": false,
		"2606:4700::1%lo": false, "fd00:ec2::254": false, "fec0::1": false, "ff02::1": false, "64:ff9b::7f00:1": false,
		"64:ff9b::a9fe:a9fe": false, "64:ff9b:1::a00:1": false, "2002:7f00:1::1": false, "2001::1": false,
	} {
		if got := Public(netip.MustParseAddr(address)); got != want {
			t.Errorf("Public(%s) = %t", address, got)
		}
	}
}
