package sandboxes

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Limits of the seeds of a template: the files that its set-up steps write, all steps together. They are stored in the
// template's row of the database; larger files belong in an image.
const (
	maxSeeds     = 64
	maxSeedBytes = 4 << 20 // contents of all files
)

// validateSeeds returns an Invalid error if a file of the steps is not valid, or all together exceed a limit.
func validateSeeds(steps []caisson.SetupStep) error {
	n, size := 0, 0
	for i, s := range steps {
		for j, f := range s.Files {
			field := fmt.Sprintf("setup[%d].files[%d]", i, j)
			if err := validateSeed(field, f); err != nil {
				return err
			}
			n, size = n+1, size+len(f.Data)
		}
	}
	switch {
	case n > maxSeeds:
		return caisson.Invalidf("setup", "%d files are more than %d; put them into an image", n, maxSeeds)
	case size > maxSeedBytes:
		return caisson.Invalidf("setup", "the files hold more than %s together; put them into an image", caisson.Size(maxSeedBytes))
	}
	return nil
}

// validateSeed returns an Invalid error if the path or the mode of a file is not valid.
func validateSeed(field string, f caisson.SeedFile) error {
	if err := validatePath(field+".path", f.Path); err != nil {
		return err
	}
	if f.Path == "" || f.Path == "/" || path.Clean(f.Path) != f.Path {
		return caisson.Invalidf(field+".path", "%.100q is not the absolute path of a file, without . and .. and double slashes", f.Path)
	}
	for _, own := range reservedDirs {
		if f.Path == own || strings.HasPrefix(f.Path, own+"/") {
			return caisson.Invalidf(field+".path", "no file can be written below %s", own)
		}
	}
	if f.Mode > 0o777 {
		return caisson.Invalidf(field+".mode", "%o is more than 777", f.Mode)
	}
	return nil
}

// writeSeeds writes files in a running sandbox as its root, and creates their parent directories.
func (b *builder) writeSeeds(ctx context.Context, id caisson.ID, files []caisson.SeedFile) error {
	if len(files) == 0 {
		return nil
	}
	client := b.clients.client(id)
	defer client.Close()
	for _, f := range files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		if _, err := client.WriteFile(ctx, f.Path, mode, strings.NewReader(f.Data)); err != nil {
			return fmt.Errorf("write %q for a set-up step: %w", f.Path, err)
		}
	}
	return nil
}
