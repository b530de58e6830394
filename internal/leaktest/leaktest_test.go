package leaktest_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/leaktest"
)

// recorder is a [testing.TB] that records errors.
type recorder struct {
	testing.TB
	said string
}

func (*recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) { r.said = fmt.Sprintf(format, args...) }

func waits(started, stop chan struct{}) {
	close(started)
	<-stop
}

func isLeak(stack string) bool { return strings.Contains(stack, "leaktest_test.waits") }

// TestCheck tests that a goroutine belongs only to the scope of the goroutine that started it.
func TestCheck(t *testing.T) {
	leaktest.SetTimeout(t, 100*time.Millisecond)
	stop := make(chan struct{})
	var ended sync.WaitGroup
	scopes := make(chan leaktest.Scope)
	for _, leaks := range []bool{true, false} {
		ended.Go(func() {
			s := leaktest.Mark()
			if leaks {
				started := make(chan struct{})
				go func() { ended.Go(func() { waits(started, stop) }) }() // Started indirectly.
				<-started
			}
			scopes <- s
			<-scopes
		})
		s := <-scopes
		r := &recorder{TB: t}
		s.Check(r, isLeak)
		if leaks != strings.Contains(r.said, "waits") {
			t.Errorf("leaks %v: %q", leaks, r.said)
		}
		scopes <- s
		defer func() {
			r := &recorder{TB: t}
			if s.Check(r, isLeak); r.said != "" {
				t.Errorf("after the end: %s", r.said)
			}
		}()
	}
	close(stop)
	ended.Wait()
}
