package sandboxes

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// dependsFile is in a sandbox's directory and says what it was started on; beside a checkpoint, what that can be restored on.
const dependsFile = "depends.json"

func writeDepends(dir string, d caisson.Dependencies) error {
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, dependsFile), data, 0o600)
}

func readDepends(dir string) (d caisson.Dependencies, err error) {
	data, err := os.ReadFile(filepath.Join(dir, dependsFile))
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	return d, err
}

// copyDepends passes on what a sandbox was started on: a checkpoint is made by what runs, not by what is here now.
func copyDepends(from, to string) error {
	d, err := readDepends(from)
	if err != nil {
		return err
	}
	return writeDepends(to, d)
}

// mismatch says why what depends on had cannot be restored here, or "".
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

// depends is what a memory snapshot of a sandbox that starts now depends on.
func (h *host) depends(ctx context.Context, sb *caisson.Sandbox) (d caisson.Dependencies, err error) {
	caps := h.c.Runtime.Capabilities()
	d = caisson.Dependencies{Build: h.c.Build, CPU: caps.CPU, Rootfs: sb.Rootfs.Digest, Platform: caps.Platform}
	if len(sb.Rootfs.Binds) == 0 {
		return d, nil // layers do not change
	}
	// The host's own directories do, under the digest they had when the sandbox was made.
	img, err := h.c.Images.Host(ctx)
	if err != nil {
		return d, err
	}
	if img.Digest != d.Rootfs {
		d.Rootfs += " on " + img.Digest
	}
	return d, nil
}
