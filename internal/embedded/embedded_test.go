package embedded

import (
	"crypto/sha256"
	"fmt"
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

// TestEmbedded tests that an embedded program can be read repeatedly, and that its hash is that of its content.
func TestEmbedded(t *testing.T) {
	for range 2 {
		for name, get := range map[string]func() (*io.SectionReader, bool){"guestd": Guestd, "sentry": Sentry, "worker": Worker, "agent": Agent} {
			r, ok := get()
			if !ok {
				continue
			}
			hash := sha256.New()
			if n, err := io.Copy(hash, r); err != nil || n < 1<<20 {
				t.Errorf("%d bytes are no program: %v", n, err)
			}
			if sum := Sum(name); sum != "" && sum != fmt.Sprintf("%x", hash.Sum(nil)) {
				t.Errorf("%s has the hash %x, not %s; run make build", name, hash.Sum(nil), sum)
			}
		}
	}
	if sum := Sum("none"); sum != "" {
		t.Errorf("the hash of no program is %s", sum)
	}
}
