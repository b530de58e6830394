// Package tail keeps the last words of what a process writes: they say why it failed.
package tail

import (
	"io"
	"strings"
)

// Read reads r to its end, however long it is, and returns about its last n bytes, as UTF-8.
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
