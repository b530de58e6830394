package embedded

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"
)

// TestEmbedded tests that each embedded program is an executable, and has the hash that is stored with it.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	for _, name := range []string{Guestd, Agent, Sentry, Worker} {
		p, ok := Find(name)
		if !ok {
			continue // This build embeds none.
		}
		var b bytes.Buffer
		if err := p.Unpack(&b); err != nil || b.Len() < 1<<20 || !bytes.HasPrefix(b.Bytes(), []byte("\x7fELF")) {
			t.Errorf("%s has %d bytes and is no program: %v; run make build", name, b.Len(), err)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(b.Bytes())); sum != p.SHA256 {
			t.Errorf("%s has the hash %s, not %s", name, sum, p.SHA256)
		}
	}
	if p, ok := Find("none"); ok {
		t.Errorf("no program has the hash %s", p.SHA256)
	}
}
