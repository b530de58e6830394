package engine

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson/internal/embedded"
)

// selfExe is the path of this binary, which stays valid if the file is renamed or replaced.
const selfExe = "/proc/self/exe"

// programs are the paths of the small binaries that are embedded in this one, or of this one if they are not embedded.
// agent is "" if it is not embedded.
type programs struct{ sentry, guestd, worker, agent string }

func unpackPrograms(dir string) (p programs, err error) {
	p = programs{sentry: selfExe, guestd: selfExe, worker: selfExe}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return p, err
	}
	if r, ok := embedded.Sentry(); ok {
		if p.sentry, err = unpack(dir, "sentry", r); err != nil {
			return p, err
		}
	}
	if r, ok := embedded.Guestd(); ok {
		if p.guestd, err = unpack(dir, "guestd", r); err != nil {
			return p, err
		}
	}
	if r, ok := embedded.Worker(); ok {
		if p.worker, err = unpack(dir, "worker", r); err != nil {
			return p, err
		}
	}
	if r, ok := embedded.Agent(); ok {
		p.agent, err = unpack(dir, "agent", r)
	}
	return p, err
}

// unpack writes a program to a file whose name contains the build, unless that exists.
func unpack(dir, name string, r *io.SectionReader) (string, error) {
	build, err := buildID()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name+"-"+build)
	if info, err := os.Stat(path); err == nil && info.Size() == r.Size() {
		return path, nil
	}
	tmp, err := os.CreateTemp(dir, "tmp-")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name())
	_, err = io.Copy(tmp, r)
	// Processes of unprivileged users execute it, through /proc/self/exe.
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close())
	if err != nil {
		return "", err
	}
	return path, os.Rename(tmp.Name(), path)
}

// buildID returns an id of this binary: a hash of the build id that Go's linker derives from its content.
func buildID() (string, error) {
	f, err := elf.Open(selfExe)
	if err != nil {
		return "", err
	}
	defer f.Close()
	note := f.Section(".note.go.buildid")
	if note == nil {
		return "", errors.New("this binary has no build id; build it with the Go tool")
	}
	data, err := note.Data()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}
