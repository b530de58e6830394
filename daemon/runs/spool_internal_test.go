package runs

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestBoundSeesTheDisk: concurrent writes of other programs to the disk count, too.
func TestBoundSeesTheDisk(t *testing.T) {
	full := errors.New("full")
	room := 3
	b := limitWriter{left: 1 << 20, ctx: t.Context(), free: func() (int64, error) {
		if room--; room < 0 {
			return 0, full
		}
		return 1, nil
	}}
	var out bytes.Buffer
	if _, err := io.CopyBuffer(io.MultiWriter(&b, &out), io.LimitReader(zeros{}, 100), make([]byte, 10)); !errors.Is(err, full) || out.Len() != 30 {
		t.Errorf("%d bytes, %v", out.Len(), err)
	}
	room = 3
	if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.TeeReader(zeros{}, &b), make([]byte, 10)); !errors.Is(err, full) || n != 30 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestUploadsPerAccount: the number of concurrent uploads of an account is limited, without affecting other accounts.
func TestUploadsPerAccount(t *testing.T) {
	e := &directories{limits: Limits{PerAccount: 2}, uploads: map[string]int{}}
	var done func()
	for range 2 {
		var err error
		if done, err = e.countUpload("a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.countUpload("a"); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("a third one: %v", err)
	}
	if _, err := e.countUpload("b"); err != nil {
		t.Errorf("of another account: %v", err)
	}
	done()
	if _, err := e.countUpload("a"); err != nil {
		t.Errorf("when one has ended: %v", err)
	}
}
