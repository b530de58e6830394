package ledger

import (
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// hasOrigin reports whether g identifies its origin: a sandbox, or a run on another machine.
func hasOrigin(g caisson.Guest) bool {
	if g.Sandbox == "" {
		return g.Run != ""
	}
	_, err := caisson.ParseID(caisson.SandboxPrefix, string(g.Sandbox))
	return err == nil
}

// validLineage reports whether the lineage of g, the runs that its run is a sub-run of, is valid: at most [caisson.MaxLineage]
// distinct runs other than g's. Calls are charged to each of these runs. Only a guest with a run has a lineage.
func validLineage(g caisson.Guest) bool {
	if g.Lineage == "" {
		return true
	}
	runs := strings.Split(g.Lineage, " ")
	if len(runs) > caisson.MaxLineage || g.Run == "" || g.Run == string(g.Sandbox) {
		return false
	}
	for i, run := range runs {
		if _, err := caisson.ParseID(caisson.RunPrefix, run); err != nil || run == g.Run || slices.Contains(runs[:i], run) {
			return false
		}
	}
	return true
}

// validTrace reports whether the trace id of g is empty or consists of 32 hexadecimal digits.
func validTrace(g caisson.Guest) bool {
	return g.Trace == "" || len(g.Trace) == 32 && strings.Trim(g.Trace, "0123456789abcdef") == ""
}
