package ledger

import (
	"strings"

	"github.com/caisson-dev/caisson"
)

// placed reports whether g identifies its origin: a sandbox, or a run on another machine.
func placed(g caisson.Guest) bool {
	if g.Sandbox == "" {
		return g.Run != ""
	}
	_, err := caisson.ParseID(caisson.SandboxPrefix, string(g.Sandbox))
	return err == nil
}

// related reports whether the lineage of g is valid: at most [caisson.MaxLineage] distinct runs other than g's. A call is charged
// to each of them. Only a guest with a run has a lineage.
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

// traced reports whether the trace of g is empty or valid.
func traced(g caisson.Guest) bool {
	return g.Trace == "" || len(g.Trace) == 32 && strings.Trim(g.Trace, "0123456789abcdef") == ""
}
