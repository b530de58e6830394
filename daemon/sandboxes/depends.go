package sandboxes

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// dependsFile is the file in a sandbox's directory that records the dependencies that the sandbox was started with. In
// a checkpoint, it records the dependencies that the memory can be restored with.
const dependsFile = "depends.json"

// writeDepends writes the dependsFile in dir.
func writeDepends(dir string, d caisson.Dependencies) error {
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, dependsFile), data, 0o600)
}

// readDepends reads the dependsFile in dir.
func readDepends(dir string) (d caisson.Dependencies, err error) {
	data, err := os.ReadFile(filepath.Join(dir, dependsFile))
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	return d, err
}

// copyDepends copies the dependencies that a sandbox was started with. A checkpoint depends on those, not on the
// current build and host.
func copyDepends(from, to string) error {
	d, err := readDepends(from)
	if err != nil {
		return err
	}
	return writeDepends(to, d)
}

// mismatch returns why a checkpoint with the dependencies had cannot be restored with have, or "" if it can.
func mismatch(had, have caisson.Dependencies) string {
	switch {
	case had.Build != have.Build:
		return "it was taken by another build of Caisson"
	case had.Platform != have.Platform:
		return "it was taken on gVisor's platform " + had.Platform
	case had.CPU != have.CPU:
		return "it was taken on another kind of processor"
	case had.Rootfs != have.Rootfs:
		return "the files of its image have changed"
	}
	return ""
}
