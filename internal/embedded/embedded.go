// Package embedded contains small programs that are built before the main program and embedded in it, compressed.
package embedded

import (
	"embed"
	"io"

	"github.com/caisson-dev/caisson/internal/embedded/packed"
)

//go:embed bin
var files embed.FS // the packed programs

// The names of the embedded programs.
const (
	Guestd = "guestd" // runs within sandboxes (cmd/caisson-guestd)
	Agent  = "agent"  // drives agents within sandboxes (cmd/caisson-agent)
	Sentry = "sentry" // runs gVisor's processes (cmd/caisson-sentry)
	Worker = "worker" // runs worker jobs (cmd/caisson-worker)
)

// Find returns a program by its name, a static ELF executable. ok is false if this build does not contain the program, as in a
// build without "make build".
func Find(name string) (p packed.Program, ok bool) {
	f, err := files.Open("bin/" + name + ".zst")
	if err != nil {
		return packed.Program{}, false
	}
	p, err = packed.Open(f.(io.ReaderAt)) // Package embed documents that its files implement io.ReaderAt.
	return p, err == nil
}
