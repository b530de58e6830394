package socketpair

import (
	"errors"
	"os"
	"testing"
	"time"
)

func TestNew(t *testing.T) {
	near, far, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	if _, err := far.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, err := near.Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if err := near.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past its deadline: %v", err)
	}
	if err := far.Close(); err != nil {
		t.Error(err)
	}
}
