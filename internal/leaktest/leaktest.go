// Package leaktest finds the goroutines that one test has left behind while other tests of the process run.
package leaktest

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const label = "leaktest"

// patience is how long goroutines may take to end.
var patience = 10 * time.Second

var count atomic.Int64

// A Scope is a goroutine and all that were started from it, directly or not, since it was marked.
type Scope struct{ name string }

// Mark begins a scope with the calling goroutine. A goroutine belongs to the scope that was marked last on its way.
func Mark() Scope {
	s := Scope{fmt.Sprintf("scope-%d", count.Add(1))}
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(label, s.name)))
	return s
}

// Check fails t if some seconds from now there are goroutines of the scope for whose stack leaked reports true. A stack
// has a line for each function, with its package's path, its file and its line.
func (s Scope) Check(t testing.TB, leaked func(stack string) bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		stack := s.find(t, leaked)
		if stack == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("a goroutine is left after Close:\n%s", stack)
			return
		}
	}
}

// find returns the stack of one goroutine of the scope for which leaked reports true, "" if there is none.
func (s Scope) find(t testing.TB, leaked func(stack string) bool) string {
	t.Helper()
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		t.Fatal(err)
	}
	mark := fmt.Sprintf("%q:%q", label, s.name)
	for stack := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(stack, mark) && leaked(stack) {
			return stack
		}
	}
	return ""
}
