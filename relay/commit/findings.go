package commit

import (
	"fmt"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/relay/git"
)

// FitFindings keeps as much of a list as there is room for.
func FitFindings(list []caisson.Finding, left *int) []caisson.Finding {
	for i, f := range list {
		if *left -= len(f.Message); *left < 0 && i > 0 {
			last := list[i]
			last.Message = fmt.Sprintf("and %d more", len(list)-i)
			return append(slices.Clip(list[:i]), last)
		}
	}
	return list
}

// ValidFindings reports whether findings are bounded text with verdicts that are known.
func ValidFindings(list []caisson.Finding) bool {
	verdicts := []string{caisson.VerdictAsk, caisson.VerdictDeny}
	for _, f := range list {
		if !slices.Contains(verdicts, f.Verdict) || len(f.Check) > maxCheck || git.Plain(f.Check, maxCheck) != f.Check || f.Line < 0 ||
			len(f.Message) > MaxFindingMessage+len("…") || git.Plain(f.Message, MaxFindingMessage+len("…")) != f.Message {
			return false
		}
	}
	return len(list) <= MaxFindings
}

// Bounds of findings that a job replies with.
const (
	MaxAnswered = 64 << 10 // bytes of messages; JSON can make six of one
	maxCheck    = 40
)
