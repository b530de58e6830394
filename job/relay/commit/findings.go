package commit

import (
	"fmt"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// FitFindings returns the first findings whose messages fit into *left bytes, but at least one, and reduces *left. A last finding
// reports the number of those left out.
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

// ValidFindings reports whether findings have known verdicts and text of bounded length.
func ValidFindings(list []caisson.Finding) bool {
	verdicts := []string{caisson.VerdictAsk, caisson.VerdictDeny}
	for _, f := range list {
		if !slices.Contains(verdicts, f.Verdict) || len(f.Check) > maxCheck || git.OneLine(f.Check, maxCheck) != f.Check || f.Line < 0 ||
			len(f.Message) > MaxFindingMessage+len("…") || git.OneLine(f.Message, MaxFindingMessage+len("…")) != f.Message {
			return false
		}
	}
	return len(list) <= MaxFindings
}

// Limits of the findings in a job's reply.
const (
	MaxReplyBytes = 64 << 10 // bytes of messages; JSON may encode one byte as six
	maxCheck      = 40       // bytes of the name of a check
)
