// Package smallfile reads small files. A larger file is an error, so that it cannot exhaust the daemon's memory.
package smallfile

import (
	"fmt"
	"io"
	"os"

	"github.com/caisson-dev/caisson"
)

const maxSize = 1 << 20 // Maximum size of a file in bytes.

// Read returns the content of a file of at most 1 MiB.
func Read(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(b) > maxSize {
		err = fmt.Errorf("%s is larger than %s", name, caisson.Size(maxSize))
	}
	return b, err
}
