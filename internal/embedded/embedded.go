// Package embedded holds lean programs that are built before the main one and carried within it.
package embedded

import (
	"embed"
	"io"
	"io/fs"
)

//go:embed bin
var files embed.FS

const magic = "\x7fELF"

// Inside returns the program that runs within sandboxes (cmd/caisson-inside), a static ELF executable. ok is false if this
// build carries none; the main program, called by another name, then does the same.
func Inside() (program *io.SectionReader, ok bool) { return open(files, "inside") }

// Sentry returns the program that has the sandbox runtime and nothing else, under the same conditions.
func Sentry() (program *io.SectionReader, ok bool) { return open(files, "sentry") }

// Worker returns the program that runs jobs without privileges and has nothing else, under the same conditions.
func Worker() (program *io.SectionReader, ok bool) { return open(files, "worker") }

// Agent returns the program that speaks with agents within sandboxes (cmd/caisson-agent). ok is false if this build carries none;
// nothing else does the same then.
func Agent() (program *io.SectionReader, ok bool) { return open(files, "agent") }

func open(fsys fs.FS, name string) (*io.SectionReader, bool) {
	f, err := fsys.Open("bin/" + name)
	if err != nil {
		return nil, false
	}
	info, err := f.Stat()
	r, seekable := f.(io.ReaderAt) // documented of embed's files
	if err != nil || !seekable {
		return nil, false
	}
	head := make([]byte, len(magic))
	if _, err := r.ReadAt(head, 0); err != nil || string(head) != magic {
		return nil, false // an interrupted build
	}
	return io.NewSectionReader(r, 0, info.Size()), true
}
