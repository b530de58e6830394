// Package tail keeps the end of a process's output, which usually contains the reason of a failure.
package tail

import (
	"io"
	"strings"
)

// Read reads r to its end, of any length, and returns about the last n bytes as UTF-8.
func Read(r io.Reader, n int) string {
	var last []byte
	buf := make([]byte, 4096)
	for {
		got, err := r.Read(buf)
		last = append(last, buf[:got]...)
		last = last[max(0, len(last)-n):]
		if err != nil {
			return strings.ToValidUTF8(string(last), "\uFFFD")
		}
	}
}
