package dns

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails if a lookup is still in progress after all tests and its timeout.
func TestMain(m *testing.M) {
	code := m.Run()
	deadline := time.Now().Add(lookupTimeout + time.Second)
	for code == 0 {
		buf := make([]byte, 1<<20)
		all := string(buf[:runtime.Stack(buf, true)])
		if !strings.Contains(all, ".(*Upstream).fly") && !strings.Contains(all, ".(*Resolver).") {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", all)
			code = 1
		}
		time.Sleep(10 * time.Millisecond)
	}
	os.Exit(code)
}
