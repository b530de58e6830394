package ledger

import (
	"strings"

	"github.com/caisson-dev/caisson"
)

// placed reports whether g says where it is: in a sandbox, or in a run on another machine.
func placed(g caisson.Guest) bool {
	if g.Sandbox == "" {
		return g.Run != ""
	}
	_, err := caisson.ParseID(caisson.SandboxPrefix, string(g.Sandbox))
	return err == nil
}

// related reports whether g can be part of the runs that it says, each of them once: a call is charged to each. Only a run
// is part of others.
func related(g caisson.Guest) bool {
	if g.Lineage == "" {
		return true
	}
	runs := strings.Split(g.Lineage, " ")
	if len(runs) > caisson.MaxLineage || g.Run == "" || g.Run == string(g.Sandbox) {
		return false
	}
	for i, run := range runs {
		if _, err := caisson.ParseID(caisson.RunPrefix, run); err != nil || run == g.Run {
			return false
		}
		for _, other := range runs[:i] {
			if run == other {
				return false
			}
		}
	}
	return true
}

// traced reports whether g has no trace, or a proper one.
func traced(g caisson.Guest) bool {
	return g.Trace == "" || len(g.Trace) == 32 && strings.Trim(g.Trace, "0123456789abcdef") == ""
}
