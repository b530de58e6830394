package apitest

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"time"
)

// Leaks waits until no goroutine of the API or its client is left, and returns the exit code for a test binary: 0, or 1 if such
// goroutines are left after Timeout. In that case it prints their stacks.
func Leaks() int {
	end := time.Now().Add(Timeout)
	for {
		buf := make([]byte, 4<<20)
		buf = buf[:runtime.Stack(buf, true)]
		var left [][]byte
		for i, g := range bytes.Split(buf, []byte("\n\n")) {
			// The first goroutine is the one that calls Leaks.
			if i > 0 && (bytes.Contains(g, []byte("caisson/httpapi")) || bytes.Contains(g, []byte("caisson/client"))) {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return 0
		}
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", bytes.Join(left, []byte("\n\n")))
			return 1
		}
		time.Sleep(5 * time.Millisecond)
	}
}
