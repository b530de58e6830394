// Package embedded contains small programs that are built before the main program and embedded in it.
package embedded

import (
	"embed"
	"io"
	"io/fs"
	"strings"
)

//go:embed bin
var files embed.FS

const magic = "\x7fELF" // The first bytes of an executable.

// Guestd returns guestd, the program that runs within sandboxes (cmd/caisson-guestd), a static ELF executable. ok is
// false if this build embeds none; the main program then does the same if it is started under another name.
func Guestd() (program *io.SectionReader, ok bool) { return open(files, "guestd") }

// Sentry returns the program that contains only the sandbox runtime, under the same conditions as Guestd.
func Sentry() (program *io.SectionReader, ok bool) { return open(files, "sentry") }

// Worker returns the program that contains only the worker jobs, under the same conditions as Guestd.
func Worker() (program *io.SectionReader, ok bool) { return open(files, "worker") }

// Agent returns the program that drives agents within sandboxes (cmd/caisson-agent). ok is false if this build embeds
// none; there is no replacement for it.
func Agent() (program *io.SectionReader, ok bool) { return open(files, "agent") }

// Sum returns the SHA-256 hash of a program in hexadecimal, by its name in bin, as "make build" has computed it; "" if it has not.
func Sum(name string) string {
	list, err := files.ReadFile("bin/sums") // as sha256sum prints them
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == name && len(f[0]) == 64 {
			return f[0]
		}
	}
	return ""
}

func open(fsys fs.FS, name string) (*io.SectionReader, bool) {
	f, err := fsys.Open("bin/" + name)
	if err != nil {
		return nil, false
	}
	info, err := f.Stat()
	r, seekable := f.(io.ReaderAt) // Documented for files of embed.FS.
	if err != nil || !seekable {
		return nil, false
	}
	head := make([]byte, len(magic))
	if _, err := r.ReadAt(head, 0); err != nil || string(head) != magic {
		return nil, false // The file is incomplete because a build was interrupted.
	}
	return io.NewSectionReader(r, 0, info.Size()), true
}
