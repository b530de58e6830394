package baseline

import (
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/job/gate/check"
)

// generatedNames are the names of directories whose files tools download or generate.
var generatedNames = []string{"node_modules", ".venv", "venv", "__pycache__", ".tox", ".pytest_cache", ".mypy_cache"}

// IsOwnFile reports whether the file at path counts as a source file for the limit of the files that automatic syncs may remove.
// Files of git, which a sync never changes, and files that tools download or generate do not count.
func IsOwnFile(path string) bool {
	return !slices.ContainsFunc(strings.Split(path, "/"), func(name string) bool { return !countsAsOwn(name) })
}

// countsAsOwn reports whether name is neither a name that git interprets as .git nor one of generatedNames.
func countsAsOwn(name string) bool {
	return !slices.Contains(generatedNames, name) && !check.GitName(name)
}
