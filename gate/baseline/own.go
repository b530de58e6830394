package baseline

import (
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gate/check"
)

// madeNames are directories of what tools download or make again.
var madeNames = []string{"node_modules", ".venv", "venv", "__pycache__", ".tox", ".pytest_cache", ".mypy_cache"}

// Own reports whether the file at path counts as one of a tree's own where it matters how much of a tree goes: git's files do not, which
// are never changed, nor what tools make again.
func Own(path string) bool {
	return !slices.ContainsFunc(strings.Split(path, "/"), func(name string) bool { return !ownName(name) })
}

func ownName(name string) bool { return !slices.Contains(madeNames, name) && !check.GitName(name) }
