package gvisor

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// writeTools makes the layer with Caisson's own guest programs, topmost of every sandbox's but for its own settings, and
// returns its directory. The name contains a hash of the programs, so that another build's sandboxes keep theirs.
//
// The programs work for the guest and are trusted by nobody: a guest may replace them in its own overlay.
func writeTools(dir, inside string) (string, error) {
	program, err := os.ReadFile(inside)
	if err != nil {
		return "", err
	}
	init := initProgram()
	sum := sha256.Sum256(append(bytes.Clone(init), program...))
	layer := filepath.Join(dir, hex.EncodeToString(sum[:8]))
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
		if err := giveToLayers(d, 0o755); err != nil {
			return "", err
		}
	}
	for name, data := range map[string][]byte{guestInit: init, guestInside: program} {
		path := filepath.Join(tmp, name)
		if err := os.WriteFile(path, data, 0o755); err != nil {
			return "", err
		}
		if err := giveToLayers(path, 0o755); err != nil {
			return "", err
		}
	}
	if err := os.Rename(tmp, layer); err != nil && !os.IsExist(err) {
		return "", err
	}
	return layer, nil
}

// giveToLayers makes path the guest root's, with exactly that mode whatever the umask.
func giveToLayers(path string, mode os.FileMode) error {
	if err := os.Chown(path, caisson.LayerUIDBase, caisson.LayerUIDBase); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
