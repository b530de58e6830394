package gate

import (
	"fmt"
	"os"
	"testing"

	"github.com/caisson-dev/caisson"
)

// A host directory that was too large to be recorded is never written on a guess.
func TestCompareUnrecorded(t *testing.T) {
	o := newOverlay(t, prepareHost(t))
	mask, err := NewMask(nil, nil)
	check(t, err)
	for limit := range 8 {
		cut, err := os.Create(fmt.Sprintf("%s/cut%d", o.top, limit))
		check(t, err)
		defer cut.Close()
		sum, err := scanUpTo(t.Context(), o.dir("host"), mask, cut, limit)
		check(t, err)
		if !sum.Cut {
			t.Fatalf("limit %d: not cut", limit)
		}
		o.manifest = cut
		write(t, o.box+"/dir/b.txt", "new\n")
		write(t, o.box+"/z", "new\n")
		diffs, _ := o.compare(CompareOptions{})
		for _, d := range diffs {
			if d.Change.Path == "z" && d.Change.Verdict != caisson.VerdictClash {
				t.Errorf("limit %d: %s", limit, summary(diffs))
			}
			if d.Change.Path == "dir/b.txt" && d.Change.Verdict == "" && d.Change.Kind != caisson.ChangeModified {
				t.Errorf("limit %d: %s", limit, summary(diffs))
			}
		}
	}
}
