package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// A tool is one of Caisson's own programs for the guest.
type tool struct {
	path    string // in the sandbox
	program []byte
}

// readTools returns the programs that every sandbox has; agent may be "".
func readTools(inside, agent string) ([]tool, error) {
	tools := []tool{{guestInit, initProgram()}}
	for _, t := range []struct{ path, source string }{{guestInside, inside}, {guestAgent, agent}} {
		if t.source == "" && t.path == guestAgent {
			continue
		}
		program, err := os.ReadFile(t.source)
		if err != nil {
			return nil, err
		}
		tools = append(tools, tool{t.path, program})
	}
	return tools, nil
}

// layerName is a hash of the programs, so that another build's sandboxes keep theirs.
func layerName(tools []tool) string {
	h := sha256.New()
	for _, t := range tools {
		fmt.Fprintf(h, "%s %d\n", t.path, len(t.program))
		h.Write(t.program)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// writeTools makes the layer with Caisson's own guest programs, topmost of every sandbox's but for its own settings, and
// returns its directory.
//
// The programs work for the guest and are trusted by nobody: a guest may replace them in its own overlay.
func writeTools(dir string, list []tool) (string, error) {
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
		if err := giveToLayers(d, 0o755); err != nil {
			return "", err
		}
	}
	for _, t := range list {
		path := filepath.Join(tmp, t.path)
		if err := os.WriteFile(path, t.program, 0o755); err != nil {
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
