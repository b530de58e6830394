package frame

import (
	"bytes"
	"io"
	"testing"
)

// limits allows 'a' with 4 bytes, and 'b' without any.
func limits(kind byte) int {
	switch kind {
	case 'a':
		return 4
	case 'b':
		return 0
	}
	return -1
}

func TestRead(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		in   string
		want error
	}{
		"whole":       {"a\x00\x00\x00\x04abcd", nil},
		"no payload":  {"b\x00\x00\x00\x00", nil},
		"end":         {"", io.EOF},
		"half header": {"a\x00", io.ErrUnexpectedEOF},
		"no content":  {"a\x00\x00\x00\x04", io.ErrUnexpectedEOF},
		"half":        {"a\x00\x00\x00\x04ab", io.ErrUnexpectedEOF},
		"too long":    {"a\x00\x00\x00\x05abcde", ErrProtocol},
		"enormous":    {"a\xff\xff\xff\xff", ErrProtocol},
		"has none":    {"b\x00\x00\x00\x01x", ErrProtocol},
		"unknown":     {"c\x00\x00\x00\x00", ErrProtocol},
	} {
		if _, _, err := Read(bytes.NewReader([]byte(tt.in)), limits); err != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("a\x00\x00\x00\x04abcdb\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			kind, payload, err := Read(r, limits)
			if err != nil {
				return
			}
			if len(payload) > limits(kind) {
				t.Fatalf("%q has %d bytes", kind, len(payload))
			}
			k, p, err := Read(bytes.NewReader(Append(nil, kind, payload)), limits)
			if err != nil || k != kind || !bytes.Equal(p, payload) {
				t.Fatalf("%q %q became %q %q, %v", kind, payload, k, p, err)
			}
		}
	})
}
