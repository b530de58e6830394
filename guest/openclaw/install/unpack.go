package install

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// topLevelPath matches the paths of top-level packages in a lock file.
var topLevelPath = regexp.MustCompile(`^node_modules/(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*$`)

// unpackPackages unpacks the packages for this system and processor to their paths in the lock file, without npm. It is used for
// packages that are complete programs and need no Node.
func (in *installer) unpackPackages(ctx context.Context, l *lock) error {
	done := 0
	for _, name := range slices.Sorted(maps.Keys(l.Packages)) {
		p := l.Packages[name]
		if name == "" || !p.supports(runtime.GOOS, runtime.GOARCH) {
			continue
		}
		if !topLevelPath.MatchString(name) || p.InBundle {
			return fmt.Errorf("%.100q is no package of the top level, and the lock file has no npm to install others with", name)
		}
		s, err := l.find(strings.TrimPrefix(name, "node_modules/"), in.base)
		if err != nil {
			return err
		}
		dir := filepath.Join(in.dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return err
		}
		fmt.Fprintf(in.log, "fetch %s %s\n", strings.TrimPrefix(name, "node_modules/"), s.version)
		if err := fetch(ctx, s, dir); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		done++
	}
	if done == 0 {
		return fmt.Errorf("the lock file has nothing for %s on %s", runtime.GOOS, runtime.GOARCH)
	}
	return nil
}

// supports reports whether the package supports a system and a processor, which have the names that Go uses.
func (p lockPackage) supports(system, processor string) bool {
	if n, ok := map[string]string{"amd64": "x64", "386": "ia32"}[processor]; ok {
		processor = n
	}
	return allows(p.OS, system) && allows(p.CPU, processor)
}

// allows reports whether the field os or cpu of a package allows s. The list has names that are allowed, or names after "!" that
// are not allowed; an empty list allows everything.
func allows(list []string, s string) bool {
	named := false
	for _, x := range list {
		if x == "!"+s {
			return false
		}
		named = named || !strings.HasPrefix(x, "!")
	}
	return !named || slices.Contains(list, s)
}
