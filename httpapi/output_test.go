package httpapi

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"time"
)

// TestPumpEnds: what a process left in the background cannot keep its session, be it silent, chatty or slow; and all that
// the process itself wrote arrives.
func TestPumpEnds(t *testing.T) {
	for name, leftover := range map[string]func(w io.Writer, stop <-chan struct{}){
		"silent": func(_ io.Writer, stop <-chan struct{}) { <-stop },
		"chatty": func(w io.Writer, stop <-chan struct{}) {
			for {
				if _, err := w.Write(bytes.Repeat([]byte("y\n"), 4096)); err != nil {
					return
				}
			}
		},
		"ended": func(io.Writer, <-chan struct{}) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pr, pw := io.Pipe()
			exited, stop := make(chan struct{}), make(chan struct{})
			go func() {
				pw.Write([]byte("said"))
				close(exited)
				leftover(pw, stop)
				pw.Close()
			}()
			var got bytes.Buffer
			var readers sync.WaitGroup
			done := make(chan error, 1)
			go func() {
				done <- pump(pr, exited, &readers, func(b []byte) error { got.Write(b); return nil })
			}()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("the session does not end")
			}
			close(stop)
			pr.Close()
			readers.Wait()
			if !bytes.HasPrefix(got.Bytes(), []byte("said")) {
				t.Errorf("what the process said is missing: %.20q", got.Bytes())
			}
		})
	}
}
