package main

import (
	"strings"
	"testing"
	"testing/iotest"
)

func TestDetachKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ctrl-p,ctrl-q": "\x10\x11", "Ctrl-], q": "", "ctrl-],q": "\x1dq", "ctrl-@": "\x00", "x": "x", "": "", "ctrl-1": "", "ctrl-": "", "xy": "", "a,": "",
	} {
		k := detachKeys("before")
		if err := k.UnmarshalText([]byte(text)); (err == nil) != (want != "") || err == nil && string(k) != want {
			t.Errorf("%q: %q, %v", text, k, err)
		}
	}
	for _, tt := range []struct {
		in, keys, want string
		left           bool
	}{
		{"abc", "\x10\x11", "abc", false},
		{"ab\x10\x11c", "\x10\x11", "ab", true},
		{"ab\x10c\x10\x10\x11c", "\x10\x11", "ab\x10c\x10", true},
		{"\x10", "\x10\x11", "", false}, // held back until the end of the input
		{"aab", "aab", "", true},
		{"aaab", "aab", "a", true},
		{"x\x10\x11", "", "x\x10\x11", false},
	} {
		for name, in := range map[string]*strings.Reader{"whole": strings.NewReader(tt.in), "by byte": strings.NewReader(tt.in)} {
			var out strings.Builder
			left := false
			if name == "whole" {
				copyKeys(&out, in, tt.keys, func() { left = true })
			} else {
				copyKeys(&out, iotest.OneByteReader(in), tt.keys, func() { left = true })
			}
			if out.String() != tt.want || left != tt.left {
				t.Errorf("%s %q: %q, %v", name, tt.in, out.String(), left)
			}
		}
	}
}
