package apitest

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"time"
)

// Leaks waits until no goroutine of the API or its client is left, and returns the exit code of a test binary: 1, after
// printing them, if some stay.
func Leaks() int {
	end := time.Now().Add(Timeout)
	for {
		buf := make([]byte, 4<<20)
		buf = buf[:runtime.Stack(buf, true)]
		var left [][]byte
		for i, g := range bytes.Split(buf, []byte("\n\n")) {
			// The first is this one.
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
