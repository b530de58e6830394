package llm

import (
	"io"
	"testing"
)

// TestSentByAnyBody checks that the call also notices a write of the second body, which a transport gets for a retry.
func TestSentByAnyBody(t *testing.T) {
	var c callLifetime
	first, again := c.newBody([]byte("{}")), c.newBody([]byte("{}"))
	if c.requestWritten.Load() {
		t.Fatal("nothing was read yet")
	}
	if b, err := io.ReadAll(again); string(b) != "{}" || err != nil || !c.requestWritten.Load() {
		t.Errorf("%q, %v, %v", b, err, c.requestWritten.Load())
	}
	if b, _ := io.ReadAll(first); string(b) != "{}" {
		t.Errorf("%q: the bodies share their position", b)
	}
}
