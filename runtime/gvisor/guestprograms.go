package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// A guestProgram is one of Caisson's programs for the guest.
type guestProgram struct {
	path    string // path in the sandbox
	program []byte // content of the executable
}

// readGuestPrograms returns the programs for every sandbox: init, guestd from the file inside, and the built-in coding agent from
// the file agent, unless agent is "".
func readGuestPrograms(inside, agent string) ([]guestProgram, error) {
	tools := []guestProgram{{initPath, initProgram()}}
	for _, t := range []struct{ path, source string }{{guestdPath, inside}, {coderPath, agent}} {
		if t.source == "" && t.path == coderPath {
			continue
		}
		program, err := os.ReadFile(t.source)
		if err != nil {
			return nil, err
		}
		tools = append(tools, guestProgram{t.path, program})
	}
	return tools, nil
}

// layerName returns the name of the directory of the layer that contains tools. The name is a hash of these programs, so that
// another build of Caisson creates another directory, and the layer of running sandboxes does not change.
func layerName(tools []guestProgram) string {
	h := sha256.New()
	for _, t := range tools {
		fmt.Fprintf(h, "%s %d\n", t.path, len(t.program))
		h.Write(t.program)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// writeGuestPrograms creates the layer with Caisson's guest programs and returns its directory. It is the topmost layer of every
// sandbox, except for the layer with the sandbox's settings.
//
// The host does not trust these programs: a guest can replace them in its overlay.
func writeGuestPrograms(dir string, list []guestProgram) (string, error) {
	layer := filepath.Join(dir, layerName(list))
	if _, err := os.Stat(layer); err == nil {
		return layer, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, "tmp-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	tools := filepath.Join(tmp, toolsDir)
	for _, d := range []string{tmp, tools} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", err
		}
		if err := setLayerOwner(d, 0o755); err != nil {
			return "", err
		}
	}
	for _, t := range list {
		path := filepath.Join(tmp, t.path)
		if err := os.WriteFile(path, t.program, 0o755); err != nil {
			return "", err
		}
		if err := setLayerOwner(path, 0o755); err != nil {
			return "", err
		}
	}
	if err := os.Rename(tmp, layer); err != nil && !os.IsExist(err) {
		return "", err
	}
	return layer, nil
}

// writeLayer creates the layer with the guest programs of a set in dir, and returns its directory.
func writeLayer(dir string, set Programs) (string, error) {
	programs, err := readGuestPrograms(set.Guestd, set.Coder)
	if err != nil {
		return "", fmt.Errorf("read guest programs: %w", err)
	}
	layer, err := writeGuestPrograms(dir, programs)
	if err != nil {
		return "", fmt.Errorf("write guest programs: %w", err)
	}
	return layer, nil
}

// setLayerOwner makes the guest's root the owner of path and sets its mode, independent of the umask.
func setLayerOwner(path string, mode os.FileMode) error {
	if err := os.Chown(path, caisson.LayerUIDBase, caisson.LayerUIDBase); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
