package embedded

import (
	"io"
	"testing"
	"testing/fstest"
)

func TestOpen(t *testing.T) {
	fsys := fstest.MapFS{
		"bin/guestd": {Data: []byte("\x7fELF and more")},
		"bin/sentry": {Data: []byte("cut")},
	}
	r, ok := open(fsys, "guestd")
	if !ok || r.Size() != 13 {
		t.Fatalf("guestd: %v", ok)
	}
	if b, err := io.ReadAll(r); err != nil || string(b) != "\x7fELF and more" {
		t.Errorf("%q, %v", b, err)
	}
	for _, name := range []string{"sentry", "none"} {
		if _, ok := open(fsys, name); ok {
			t.Errorf("%s is a program", name)
		}
	}
}

// TestEmbedded tests that an embedded program can be read repeatedly.
func TestEmbedded(t *testing.T) {
	for range 2 {
		for _, get := range []func() (*io.SectionReader, bool){Guestd, Sentry, Worker, Agent} {
			if r, ok := get(); ok && r.Size() < 1<<20 {
				t.Errorf("%d bytes are no program", r.Size())
			}
		}
	}
}
