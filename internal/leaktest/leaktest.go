// Package leaktest finds the goroutines that one test has leaked while other tests of the process run.
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

// label is the key of the pprof label of a goroutine that contains the name of its [Scope], the set of goroutines it belongs to.
const label = "leaktest"

// endTimeout is the time that Check waits for goroutines to end.
var endTimeout = 10 * time.Second

// count is the number of scopes that Mark has started; it makes their names unique.
var count atomic.Int64

// A Scope is a goroutine and all goroutines started from it, directly or indirectly, after it has called [Mark].
type Scope struct{ name string } // name is the value of the pprof label that marks the goroutines of the scope

// Mark starts a scope with the calling goroutine. A goroutine belongs to the last scope that was marked by its ancestors.
func Mark() Scope {
	s := Scope{fmt.Sprintf("scope-%d", count.Add(1))}
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(label, s.name)))
	return s
}

// Check fails t if after 10 seconds there are still goroutines of the scope for whose stack leaked returns true. A
// stack has a line for each function, with the path of its package, its file and its line.
func (s Scope) Check(t testing.TB, leaked func(stack string) bool) {
	t.Helper()
	for deadline := time.Now().Add(endTimeout); ; runtime.Gosched() {
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

// find returns the stack of one goroutine of the scope for which leaked returns true, or "" if there is none.
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
