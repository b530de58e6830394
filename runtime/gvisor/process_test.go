package gvisor

import "testing"

func FuzzParseState(f *testing.F) {
	for in, want := range map[string]byte{
		"1 (init) S 0 1 1 0": 'S', "2 (a) b) Z 1": 'Z', "3 (x) D": 'D', "": 0, "4 (": 0, "5 (x)": 0, "6 (x) ": 0, ")": 0,
	} {
		f.Add([]byte(in))
		if got, err := parseState([]byte(in)); got != want || (err == nil) != (want != 0) {
			f.Errorf("parseState(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if state, err := parseState(data); err != nil && state != 0 {
			t.Errorf("%q and %v", state, err)
		}
	})
}
